"""One `mless run` of three conditions against stock lm-eval, as it comes and at its best.

As it comes: three `lm_eval run --model vllm` calls with default flags, one prompt at a time. At its best: one call,
`--tasks a,b,c --batch_size auto`, which gives vLLM all prompts at once.

Stock generation seconds are those spent inside `VLLM.generate_until`, taken by a wrapper that adds two clock readings
around it and then hands over to lm-eval's own command line; its wall seconds are those of the commands, from start to
exit. For `mless run` they are the receipt's generation seconds and the wall seconds of its one command.

    python -m benchmarks.stock [--small]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, Row, row
from benchmarks.runs import (
    PROBLEMS,
    read_json,
    run_benchmark,
    run_logged,
    run_mless,
    say,
    write_json,
)
from harness import resources

CONDITIONS = ("wo", "mless", "mful")
TARGET_GENERATION = 12
TARGET_WALL = 6
SMALL_LIMIT = 8
MODEL_ARGUMENTS = (
    "pretrained=tests/data/toy/model,dtype=bfloat16,max_model_len=4096,enforce_eager=True,"
    "kv_cache_memory_bytes=1073741824,enable_chunked_prefill=False,max_num_batched_tokens=8192"
)
OURS = [f"conditions={json.dumps(CONDITIONS)}", "model.model_args.dtype=bfloat16"]
BEST = "the best call"
MEASURES = (
    ("generation", "generation_seconds", TARGET_GENERATION),
    ("commands in all, loads and grading included", "wall_seconds", TARGET_WALL),
)


def run_lm_eval(
    conditions: Sequence[str], folder: Path, log: Path, *, batch_size: str, limit: int | None
) -> dict[str, Any]:
    """lm-eval's own command over vLLM in a fresh process: its generation seconds, wall seconds and accuracies.

    Args:
        conditions: Those whose tasks are run, all in one call.
        folder: For its results and sample logs.
        log: For what it prints.
        batch_size: `1` is lm-eval's default, one prompt at a time; `auto` is its best, all prompts at once.
        limit: Use only the first problems of each task, this many.

    Raises:
        EngineError: it failed.
    """
    tasks = [f"math500_{condition}" for condition in conditions]
    seconds = folder / "seconds.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.stock",
        "lm_eval",
        str(seconds),
        "run",
        "--model",
        "vllm",
    ]
    command += [
        "--model_args",
        MODEL_ARGUMENTS,
        "--tasks",
        ",".join(tasks),
        "--batch_size",
        batch_size,
    ]
    command += ["--include_path", str(resources.folder("tasks")), "--log_samples"]
    command += ["--output_path", str(folder / "results.json")]
    command += ["--limit", str(limit)] if limit else []
    wall = run_logged(command, log, {"MATH500_PATH": str(PROBLEMS)})
    return {
        **read_json(seconds),
        "wall_seconds": round(wall, 2),
        "correct": read_accuracies(folder, tasks),
    }


def read_accuracies(folder: Path, tasks: Sequence[str]) -> list[float]:
    """The accuracy of every task in the results file of a folder."""
    results = read_json(next(folder.rglob("results_*.json")))["results"]
    return [
        value
        for task in tasks
        for name, value in results[task].items()
        if name.startswith("correct,")
    ]


def _time_lm_eval(written: Path, arguments: list[str]) -> None:
    """Run lm-eval's command line, and write the seconds inside `generate_until` to a file."""
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.models.vllm_causallms import VLLM

    original = VLLM.generate_until

    def generate_until(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        completions = original(self, *args, **kwargs)
        seconds = round(time.monotonic() - started, 2)
        write_json(written, {"generation_seconds": seconds, "completions": len(completions)})
        return completions

    VLLM.generate_until = generate_until
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    if sys.argv[1:2] == ["lm_eval"]:
        _time_lm_eval(Path(sys.argv[2]), sys.argv[3:])
        return
    run_benchmark(__doc__, measure)


def measure(folder: Path, small: bool) -> Figures:
    """All figures, JSON-ready."""
    limit = SMALL_LIMIT if small else None
    stock_conditions = CONDITIONS[:1] if small else CONDITIONS
    say("stock: one mless run of three conditions")
    ours = run_mless(OURS, folder / "mless", folder / "mless.log", limit=limit)
    say(f"stock: {ours['generation_seconds']} s of generation, {ours['wall_seconds']} s in all")
    calls = {}
    called_conditions = {
        BEST: stock_conditions,
        **{condition: (condition,) for condition in stock_conditions},
    }
    for name, conditions in called_conditions.items():
        log = folder / f"{conditions[0]}-{len(conditions)}.log"
        say(
            f"stock: lm_eval on {', '.join(f'math500_{c}' for c in conditions)}; progress is in {log}"
        )
        calls[name] = run_lm_eval(
            conditions,
            folder / "calls" / name.replace(" ", "-"),
            log,
            batch_size="auto" if name == BEST else "1",
            limit=limit,
        )
        say(
            f"stock: {calls[name]['generation_seconds']} s of generation, {calls[name]['wall_seconds']} s in all"
        )
    correct = read_accuracies(folder / "mless", [f"demo_{condition}" for condition in CONDITIONS])
    return _figures(ours, correct, calls)


def _figures(
    ours: dict[str, Any], correct: list[float], calls: dict[str, dict[str, Any]]
) -> Figures:
    best = calls[BEST]
    each = [one for name, one in calls.items() if name != BEST]
    rows: list[Row] = []
    for name, key, target in MEASURES:
        seconds = " + ".join(f"{one[key]:.0f}" for one in each)
        ratio = sum(one[key] for one in each) / ours[key]
        rows.append(
            row(
                f"three default calls: {name}",
                f"stock {sum(one[key] for one in each):.0f} s ({seconds}); mless {ours[key]:.1f} s",
                target=f"at least {target} times less",
                ratio=ratio,
                met=ratio >= target,
            )
        )
    rows += [
        row(
            f"one call at its best: {name}",
            f"stock {best[key]:.1f} s; mless {ours[key]:.1f} s",
            ratio=best[key] / ours[key],
        )
        for name, key, _ in MEASURES
    ]
    return {
        "title": "One run against stock lm-eval",
        "what": f"{ours['samples']:,} greedy completions of the tests' toy model: `mless run` with three conditions, "
        f"against `lm_eval --model vllm` on {', '.join(f'math500_{c}' for c in CONDITIONS)}. Three calls with default "
        "flags: one prompt at a time. One call: `--tasks a,b,c --batch_size auto`.",
        "rows": rows,
        "notes": [
            "Stock generation seconds are those inside `VLLM.generate_until`.",
            f"Stock model arguments: `{MODEL_ARGUMENTS}`.",
            f"Accuracy in percent, {', '.join(CONDITIONS)}: {_accuracies(calls, correct)}.",
        ],
        "mless": ours,
        "stock": calls,
    }


def _accuracies(calls: Mapping[str, Mapping[str, Any]], correct: list[float]) -> str:
    """The accuracies of every side, in words."""
    sides = {
        "three calls": [
            value for name, one in calls.items() if name != BEST for value in one["correct"]
        ],
        BEST: calls[BEST]["correct"],
        "mless": correct,
    }
    return "; ".join(
        f"{name} {[round(100 * value, 1) for value in values]}" for name, values in sides.items()
    )


if __name__ == "__main__":
    main()
