"""`mless run` against raw `vllm.LLM.generate` on the same requests: tokens a second, and what the client costs.

A tiny model makes the client most of the work: it is the tests' model without the token that ends a text, so that
every completion has all its tokens and the engine is full to the end. Both sides get the same token ids, sampling
parameters, seeds and engine arguments, each in a fresh process: one to warm up, then raw, mless, mless, raw. For
`mless run` every completion is journaled and graded on the way. Timed is what lies between the first step of the engine
and the last. The client's CPU seconds are those of its process, without the engine's and the graders'; those of
`mless run` count until the last completion is graded. How much of them vLLM's own step takes stands beside.

    python -m benchmarks.engine [--small]
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row
from benchmarks.runs import CONFIG, TOY, alternate, read_json, run_benchmark, run_logged, write_json

ROUNDS = 2
"""Runs of each side; the second round runs backwards."""
SLOTS, SAMPLES, TOKENS = 256, 8, 1024
"""Sequences at once, samples a problem, and tokens of each completion."""
LEAST_WALL, MOST_CPU = 0.97, 0.6
"""Targets: of raw vLLM's tokens a second, and of its client's CPU seconds a token."""
SIDES = {"raw": "raw vLLM", "mless": "mless run, with journal, grading and audit"}


def measure(folder: Path, small: bool) -> Figures:
    """All figures, JSON-ready."""
    model = shutil.copytree(TOY / "model", folder / "endless")
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        known = read_json(model / name)
        write_json(model / name, known | dict.fromkeys({"eos_token_id", "eos_token"} & known.keys()))
    changes: dict[str, Any] = {
        "conditions": ["wo"],
        "model.arguments.pretrained": str(model),
        "model.arguments.max_num_seqs": SLOTS,
        "sampling": {"temperature": 0.7},
        "samples_per_problem": SAMPLES,
        "max_gen_toks": TOKENS,
    }
    overrides = [f"{key}={json.dumps(value)}" for key, value in changes.items()]

    def side(kind: str, name: str) -> dict[str, Any]:
        written = folder / f"{name}.json"
        limit = "4" if small else str(2 * SLOTS // SAMPLES)
        command = [sys.executable, "-m", "benchmarks.runs", kind, str(written), str(CONFIG), limit, *overrides]
        run_logged(command, folder / f"{name}.log")
        return dict(read_json(written))

    sides = {kind: partial(side, kind) for kind in SIDES}
    sides["raw"]("warm-up")
    return _figures(alternate(sides, 1 if small else ROUNDS))


def _figures(rounds: list[dict[str, dict[str, Any]]]) -> Figures:
    rows = []
    for measure, unit, target, key in (
        ("tokens a second", "tokens/s", f"at least {LEAST_WALL} of raw", "tokens_per_second"),
        ("the client's CPU", "us a token", f"at most {MOST_CPU} of raw", "client_us_per_token"),
    ):
        found = {side: [one[side][key] for one in rounds] for side in SIDES}
        ratios = [ours / raw for ours, raw in zip(found["mless"], found["raw"], strict=True)]
        ratio = statistics.mean(ratios)
        met = ratio >= LEAST_WALL if key == "tokens_per_second" else ratio <= MOST_CPU
        for side, name in SIDES.items():
            middle = statistics.mean(found[side])
            each = "; ratios " + ", ".join(f"{one:.3f}" for one in ratios) if side == "mless" else ""
            said = f"{middle:,.{0 if middle > 100 else 2}f} {unit}{each}"
            more: dict[str, Any] = {"target": target, "ratio": ratio, "met": met} if side == "mless" else {}
            rows.append(row(f"{measure}, {name}", said, **more))
    raw, ours = (statistics.mean(one[side]["step_us_per_token"] for one in rounds) for side in SIDES)
    first = rounds[0]["raw"]
    full = min(one[side]["full"] for one in rounds for side in SIDES)
    return {
        "title": "Engine: `mless run` against raw `vllm.LLM.generate`",
        "what": f"{first['samples']:,} requests, {SAMPLES} samples a problem with a seed each, to the tests' model of "
        f"2 million parameters in float32 on {first['device']}, at most {SLOTS} "
        f"sequences at once, {TOKENS:,} tokens each. Means of {len(rounds)} rounds, ratios within a round.",
        "rows": rows,
        "notes": [
            f"Generated tokens of a run: {first['tokens']:,}.",
            f"All {SLOTS} sequences were busy during at least {full:.0%} of each run, so the speed of a full engine "
            "is that of the whole.",
            f"vLLM's own step takes {raw:.2f} us of it when called by hand, {ours:.2f} us in `mless run`.",
        ],
        "rounds": rounds,
    }


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
