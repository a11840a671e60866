"""What interventions and recording cost: the same prompts with and without hooks, and under each intervention.

SmolLM2 answers products with up to 64 tokens each, all prompts of a condition at once. Seconds are those of an engine
that has loaded; what it has cached is forgotten before each measurement. One engine has no hooks; another has them in
Layers 1 and 4 to 10, as in configs/runs/causes.yaml; two more record attention, of Layers 1 to 3 and of all, for every
prompt. The conditions take turns.

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
ANEW, RECORDED = "mless, each prompt computed anew", "mless, attention recorded"
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
    ways = {"mless, shared beginnings computed once": asked["mless"]}
    ways[ANEW] = [_anew(number, one) for number, one in enumerate(asked["mless"])]
    ways[RECORDED] = [_recorded(one) for one in asked["mless"]]
    recorded = {}
    for name, layers in (("Layers 1 to 3", [0, 1, 2]), ("all 30 layers", "all")):
        opened = {"interventions": {"layers": {"attention": [], "activations": [], "recorded": layers}}}
        recorded[name] = time_conditions(settings.model_arguments() | opened, ways, rounds)
    rows = [
        row("wo, nothing installed", _said(bare)),
        row("wo, hooks that nobody uses", _said(found["wo"]), ratio=_ratio(found["wo"], bare)),
    ]
    for name in SHOWN:
        rows.append(row(name, _said(found[name]), ratio=_ratio(found[name], found["wo"])))
    for name, seconds in recorded.items():
        shared, anew, with_it = seconds.values()
        rows.append(row(f"{name} open: {ANEW}", _said(anew), ratio=_ratio(anew, shared)))
        rows.append(row(f"{name} open: {RECORDED}", _said(with_it), ratio=_ratio(with_it, anew)))
    return {
        "title": "Interventions",
        "what": f"{len(asked['wo'])} prompts of SmolLM2 in float32, at most {TOKENS} tokens each. "
        "Ratios are to `wo`; of prompts computed anew, which recording needs, to the same prompts with their shared "
        "beginnings computed once; of recording to prompts computed anew.",
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


def _anew(number: int, request: Request) -> Request:
    """The request with an intervention in no layer, which no other has: so nothing of it is cached."""
    return replace(request, intervention={"kind": "filler", "layers": [], "number": number})


def _recorded(request: Request) -> Request:
    return replace(request, record=[[1] * len(request.prompt_token_ids or ())] * QUERY_SETS)


def _said(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s; {min(seconds):.2f} to {max(seconds):.2f}"


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return statistics.median(ours) / statistics.median(theirs)


if __name__ == "__main__":
    run_benchmark(__doc__, measure)
