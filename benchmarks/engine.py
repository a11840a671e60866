"""Generation speed of `mless run` (journal and grading on) against raw `vllm.LLM.generate` on the same requests.

Both sides get the same prompt token ids, sampling parameters, seeds and engine arguments, each in a fresh process,
alternately. Timed is generation alone, from the first request added to the last completion: the engine is loaded, and
for `mless run` every completion is journaled and graded on the way. Decoding is greedy, so that both
sides should generate equally many tokens; both totals are reported.

    python -m benchmarks.engine [--small]
"""

from __future__ import annotations

import statistics
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row
from benchmarks.runs import CONFIG, alternate, run_benchmark, run_mless, run_raw, speed_overrides

ROUNDS = 2
"""Runs of each side."""
TARGET = 0.90
LEAST_SECONDS = 60
SIDES = {
    "raw": "raw vLLM",
    "graded": "mless run, journal and grading",
    "audited": "mless run, journal, grading and audit",
}


def measure(folder: Path, small: bool) -> Figures:
    """All figures, JSON-ready."""
    common = speed_overrides(small)

    def ours(audit: str, name: str) -> dict[str, Any]:
        return run_mless([*common, f"audit={audit}"], folder / name, folder / f"{name}.log")

    def raw(name: str) -> dict[str, Any]:
        return run_raw(CONFIG, folder / f"{name}.json", folder / f"{name}.log", common)

    sides = {"raw": raw, "graded": partial(ours, "false"), "audited": partial(ours, "true")}
    return _figures(alternate(sides, 1 if small else ROUNDS))


def _figures(rounds: list[dict[str, dict[str, Any]]]) -> Figures:
    raw = statistics.median(one["raw"]["tokens_per_second"] for one in rounds)
    rows = [row(SIDES["raw"], f"{raw:,.0f} tokens/s")]
    for side in ("graded", "audited"):
        ratios = [one[side]["tokens_per_second"] / one["raw"]["tokens_per_second"] for one in rounds]
        ratio = statistics.median(ratios)
        speed = statistics.median(one[side]["tokens_per_second"] for one in rounds)
        each = ", ".join(f"{one:.3f}" for one in ratios)
        late = max(one[side]["grading_after_last_completion_seconds"] for one in rounds)
        rows.append(
            row(
                SIDES[side],
                f"{speed:,.0f} tokens/s; each round {each}; grading left after the last completion {late:.2f} s",
                target=f"at least {TARGET} of raw tokens/s",
                ratio=ratio,
                met=ratio >= TARGET,
            )
        )
    totals = {SIDES[side]: sorted({one[side]["tokens"] for one in rounds}) for side in SIDES}
    shortest = min(one[side]["generation_seconds"] for one in rounds for side in SIDES)
    longer = "over" if shortest > LEAST_SECONDS else "NOT over"
    first = rounds[0]["raw"]
    equal = len({total for each in totals.values() for total in each}) == 1
    told = "equal on all sides" if equal else "differ: " + "; ".join(f"{k} {v}" for k, v in totals.items())
    return {
        "title": "Engine: `mless run` against raw `vllm.LLM.generate`",
        "what": f"{first['samples']:,} requests with {first['prompt_tokens']:,} prompt tokens to SmolLM2 in float32: "
        "sums under three conditions, at most 128 tokens each, decoded greedily. Tokens/s from first request "
        "to last completion; median over the rounds, ratios within a round.",
        "rows": rows,
        "notes": [
            f"Generated tokens {told}: {totals[SIDES['raw']][0]:,} a run.",
            f"The shortest run generated for {shortest:.0f} s, {longer} {LEAST_SECONDS} s.",
            f"Both sides: at most {first['max_num_seqs']} sequences and {first['max_num_batched_tokens']:,} tokens "
            "a step.",
        ],
        "rounds": rounds,
    }


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
