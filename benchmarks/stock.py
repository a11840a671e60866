"""One `mless run` of three conditions against stock lm-eval, in its default and its fastest use.

Default: three calls of `lm_eval run --model vllm` with default flags, one prompt at a time.
Fastest: one call, `--tasks a,b,c --batch_size auto`, which gives vLLM all prompts at once.

A wrapper measures the seconds of `VLLM.generate_until` and calls lm-eval's own command line. Wall
seconds are those of the commands, from start to exit. For `mless run` the generation seconds are
those of the receipt.

    python -m benchmarks.stock [--small]
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mless
from benchmarks.report import Figures, Row, row
from benchmarks.runs import PROBLEMS, read_json, run_benchmark, run_logged, run_mless, write_json
from harness import resources

Call = Mapping[str, Any]
"""The figures of a command: its seconds and, of lm-eval, accuracies."""
CONDITIONS = ("wo", "mless", "mful")
TARGET_GENERATION = 12
TARGET_WALL = 6
SMALL_LIMIT = 8
MODEL_ARGUMENTS = (
    "pretrained=tests/data/toy/model,dtype=bfloat16,max_model_len=4096,enforce_eager=True,"
    "kv_cache_memory_bytes=1073741824,enable_chunked_prefill=False,max_num_batched_tokens=8192"
)
MLESS_OVERRIDES = [f"conditions={json.dumps(CONDITIONS)}", "model.model_args.dtype=bfloat16"]
FASTEST = "the fastest call"
MEASURES = (
    ("generation", "generation_seconds", TARGET_GENERATION),
    ("commands in all, loads and grading included", "wall_seconds", TARGET_WALL),
)


def run_lm_eval(
    conditions: Sequence[str], folder: Path, log: Path, *, batch_size: str, limit: int | None
) -> dict[str, Any]:
    """Run lm-eval's own command over vLLM in a fresh process.

    Args:
        conditions: The conditions whose tasks run, all in one call.
        folder: For its results and sample logs.
        log: For its output.
        batch_size: `1` is lm-eval's default, one prompt at a time; `auto` is all prompts at once.
        limit: The number of the first problems of each task to use.

    Returns:
        Its generation seconds, wall seconds and accuracies.

    Raises:
        EngineError: It failed.
    """
    tasks = [f"math500_{condition}" for condition in conditions]
    seconds = folder / "seconds.json"
    options = {
        "model": "vllm",
        "model_args": MODEL_ARGUMENTS,
        "tasks": ",".join(tasks),
        "batch_size": batch_size,
        "include_path": str(resources.folder("tasks")),
        "output_path": str(folder / "results.json"),
    }
    if limit:
        options["limit"] = str(limit)
    command = [sys.executable, "-m", "benchmarks.stock", "lm_eval", str(seconds), "run"]
    for name, value in options.items():
        command += [f"--{name}", value]
    wall = run_logged([*command, "--log_samples"], log, {"MATH500_PATH": str(PROBLEMS)})
    return {
        **read_json(seconds),
        "wall_seconds": round(wall, 2),
        "correct": read_accuracies(folder, tasks),
    }


def read_accuracies(folder: Path, tasks: Sequence[str]) -> list[float]:
    """The accuracy of every task in the results file of a folder."""
    results = read_json(next(folder.rglob("results_*.json")))["results"]
    accuracies = []
    for task in tasks:
        metrics = results[task].items()
        (accuracy,) = (value for name, value in metrics if name.startswith("accuracy,"))
        accuracies.append(accuracy)
    return accuracies


def _time_lm_eval(path: Path, arguments: list[str]) -> None:
    """Run lm-eval's command line, and write the seconds inside `generate_until` to a file."""
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.models.vllm_causallms import VLLM

    original = VLLM.generate_until

    def generate_until(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        completions = original(self, *args, **kwargs)
        seconds = round(time.monotonic() - started, 2)
        write_json(path, {"generation_seconds": seconds, "completions": len(completions)})
        return completions

    VLLM.generate_until = generate_until
    sys.argv = ["lm_eval", *arguments]
    cli_evaluate()


def main() -> None:
    """Measure the benchmark, or one call of lm-eval for it."""
    if sys.argv[1:2] == ["lm_eval"]:
        _time_lm_eval(Path(sys.argv[2]), sys.argv[3:])
        return
    run_benchmark(__doc__, measure)


def measure(folder: Path, small: bool) -> Figures:
    """Measure all figures."""
    limit = SMALL_LIMIT if small else None
    mless_call = run_mless(MLESS_OVERRIDES, folder / "mless", folder / "mless.log", limit=limit)
    conditions = CONDITIONS[:1] if small else CONDITIONS
    calls = {}
    for name, called in ((FASTEST, conditions), *((name, (name,)) for name in conditions)):
        log = folder / f"{called[0]}-{len(called)}.log"
        output = folder / "calls" / name.replace(" ", "-")
        batch_size = "auto" if name == FASTEST else "1"
        calls[name] = run_lm_eval(called, output, log, batch_size=batch_size, limit=limit)
    samples = mless.load_run(folder / "mless")
    correct = samples.groupby("condition", sort=False)["correct"].mean()
    return _figures(mless_call, correct[list(CONDITIONS)].tolist(), calls)


def _figures(mless_call: Call, correct: list[float], calls: dict[str, Call]) -> Figures:
    fastest = calls[FASTEST]
    default_calls = [call for name, call in calls.items() if name != FASTEST]
    default_rows: list[Row] = []
    fastest_rows: list[Row] = []
    for name, key, target in MEASURES:
        seconds = [call[key] for call in default_calls]
        terms = " + ".join(f"{value:.0f}" for value in seconds)
        ratio = sum(seconds) / mless_call[key]
        default_row = row(
            f"three default calls: {name}",
            f"stock {sum(seconds):.0f} s ({terms}); mless {mless_call[key]:.1f} s",
            target=f"at least {target} times less",
            ratio=ratio,
            met=ratio >= target,
        )
        default_rows.append(default_row)
        fastest_row = row(
            f"the fastest call: {name}",
            f"stock {fastest[key]:.1f} s; mless {mless_call[key]:.1f} s",
            ratio=fastest[key] / mless_call[key],
        )
        fastest_rows.append(fastest_row)
    default_accuracies = [value for call in default_calls for value in call["correct"]]
    accuracies = "; ".join(
        f"{name} {[round(100 * value, 1) for value in values]}"
        for name, values in (
            ("three default calls", default_accuracies),
            (FASTEST, fastest["correct"]),
            ("mless", correct),
        )
    )
    return {
        "title": "One run against stock lm-eval",
        "what": f"{mless_call['samples']:,} greedy completions of the tests' model: `mless run` "
        "with three conditions, against `lm_eval --model vllm` on "
        f"{', '.join(f'math500_{condition}' for condition in CONDITIONS)}. Three default calls: "
        "one prompt at a time. The fastest call: `--tasks a,b,c --batch_size auto`.",
        "rows": [*default_rows, *fastest_rows],
        "notes": [
            "Stock generation seconds are those inside `VLLM.generate_until`.",
            f"Stock model arguments: `{MODEL_ARGUMENTS}`.",
            f"Accuracy in percent, {', '.join(CONDITIONS)}: {accuracies}.",
        ],
        "mless": mless_call,
        "stock": calls,
    }


if __name__ == "__main__":
    main()
