"""Generation speed of an engine in a Ray actor, as `--engines` has them, against the engine in the run's own process.

Both sides are `mless run` on the same problems, greedily, each in a fresh process, in pairs whose order alternates.

    python -m benchmarks.engines [--small] [--pairs 5] [--copies 5]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row, section
from benchmarks.runs import base_overrides, repeated_problems, run_mless, say, work_folder, write_json

RAY_SHARE = 0.9
"""Least share of the tokens/s of an engine in the run's own process that one engine in a Ray actor has."""
SIDES = {"own": "in the run's process", "ray": "in a Ray actor"}


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few problems, to see that it works")
    parser.add_argument("--pairs", type=int, help="pairs of runs (5; small 1)")
    parser.add_argument("--copies", type=int, default=5, help="times that each bundled problem is asked")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    pairs = arguments.pairs or (1 if arguments.small else 5)
    figures = measure(pairs=pairs, copies=1 if arguments.small else arguments.copies, small=arguments.small)
    write_json(arguments.json, figures)
    print(section(figures))


def measure(*, pairs: int, copies: int, small: bool) -> Figures:
    """All figures, JSON-ready."""
    folder = work_folder(small) / "engines"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    problems = repeated_problems(folder, copies=copies, limit=8 if small else None)
    common = [*base_overrides(), f"dataset={json.dumps({'path': str(problems)})}"]
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(1, pairs + 1):
        done = {}
        for side in list(SIDES)[:: 1 if number % 2 else -1]:
            say(f"engines: pair {number} of {pairs}, {SIDES[side]}")
            engines = ["model.arguments.data_parallel_size=auto"] if side == "ray" else []
            name = f"{side}-{number}"
            done[side] = run_mless([*common, *engines], folder / name, folder / f"{name}.log")
        rounds.append(done)
    ratios = [one["ray"]["tokens_per_second"] / one["own"]["tokens_per_second"] for one in rounds]
    ratio = statistics.median(ratios)
    speeds = {side: statistics.median(one[side]["tokens_per_second"] for one in rounds) for side in SIDES}
    each = ", ".join(f"{one:.3f}" for one in ratios)
    target = f"at least {RAY_SHARE} of the other"
    rows = [
        row(SIDES["own"], f"{speeds['own']:,.0f} tokens/s"),
        row(
            SIDES["ray"],
            f"{speeds['ray']:,.0f} tokens/s; each pair {each}",
            target=target,
            ratio=ratio,
            met=ratio >= RAY_SHARE,
        ),
    ]
    totals = sorted({one[side]["tokens"] for one in rounds for side in SIDES})
    loads = {name: statistics.median(one[side]["load_seconds"] for one in rounds) for side, name in SIDES.items()}
    return {
        "title": "One engine through Ray",
        "what": f"{rounds[0]['own']['samples']:,} requests, three conditions, each bundled problem {copies} times, "
        f"greedily. Tokens/s of generation alone; median of {pairs} pairs.",
        "rows": rows,
        "notes": [
            f"Generated tokens of a run: {', '.join(f'{total:,}' for total in totals)}.",
            f"Loading: {'; '.join(f'{name} {seconds:.0f} s' for name, seconds in loads.items())}.",
        ],
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
