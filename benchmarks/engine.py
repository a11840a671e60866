"""Speed of `mless run` and of its hooks, relative to raw `vllm.LLM.generate` on the same requests.

The model has the shape of one of the study's models, dummy weights, and SmolLM2's tokenizer without
an end of text, so that every completion has all its tokens. Prompts are those of MATH-500 with 55
slashes (MATH500_PATH names the file; without it they are the tests' problems). Sampling is on.

The engines of a shape are open at once. The engine `plain` serves raw vLLM and `mless run`. The
engine `hooks` has the hooks of interventions and recording, which change the CUDA graphs; its sides
have no journal and no grading. Where Triton is installed, `V2 hooks` has those of
benchmarks/v2_hooks. All sides are measured in turn, twice; raw vLLM is the first and the
last of all. A ratio that is not larger than that of its own slowest and fastest side is drift. The
prefix cache is emptied before each side. Seconds run from the first request to the last completion.
The client's CPU time is that of its process, without the engines' and the graders' processes, until
the last completion is graded.

    python -m benchmarks.engine [--small] [--shape NAME ...]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks.engine_session import run_session
from benchmarks.report import Figures, Row, row
from benchmarks.runs import QUIET, SHAPES, read_json, run_benchmark, write_json
from harness.smollm2_model import resolve_model

Side = Mapping[str, Any]
"""The figures of one side, as `engine_session` writes them."""
REQUESTS, TOKENS, CPU_TOKENS = 256, 512, 64
"""Requests of a side, which all run at once, and tokens of a completion on a GPU and on a CPU."""
SMALL_REQUESTS, SMALL_TOKENS = 8, 32
MAX_RELATIVE_TIME = {"mless": 1.03, "v2_hooks": 1.03, "recording": 1.15, "intervention": 1.25}
"""Targets on a GPU: seconds relative to raw vLLM, by the kind of a side.

Other unused hooks have none: their engine has vLLM's V1 runner, and raw vLLM has the V2 runner."""
MAX_CLIENT_US = 5.0
"""Target: the client's CPU time for a token of `mless run`, in microseconds."""


def measure(folder: Path, small: bool, shapes: Sequence[str] = ("tiny",)) -> Figures:
    """All figures, JSON-ready."""
    import torch

    is_gpu = torch.cuda.is_available()
    requests, tokens = REQUESTS, TOKENS if is_gpu else CPU_TOKENS
    if small:
        requests, tokens = SMALL_REQUESTS, SMALL_TOKENS
    os.environ |= {**QUIET, "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # for `record_layers`
    sessions = []
    for shape in shapes:
        shape_folder = folder / shape
        make_model(SHAPES[shape], shape_folder / "model")
        settings = run_settings(shape_folder / "model", tokens, is_gpu=is_gpu)
        (shape_folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        sessions.append({"shape": shape, **run_session(shape_folder, requests)})
    return describe(sessions)


def make_model(values: Mapping[str, Any], folder: Path) -> None:
    """A model folder without weights, whose tokenizer has no token that ends a text."""
    smollm2 = Path(resolve_model("smollm2"))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**values, "max_position_embeddings": 2048})
    shutil.copy(smollm2 / "tokenizer.json", folder)
    tokenizer = read_json(smollm2 / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", {**tokenizer, "eos_token": None})


def run_settings(model: Path, tokens: int, *, is_gpu: bool) -> dict[str, Any]:
    """The run config of all sides."""
    settings: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    settings["max_gen_toks"] = tokens
    arguments = settings["model"]["model_args"]
    arguments["pretrained"] = str(model)
    if is_gpu:
        # three engines share the card
        arguments |= {"dtype": "bfloat16", "enforce_eager": False, "gpu_memory_utilization": 0.3}
        settings["gen_kwargs"]["top_p"] = 0.95  # on a CPU the sort would take most of the time
    return settings


def describe(sessions: Sequence[Mapping[str, Any]]) -> Figures:
    """The figures of all sides, and their rows."""
    rows: list[Row] = []
    loads = []
    for session in sessions:
        sides: dict[str, list[Side]] = {}
        for side in session["sides"]:
            sides.setdefault(side["name"], []).append(side)
        rows += shape_rows(session["shape"], sides)
        for engine, seconds in session["load_seconds"].items():
            loads.append(f"{session['shape']}, {engine}: {seconds:.0f} s")
    first = sessions[0]
    facts, side = first["facts"], first["sides"][0]
    machine = "On a CPU" if facts["device"] == "cpu" else "On a GPU"
    return {
        "title": f"{machine}: `mless run` and its hooks relative to raw vLLM",
        "what": f"Each side: {side['requests']} requests at once, prompts of {first['dataset']} "
        f"({first['prompt_tokens']:.0f} tokens on average), {side['tokens']:,} tokens generated, "
        f"sampled; dummy weights in {facts['dtype']} on {facts['device']}. Ratios: the "
        "fastest time relative to that of raw vLLM in the engine without hooks, which is greedy "
        "too where a side is.",
        "rows": rows,
        "notes": [f"Loading: {'; '.join(loads)}."],
        "sessions": sessions,
    }


def shape_rows(shape: str, sides: Mapping[str, Sequence[Side]]) -> list[Row]:
    """The rows of one shape: the time of each side, then the client's CPU time."""
    rows = []
    for name, repeats in sides.items():
        if name != "warm-up":
            raw = sides.get(repeats[0]["reference"], ())
            rows.append(seconds_row(f"{shape}: {name}", repeats, raw))
    for name in ("raw vLLM", "mless run"):
        rows.append(client_row(f"{shape}: client's CPU, {name}", sides[name]))
    return rows


def average(repeats: Sequence[Side], name: str) -> float:
    """The mean of a figure over the repeats of a side."""
    return mean(repeat[name] for repeat in repeats)


def seconds_row(measure: str, repeats: Sequence[Side], raw: Sequence[Side]) -> Row:
    """The time that a side takes, relative to raw vLLM if the two are told apart.

    The fastest repeats are compared, because kernels are compiled in the first ones.
    """
    seconds, raw_seconds = ([repeat["seconds"] for repeat in side] for side in (repeats, raw))
    listed = ", ".join(f"{value:.2f}" for value in seconds)
    text = f"{listed} s; {repeats[0]['tokens'] / min(seconds):,.0f} tokens/s"
    if not raw:
        return row(measure, text)
    max_ratio = MAX_RELATIVE_TIME.get(repeats[0]["kind"])
    target = f"at most {max_ratio}" if max_ratio else ""
    ratio = min(seconds) / min(raw_seconds)
    spread = max(raw_seconds) / min(raw_seconds)
    text += f"; raw against raw {spread:.2f}"
    if max(ratio, 1 / ratio) <= spread:
        return row(measure, f"{text}: not told apart from drift", target=target)
    met = ratio <= max_ratio if max_ratio else None
    return row(measure, text, ratio=ratio, target=target, met=met)


def client_row(measure: str, repeats: Sequence[Side]) -> Row:
    """The client's CPU time for a token and for a sample."""
    client = average(repeats, "client_us")
    sample_us = client * average(repeats, "tokens") / average(repeats, "requests")
    text = (
        f"{sample_us:,.0f} us a sample; {client:.2f} us a token, of which vLLM's step "
        f"{average(repeats, 'step_us'):.2f}"
    )
    if repeats[0]["kind"] == "raw":
        return row(measure, text)
    target = f"at most {MAX_CLIENT_US:g} us"
    return row(measure, text, target=target, met=client <= MAX_CLIENT_US)


if __name__ == "__main__":
    run_benchmark(__doc__, measure, shapes=tuple(SHAPES))
