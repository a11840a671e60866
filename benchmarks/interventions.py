"""What interventions and recording cost: the same prompts with and without hooks, and under each intervention.

SmolLM2 answers products with up to 64 tokens each, all prompts of a condition at once. Seconds are those of an engine
that has loaded; prompts are computed anew each time. One engine has no hooks; the other one's are in Layers 1 and 4 to
10, as in configs/runs/causes.yaml; a third records attention in all layers, of every prompt. The conditions take turns.

    python -m benchmarks.interventions [--small]
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report import Figures, row
from benchmarks.runs import run_benchmark, say
from harness.constants import QUERY_SETS
from harness.engines.interventions.checks import ask_reference, opened_layers
from harness.engines.vllm import VLLMEngine
from harness.experiment.config import RunConfig
from harness.experiment.plan import Request, make_plan, make_requests

ROUNDS, PROMPTS, TOKENS = 5, 40, 64
CONDITIONS = [
    "wo",
    "mless",
    {"causes": "mless", "layer": 1},
    {"causes": "mless", "layers": "4-10"},
    {"name": "arm", "intervention": {"kind": "redistribute", "layer": 1, "share": 0.1}},
    {"name": "arm-random", "intervention": {"kind": "redistribute", "layer": 1, "share": 0.1, "sham": "random"}},
]
SHOWN = ("mless", "mless-gap", "mless-masked", "mless-layer-1", "mless-4-10-masked", "arm", "arm-random")


def measure(folder: Path, small: bool) -> Figures:
    """All figures, JSON-ready."""
    model = {"pretrained": "smollm2", "dtype": "float32", "max_model_len": 512, "enforce_eager": True}
    settings = RunConfig.model_validate(
        {"name": "cost", "model": {"arguments": model}, "dataset": {"make": "products"}, "conditions": CONDITIONS}
        | {"layouts": ["raw"], "max_gen_toks": TOKENS}
    )
    plan = make_plan(settings, limit=4 if small else PROMPTS)
    asked: dict[str, list[Request]] = {}
    for one in make_requests(plan, settings.resolve_sampling(None)):
        asked.setdefault(plan.arms[one.task].condition.name, []).append(one)
    reference = ask_reference(plan, [one for several in asked.values() for one in several], folder)
    hooks = {"interventions": {"layers": opened_layers(settings), "reference": reference}}
    rounds = 1 if small else ROUNDS
    bare = time_conditions(settings.model_arguments(), {"wo": asked["wo"]}, rounds)["wo"]
    found = time_conditions(settings.model_arguments() | hooks, {name: asked[name] for name in ("wo", *SHOWN)}, rounds)
    plain = {"64 tokens each": asked["mless"], "prompts alone": [_one_token(one) for one in asked["mless"]]}
    both = plain | {f"{name}, recorded": [_recorded(one) for one in several] for name, several in plain.items()}
    all_layers = {"interventions": {"layers": {"attention": [], "activations": [], "recorded": "all"}}}
    recorded = time_conditions(settings.model_arguments() | all_layers, both, rounds)
    rows = [
        row("wo, nothing installed", _said(bare)),
        row("wo, hooks that nobody uses", _said(found["wo"]), ratio=_ratio(found["wo"], bare)),
    ]
    for name in SHOWN:
        rows.append(row(name, _said(found[name]), ratio=_ratio(found[name], found["wo"])))
    for name in plain:
        without, with_it = recorded[name], recorded[f"{name}, recorded"]
        rows.append(row(f"mless, {name}", _said(without)))
        rows.append(row("  attention of all 30 layers recorded", _said(with_it), ratio=_ratio(with_it, without)))
    return {
        "title": "Interventions",
        "what": f"{len(asked['wo'])} prompts of SmolLM2 in float32, at most {TOKENS} tokens each. "
        "Ratios are to `wo`, of recording to the same prompts without it.",
        "rows": rows,
        "notes": [],
    }


def time_conditions(arguments: dict[str, Any], asked: dict[str, list[Request]], rounds: int) -> dict[str, list[float]]:
    """Seconds [round] that one engine takes for all prompts of each condition; the first round warms it up."""
    engine = VLLMEngine(arguments, sampled=False)
    found: dict[str, list[float]] = {name: [] for name in asked}
    try:
        for number in range(rounds + 1):
            for name in list(asked)[:: 1 if number % 2 else -1]:
                engine._engine.reset_prefix_cache()
                started = time.monotonic()
                for _ in engine.stream(asked[name]):
                    pass
                found[name].append(time.monotonic() - started)
            say(f"round {number} of {rounds}")
    finally:
        engine.close()
    return {name: seconds[1:] for name, seconds in found.items()}


def _one_token(request: Request) -> Request:
    return replace(request, sampling=replace(request.sampling, max_tokens=1))


def _recorded(request: Request) -> Request:
    return replace(request, record=[[1] * len(request.prompt_token_ids or ())] * QUERY_SETS)


def _said(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s; {min(seconds):.2f} to {max(seconds):.2f}"


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
