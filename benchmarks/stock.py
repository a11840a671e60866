"""One `mless run` of three conditions against three stock `lm_eval run --model vllm` calls with default flags.

Stock generation seconds are those spent inside `VLLM.generate_until`, taken by a wrapper that adds two clock readings
around it and then hands over to lm-eval's own command line; its wall seconds are those of the three commands, from
start to exit. For `mless run` they are the receipt's generation seconds and the wall seconds of its one command.

    python -m benchmarks.stock [--small]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row, section
from benchmarks.runs import CONDITIONS, ROOT, base_overrides, mless_run, run_logged, say, work_folder, write_json

TARGET_GENERATION = 12
TARGET_WALL = 6
SMALL_LIMIT = 8
SECONDS_FILE = "MLESS_BENCH_SECONDS_FILE"
MODEL_ARGUMENTS = (
    "pretrained=harness/demo/model,dtype=bfloat16,max_model_len=4096,enforce_eager=True,"
    "kv_cache_memory_bytes=1073741824,enable_chunked_prefill=False,max_num_batched_tokens=8192"
)


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    if sys.argv[1:2] == ["lm_eval"]:
        timed_lm_eval(sys.argv[1:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few problems, to see that it works")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = measure(small=arguments.small)
    write_json(arguments.json, figures)
    print(section(figures))


def measure(*, small: bool = False) -> Figures:
    """All figures, JSON-ready."""
    folder = work_folder(small) / "stock"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    limit = SMALL_LIMIT if small else None
    say("stock: one mless run of three conditions")
    ours = mless_run(base_overrides(), folder / "mless", folder / "mless.log", limit=limit)
    ours["correct"] = _correct(folder / "mless")
    say(f"stock: {ours['generation_seconds']} s of generation, {ours['wall_seconds']} s in all")
    calls = {}
    for condition in CONDITIONS:
        log = folder / f"{condition}.log"
        say(f"stock: lm_eval on math500_{condition}, one prompt at a time (minutes); progress is in {log}")
        calls[condition] = _stock_call(condition, folder / condition, log, limit)
        one = calls[condition]
        say(f"stock: {one['generation_seconds']} s of generation, {one['wall_seconds']} s in all")
    return _figures(ours, calls)


def timed_lm_eval(arguments: list[str]) -> None:
    """lm-eval's command line, with the seconds inside `generate_until` written to a file."""
    from lm_eval.__main__ import cli_evaluate
    from lm_eval.models.vllm_causallms import VLLM

    original = VLLM.generate_until

    def generate_until(self: Any, *args: Any, **kwargs: Any) -> Any:
        started = time.monotonic()
        completions = original(self, *args, **kwargs)
        seconds = round(time.monotonic() - started, 2)
        figures = {"generation_seconds": seconds, "completions": len(completions)}
        write_json(Path(os.environ[SECONDS_FILE]), figures)
        return completions

    VLLM.generate_until = generate_until
    sys.argv = arguments
    cli_evaluate()


def _stock_call(condition: str, folder: Path, log: Path, limit: int | None) -> dict[str, Any]:
    """One lm-eval command in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.stock", "lm_eval", "run", "--model", "vllm"]
    command += ["--model_args", MODEL_ARGUMENTS, "--tasks", f"math500_{condition}"]
    command += ["--include_path", str(ROOT / "tasks"), "--output_path", str(folder / "results.json")]
    command += ["--limit", str(limit)] if limit else []
    seconds = folder.with_suffix(".json")
    wall = run_logged(command, log, {"MATH500_PATH": "demo", SECONDS_FILE: str(seconds)})
    timed = json.loads(seconds.read_text(encoding="utf-8"))
    return {**timed, "wall_seconds": round(wall, 2), "correct": _correct(folder)}


def _correct(folder: Path) -> list[float]:
    """The accuracy of every task in lm-eval's results file."""
    results = json.loads(next(folder.rglob("results_*.json")).read_text(encoding="utf-8"))["results"]
    return [value for task in results.values() for name, value in task.items() if name.startswith("correct,")]


def _figures(ours: dict[str, Any], calls: dict[str, dict[str, Any]]) -> Figures:
    rows = []
    for name, key, target in (
        ("generation", "generation_seconds", TARGET_GENERATION),
        ("commands in all, loads and grading included", "wall_seconds", TARGET_WALL),
    ):
        stock = sum(one[key] for one in calls.values())
        each = " + ".join(f"{one[key]:.0f}" for one in calls.values())
        ratio = stock / ours[key]
        rows.append(
            row(
                name,
                f"stock {stock:.0f} s ({each}); mless {ours[key]:.1f} s",
                target=f"at least {target} times less",
                ratio=ratio,
                met=ratio >= target,
            )
        )
    accuracies = [round(100 * value, 1) for one in calls.values() for value in one["correct"]]
    same = [round(100 * value, 1) for value in ours["correct"]]
    return {
        "title": "One run against three stock lm-eval calls",
        "what": f"{ours['samples']:,} greedy completions of the bundled model: `mless run` with three conditions, "
        f"beside `lm_eval run --model vllm` on {', '.join(f'math500_{c}' for c in CONDITIONS)} with default flags, "
        "thus one prompt at a time.",
        "rows": rows,
        "notes": [
            "Stock generation seconds are those inside `VLLM.generate_until`, read by a wrapper around that method.",
            f"Stock model arguments: `{MODEL_ARGUMENTS}`.",
            f"Accuracy in percent, {', '.join(CONDITIONS)}: stock {accuracies}, mless {same}.",
            "`--batch_size auto`, which is not the default, would submit all prompts of a call at once.",
        ],
        "mless": ours,
        "stock": calls,
    }


if __name__ == "__main__":
    main()
