"""Generation speed of `mless run` (journal and grading on) against raw `vllm.LLM.generate` on the same requests.

Both sides get the same prompt token ids, sampling parameters, seeds and engine arguments, each in a fresh process,
alternately. Timed is generation alone, from the first request added to the last completion: the engine is loaded, and
for `mless run` every completion is journaled and graded on the way. Decoding is greedy over the bundled problems
several times over, so that both sides should generate equally many tokens; both totals are reported.

    python -m benchmarks.engine [--small] [--pairs 2] [--copies 9] [--set KEY=VALUE]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row, section
from benchmarks.runs import CONFIG, base_overrides, repeated_problems, run_mless, run_raw, say, work_folder, write_json

TARGET_CPU = 0.90
LEAST_SECONDS = 60
SIDES = {
    "raw": "raw vLLM",
    "graded": "mless run, journal and grading",
    "audited": "mless run, journal, grading and audit",
}


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a few problems, to see that it works")
    parser.add_argument("--pairs", type=int, help="rounds, each of one run a side (2; small 1)")
    parser.add_argument("--copies", type=int, default=9, help="times that each bundled problem is asked")
    parser.add_argument("--target", type=float, default=TARGET_CPU, help="least share of the raw tokens/s")
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="of the run config, both sides")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    figures = measure(
        arguments.overrides,
        pairs=arguments.pairs or (1 if arguments.small else 2),
        copies=arguments.copies,
        target=arguments.target,
        small=arguments.small,
    )
    write_json(arguments.json, figures)
    print(section(figures))


def measure(overrides: Sequence[str], *, pairs: int, copies: int, target: float, small: bool = False) -> Figures:
    """All figures, JSON-ready. Every second round goes backwards, so that a steady drift of the machine cancels."""
    folder = work_folder(small) / "engine"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    copies = 1 if small else copies
    problems = repeated_problems(folder, copies=copies, limit=8 if small else None)
    dataset = f"dataset={json.dumps({'path': str(problems)})}"
    common = [*base_overrides(), dataset, *overrides]
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in range(pairs):
        done = {}
        for side in list(SIDES)[:: 1 if number % 2 == 0 else -1]:
            say(f"engine: round {number + 1} of {pairs}, {SIDES[side]}")
            done[side] = _one(side, common, folder, f"{side}-{number + 1}")
            say(f"engine: {done[side]['tokens']:,} tokens, {done[side]['tokens_per_second']:,} tokens/s")
        rounds.append(done)
    return _figures(rounds, target=target, copies=copies)


def _one(side: str, overrides: Sequence[str], folder: Path, name: str) -> dict[str, Any]:
    """One run of one side in a fresh process."""
    log = folder / f"{name}.log"
    if side != "raw":
        return run_mless([*overrides, f"audit={json.dumps(side == 'audited')}"], folder / name, log)
    return run_raw(CONFIG, folder / f"{name}.json", log, overrides)


def _figures(rounds: list[dict[str, dict[str, Any]]], *, target: float, copies: int) -> Figures:
    raw = statistics.median(one["raw"]["tokens_per_second"] for one in rounds)
    rows = [row(SIDES["raw"], f"{raw:,.0f} tokens/s")]
    for side in ("graded", "audited"):
        ratios = [one[side]["tokens_per_second"] / one["raw"]["tokens_per_second"] for one in rounds]
        ratio = statistics.median(ratios)
        speed = statistics.median(one[side]["tokens_per_second"] for one in rounds)
        each = ", ".join(f"{one:.3f}" for one in ratios)
        rows.append(
            row(
                SIDES[side],
                f"{speed:,.0f} tokens/s; each round {each}",
                target=f"at least {target} of raw tokens/s",
                ratio=ratio,
                met=ratio >= target,
            )
        )
        late = [one[side]["grading_after_last_completion_seconds"] for one in rounds]
        rows.append(row(f"{SIDES[side]}: grading left after the last completion", f"{max(late):.2f} s at most"))
    totals = {SIDES[side]: sorted({one[side]["tokens"] for one in rounds}) for side in SIDES}
    shortest = min(one[side]["generation_seconds"] for one in rounds for side in SIDES)
    longer = "over" if shortest > LEAST_SECONDS else "NOT over"
    first = rounds[0]["raw"]
    equal = len({total for each in totals.values() for total in each}) == 1
    told = "equal on all sides" if equal else "differ: " + "; ".join(f"{k} {v}" for k, v in totals.items())
    return {
        "title": "Engine: `mless run` against raw `vllm.LLM.generate`",
        "what": f"{first['samples']:,} requests with {first['prompt_tokens']:,} prompt tokens: three conditions, each "
        f"bundled problem {copies} times, decoded greedily so that the work is the same. Tokens/s of generation alone, "
        "from the first request added to the last completion; median over the rounds, ratios within a round.",
        "rows": rows,
        "notes": [
            f"Generated tokens {told}: {totals[SIDES['raw']][0]:,} a run.",
            f"The shortest run generated for {shortest:.0f} s, {longer} {LEAST_SECONDS} s.",
            "Engine arguments are the same on both sides; raw vLLM made of them at most "
            f"{first['max_num_seqs']} sequences and {first['max_num_batched_tokens']:,} tokens a step.",
            "Repeats of a prompt find its prefix cached, on both sides.",
        ],
        "rounds": rounds,
    }


if __name__ == "__main__":
    main()
