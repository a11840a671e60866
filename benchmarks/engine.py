"""Speed of `mless run` and of its hooks, relative to raw `vllm.LLM.generate` on the same requests.

The model has the shape of one of the study's models, dummy weights, and SmolLM2's tokenizer without
an end of text, so that every completion has all its tokens. Prompts are those of MATH-500 with 55
slashes (MATH500_PATH names the file; without it they are the tests' problems). Sampling is on.

There are two engine starts. They load at the same time and are measured one after the other. The
plain one serves raw vLLM and `mless run` in turn. The other one has the hooks of interventions and
recording, which change the CUDA graphs. The prefix cache is emptied before each side. Seconds run
from the first request to the last completion. The client's CPU time is that of its process, without
the engine's and the graders' processes, until the last completion is graded.

    python -m benchmarks.engine [--small] [--shape NAME]
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks.report import Figures, Row, row
from benchmarks.runs import read_json, run_benchmark, run_logged, say, write_json
from harness.errors import EngineError
from harness.models import resolve_model

SHAPES = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
SESSIONS = ("plain", "hooks")
"""The engine starts."""
REQUESTS, TOKENS = 256, 512
"""Requests of each side, which all run at once, and the tokens of each completion."""
SMALL_REQUESTS, SMALL_TOKENS = 8, 32
CONTEXT = 2048
"""Tokens of a prompt and its completion at most."""
AVERAGE_PROMPT = 400
"""Tokens of a prompt, rounded up: for the size of the cache."""
GPU_SHARE = 0.45
"""Share of the GPU's memory that has to be free as each of the two engines starts."""
MOST_SECONDS = {"mless": 1.03, "hooks": 1.03, "recording": 1.15, "intervention": 1.25}
"""Targets on a GPU: seconds relative to raw vLLM, by the kind of a side."""
MOST_CLIENT_US = 5.0
"""Target: the client's CPU time for a token of `mless run`, in microseconds."""


def measure(folder: Path, small: bool, shape: str = "tiny") -> Figures:
    """All figures, JSON-ready."""
    requests, tokens = (SMALL_REQUESTS, SMALL_TOKENS) if small else (REQUESTS, TOKENS)
    make_model(SHAPES[shape], folder / "model")
    settings = run_settings(SHAPES[shape], folder / "model", tokens)
    (folder / "config.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    with ThreadPoolExecutor() as pool:
        errors = list(pool.map(lambda kind: run_session(kind, folder, requests), SESSIONS))
    return describe(shape, folder, [error for error in errors if error])


def make_model(values: Mapping[str, Any], folder: Path) -> None:
    """A model folder without weights, whose tokenizer has no token that ends a text."""
    smollm2 = Path(resolve_model("smollm2"))
    folder.mkdir()
    write_json(folder / "config.json", {**values, "max_position_embeddings": CONTEXT})
    shutil.copy(smollm2 / "tokenizer.json", folder)
    tokenizer = read_json(smollm2 / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", {**tokenizer, "eos_token": None})


def run_settings(values: Mapping[str, Any], model: Path, tokens: int) -> dict[str, Any]:
    """The run config of all sides."""
    import torch

    arguments: dict[str, Any] = {
        "pretrained": str(model),
        "load_format": "dummy",
        "dtype": "float32",
        "max_model_len": CONTEXT,
        "max_num_seqs": REQUESTS,
    }
    if not torch.cuda.is_available():
        arguments["enforce_eager"] = True  # compiling pays off on larger models only
    else:
        arguments["dtype"] = "bfloat16"
        arguments["gpu_memory_utilization"] = GPU_SHARE
        # vLLM cannot measure what memory is free while another engine starts beside it
        arguments["kv_cache_memory_bytes"] = cache_bytes(values)
    redistribution = {"kind": "redistribute", "layer": 1, "share": 0.1}
    return {
        "name": "speed",
        "model": {"arguments": arguments},
        "dataset": "math500",
        "conditions": [
            "wo",
            "mless",
            {"causes": "mless", "layer": 1},
            {"name": "redistributed", "unit": "/", "intervention": redistribution},
        ],
        "layouts": ["raw"],
        "sampling": {"temperature": 0.7, "top_p": 0.95},
        "max_gen_toks": tokens,
    }


def cache_bytes(values: Mapping[str, Any]) -> int:
    """The size of the cache in bfloat16 that all requests of a side need at once."""
    heads = values["num_attention_heads"]
    head_size = values.get("head_dim", values["hidden_size"] // heads)
    per_token = 4 * values["num_hidden_layers"] * values["num_key_value_heads"] * head_size
    return int(REQUESTS * (AVERAGE_PROMPT + TOKENS) * per_token)


def run_session(kind: str, folder: Path, requests: int) -> str:
    """Run one engine start to its end; returns why it failed, empty if it did not."""
    command = [sys.executable, "-m", "benchmarks.engine_session", kind, str(folder), str(requests)]
    try:
        run_logged(command, folder / f"{kind}.log")
    except EngineError as error:
        say(str(error))
        return f"The session `{kind}` failed: {str(error).splitlines()[-1]}"
    finally:
        (folder / f"{kind}.ended").touch()
    return ""


def describe(shape: str, folder: Path, errors: Sequence[str]) -> Figures:
    """The figures of all sides that were measured; a session that failed is named in a note.

    Raises:
        EngineError: raw vLLM, to which all are compared, was not measured.
    """
    paths = {kind: folder / f"{kind}.json" for kind in SESSIONS}
    sessions = {kind: read_json(path) for kind, path in paths.items() if path.exists()}
    sides: dict[str, list[dict[str, Any]]] = {}
    for session in sessions.values():
        for side in session["sides"]:
            sides.setdefault(side["name"], []).append(side)
    sides.pop("warm-up", None)
    if "raw vLLM" not in sides:
        raise EngineError(f"Raw vLLM was not measured. {' '.join(errors)}")
    raw = sides["raw vLLM"]
    plain = sessions["plain"]["engine"]
    loads = [f"{kind} {session['load_seconds']:.0f} s" for kind, session in sessions.items()]
    return {
        "title": f"Engine: `mless run` and its hooks relative to raw vLLM, {shape}",
        "what": f"{raw[0]['requests']} requests at once, {raw[0]['tokens']:,} tokens in all, "
        f"dummy weights in {plain['dtype']} on {plain['device']}. Ratios: seconds relative to raw "
        "vLLM. Seconds and tokens/s are means; each side's seconds follow.",
        "rows": [
            *(seconds_row(name, side, raw, plain["device"]) for name, side in sides.items()),
            *(client_row(name, sides[name]) for name in ("raw vLLM", "mless run") if name in sides),
        ],
        "notes": [f"Loading, both at the same time: {', '.join(loads)}.", *errors],
        "sessions": sessions,
    }


def average(repeats: Sequence[Mapping[str, Any]], name: str) -> float:
    """The mean of a figure over the repeats of a side."""
    return mean(repeat[name] for repeat in repeats)


def seconds_row(name: str, repeats: Sequence[Mapping[str, Any]], raw: Sequence[Mapping[str, Any]], device: str) -> Row:
    """The time that a side takes, relative to raw vLLM."""
    seconds = average(repeats, "seconds")
    speed = average(repeats, "tokens") / seconds
    full_speed = average(repeats, "full_tokens") / average(repeats, "full_seconds")
    listed = ", ".join(f"{repeat['seconds']:.2f}" for repeat in repeats)
    measured = f"{speed:,.0f} tokens/s, {full_speed:,.0f} while all requests run; {listed} s"
    ratio = seconds / average(raw, "seconds")
    most = MOST_SECONDS.get(repeats[0]["kind"])
    if most is None:
        return row(name, measured)
    if device == "cpu":
        return row(name, measured, ratio=ratio)
    return row(name, measured, ratio=ratio, target=f"at most {most}", met=ratio <= most)


def client_row(name: str, repeats: Sequence[Mapping[str, Any]]) -> Row:
    """The client's CPU time for a token."""
    client, full = average(repeats, "client_us"), average(repeats, "full_client_us")
    measured = (
        f"{client:.2f} us a token, of which vLLM's step {average(repeats, 'step_us'):.2f}; "
        f"{full:.2f} while all requests run"
    )
    if name == "raw vLLM":
        return row(f"client's CPU, {name}", measured)
    target = f"at most {MOST_CLIENT_US:g} us"
    return row(f"client's CPU, {name}", measured, target=target, met=client <= MOST_CLIENT_US)


if __name__ == "__main__":
    run_benchmark(__doc__, measure, shapes=tuple(SHAPES))
