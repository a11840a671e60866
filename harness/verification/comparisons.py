"""Steps of `mless verify` that compare mless with others: Hugging Face, eager attention, raw vLLM, stock lm-eval.

The functions `measure_*` and `derive_*` are described in `steps`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from harness.runs.folder import RECEIPT, read_samples
from harness.verification.bench import PUBLISHED, Bench
from harness.verification.processes import read_json, run_lm_eval, run_logged, run_side, write_json
from harness.verification.record import Finding, expect, expect_under

MODEL_CARD = "qwen2.5-math-1.5b-model_card"
"""The config whose speed is measured."""
PROMPTS, LAYERS = 20, 3
"""Prompts whose logits and attention are compared, and how many of the first layers are."""
COMPARED = ("wo", "mless", "mful")
"""Conditions that mless, raw vLLM and stock lm-eval all generate."""
CURVE_LIMIT = 1e-4
"""Largest difference of an average attention weight from eager attention."""
RAW_SHARE, LEAST_REQUESTS = 0.9, 1000
"""Least share of raw vLLM's tokens/s, with journal, grading and audit on. Fewer requests say nothing about it."""


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
    command = [sys.executable, "-m", "attention_probe.capture_beside_eager", *map(str, given), bench.device or "cpu"]
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
    """Generate the same requests by `mless run`, by raw vLLM and by stock lm-eval."""
    from harness.engines.vllm_arguments import fit_to_cpu
    from harness.experiment.config import load_config

    config, limit = bench.config(MODEL_CARD), bench.settings.limit
    fixed = ["layouts=[raw]", "instruction=null", "replicates=1", "sampling=greedy"]
    changes = [*bench.changes(replay=True), f"conditions={json.dumps(COMPARED)}", *fixed]
    ours = bench.run(MODEL_CARD, folder, changes)
    raw = run_side("raw", config, folder / "raw.json", bench.log("throughput-raw"), changes, limit)
    (folder / "raw.json").unlink()
    sides = {"wall_seconds": ours["wall_seconds"], "raw": raw}
    if not bench.settings.random_weights:  # lm-eval would generate to the limit of its tasks
        arguments = load_config(config, changes).model_arguments()
        if bench.device == "cpu":
            fit_to_cpu(arguments, sampled=False)
        sides["stock"] = run_lm_eval(
            [f"math500_{condition}" for condition in COMPARED],
            arguments,
            folder / "stock",
            bench.log("throughput-stock"),
            batch_size="auto",
            data=bench.data,
            limit=limit,
        )
        shutil.rmtree(folder / "stock")
    write_json(folder / "sides.json", sides)


def derive_throughput(folder: Path) -> list[Finding]:
    """Tokens per second of mless and raw vLLM, and the time of stock lm-eval in ours."""
    sides = read_json(folder / "sides.json")
    samples = sum(1 for _ in read_samples(folder / "run"))
    ours = {**read_json(folder / "run" / RECEIPT)["timing"], "wall_seconds": sides["wall_seconds"]}
    mless, raw = (one["tokens"] / one["generation_seconds"] for one in (ours, sides["raw"]))
    stock = []
    if "stock" in sides:
        for part, key in (("generation", "generation_seconds"), ("the whole command", "wall_seconds")):
            ratio = round(sides["stock"][key] / ours[key], 2)
            stock.append(Finding(f"stock lm-eval at its best, {part}", ratio, "times mless's"))
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
        *stock,
    ]
