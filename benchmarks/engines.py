"""Generation speed of an engine in a Ray actor, as `--engines` has them, against the engine in the run's own process.

Both sides are `mless run` on the same problems, greedily, each in a fresh process, in pairs whose order alternates.

    python -m benchmarks.engines [--small]
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row
from benchmarks.runs import alternate, run_benchmark, run_mless, speed_overrides

PAIRS = 3
"""Runs of each side."""
RAY_SHARE = 0.9
"""Least share of the tokens/s of an engine in the run's own process that one engine in a Ray actor has."""
SIDES = {"own": "in the run's process", "ray": "in a Ray actor"}


def measure(folder: Path, small: bool) -> Figures:
    """All figures, JSON-ready."""
    pairs, common = 1 if small else PAIRS, speed_overrides(small)

    def run(engines: list[str], name: str) -> dict[str, Any]:
        return run_mless([*common, *engines], folder / name, folder / f"{name}.log")

    sides = {"own": partial(run, []), "ray": partial(run, ["model.arguments.data_parallel_size=auto"])}
    rounds = alternate(sides, pairs)
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
        "what": f"{rounds[0]['own']['samples']:,} requests to SmolLM2 in float32, at most 128 tokens each, greedily. "
        f"Tokens/s of generation alone; median of {pairs} pairs.",
        "rows": rows,
        "notes": [
            f"Generated tokens of a run: {', '.join(f'{total:,}' for total in totals)}.",
            f"Loading: {'; '.join(f'{name} {seconds:.0f} s' for name, seconds in loads.items())}.",
        ],
        "rounds": rounds,
    }


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
