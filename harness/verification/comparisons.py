"""Steps of `mless verify` that compare mless with others: Hugging Face, eager attention, raw vLLM.

The functions `measure_*` and `derive_*` are described in `steps`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

from harness.runs.folder import RECEIPT, read_samples
from harness.verification.model_under_test import PUBLISHED, Bench
from harness.verification.processes import read_json, run_logged, run_mless, run_side
from harness.verification.record import Finding, expect, expect_under

MODEL_CARD = "qwen2.5-math-1.5b-model_card"
"""The config whose speed is measured."""
PROMPTS, LAYERS = 20, 3
"""Prompts whose logits and attention are compared, and how many of the first layers are."""
COMPARED = ("wo", "mless", "mful")
"""Conditions that both mless and raw vLLM generate."""
CURVE_LIMIT = 1e-4
"""Largest difference of an average attention weight from eager attention."""
RAW_SHARE, LEAST_REQUESTS = 0.9, 1000
"""Least share of raw vLLM's tokens/s, with journal, grading and audit on. Fewer requests say nothing about it."""
RAY_SHARE = 0.9
"""Least share of the tokens/s of an engine in the run's own process that one engine in a Ray actor has."""


def measure_logits(bench: Bench, folder: Path) -> None:
    """Compute first-token log-probabilities by vLLM and by Hugging Face."""
    written, limit = folder / "logprobs.json", bench.at_most(PROMPTS)
    run_side("logits", bench.config(PUBLISHED), written, bench.log("logits"), bench.changes(), limit)


def derive_logits(folder: Path) -> list[Finding]:
    """How far the log-probabilities of the two sides are from each other."""
    from harness.verification.logit_check import LARGEST, MEAN, LogitCheck, Logprobs

    check = LogitCheck.of([Logprobs(**one) for one in read_json(folder / "logprobs.json")["prompts"]])
    return [
        Finding("prompts", check.prompts),
        expect_under("largest difference of a log-probability", check.largest, LARGEST, "nats"),
        expect_under("mean difference", check.mean, MEAN, "nats"),
        expect("prompts with the same first token", check.same_first, check.prompts),
    ]


def measure_probe(bench: Bench, folder: Path) -> None:
    """Compute average attention weights by the probe and by eager attention."""
    given = [bench.folder / PUBLISHED / "run", folder / "curves.npz", bench.at_most(PROMPTS), LAYERS]
    command = [sys.executable, "-m", "attention_probe.self_check", *map(str, given), bench.device or "cpu"]
    run_logged([*command, *filter(None, [bench.model])], bench.log("probe"))


def derive_probe(folder: Path) -> list[Finding]:
    """How far the probe's average attention weights are from eager attention's."""
    import numpy as np

    with np.load(folder / "curves.npz") as kept:
        ours, eager = (float(seconds) for seconds in kept["seconds"])
        pairs = [(kept[name], kept[f"{name[:-5]}/eager"]) for name in kept.files if name.endswith("/ours")]
    undefined = sum(int((np.isnan(a) != np.isnan(b)).sum()) for a, b in pairs)
    largest = max(float(np.nanmax(abs(a - b))) for a, b in pairs)
    layers, heads, _ = pairs[0][0].shape
    return [
        Finding(f"prompts, Layers 1 to {layers}, {heads} heads", len(pairs)),
        expect_under("largest difference of an average attention weight from eager attention", largest, CURVE_LIMIT),
        expect("weights undefined on one side only", undefined, 0),
        Finding("time of eager attention, in ours", round(eager / ours, 2), "times"),
    ]


def measure_throughput(bench: Bench, folder: Path) -> None:
    """Generate the same requests by `mless run` and by raw vLLM."""
    fixed = ["layouts=[raw]", "instruction=null", "replicates=1", "sampling=greedy"]
    changes = [*bench.changes(replay=True), f"conditions={json.dumps(COMPARED)}", *fixed]
    bench.run(MODEL_CARD, folder, changes)
    log, limit = bench.log("throughput-raw"), bench.settings.limit
    run_side("raw", bench.config(MODEL_CARD), folder / "raw.json", log, changes, limit)
    if importlib.util.find_spec("ray"):
        every = [*changes, "model.arguments.data_parallel_size=auto"]
        run_mless(bench.config(MODEL_CARD), folder / "engines", bench.log("throughput-engines"), every, limit)


def derive_throughput(folder: Path) -> list[Finding]:
    """Tokens per second of mless, of raw vLLM, and of an engine on each GPU."""
    samples = sum(1 for _ in read_samples(folder / "run"))
    timings = read_json(folder / "run" / RECEIPT)["timing"], read_json(folder / "raw.json")
    mless, raw = (timing["tokens"] / timing["generation_seconds"] for timing in timings)
    return [
        Finding("requests", samples),
        Finding("raw vLLM", round(raw, 1), "generated tokens/s"),
        Finding("mless run with journal, grading and audit", round(mless, 1), "generated tokens/s"),
        Finding(
            "its share of raw vLLM's speed",
            round(mless / raw, 3),
            expected=f"at least {RAW_SHARE}, over {LEAST_REQUESTS:,} requests",
            holds=mless / raw >= RAW_SHARE if samples >= LEAST_REQUESTS else None,
        ),
        *_derive_engines(folder / "engines", mless, counts=samples >= LEAST_REQUESTS),
    ]


def _derive_engines(run: Path, one: float, *, counts: bool) -> list[Finding]:
    """How many engines Ray carried, and their speed beside that of one engine in the run's own process."""
    if not run.is_dir():
        return [Finding("engines in Ray actors", "Ray is not installed")]
    receipt = read_json(run / RECEIPT)
    timing, facts = receipt["timing"], receipt["sessions"][-1]["engine"]
    share = timing["tokens"] / timing["generation_seconds"] / one
    return [
        Finding("engines in Ray actors", facts["engines"]),
        Finding(
            "their speed, in that of one engine without Ray",
            round(share, 3),
            "times",
            expected=f"at least {RAY_SHARE} for one engine, over {LEAST_REQUESTS:,} requests",
            holds=share >= RAY_SHARE if counts and facts["engines"] == 1 else None,
        ),
    ]
