"""Speed of `mless run` and of its hooks, relative to raw `vllm.LLM.generate` on the same requests.

The model has the shape of one of the study's models, dummy weights, and SmolLM2's tokenizer without
an end of text, so that every completion has all its tokens. Prompts are those of MATH-500 with 55
slashes (MATH500_PATH names the file; without it they are the tests' problems). Sampling is on.

Each shape has two engine starts. All load at the same time; then one after the other is measured.
The plain one serves raw vLLM and `mless run` in turn. The other one has the hooks of interventions and
recording, which change the CUDA graphs. The prefix cache is emptied before each side. Seconds run
from the first request to the last completion. The client's CPU time is that of its process, without
the engine's and the graders' processes, until the last completion is graded.

    python -m benchmarks.engine [--small] [--shape NAME ...]
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks.report import Figures, Row, row
from benchmarks.runs import SHAPES, read_json, run_benchmark, run_logged, say, wait_for, write_json
from harness.errors import EngineError
from harness.models import resolve_model

Side = Mapping[str, Any]
"""The figures of one side, as `engine_session` writes them."""
KINDS = ("plain", "hooks")
"""The engine starts of each shape."""
REQUESTS, TOKENS = 256, 512
"""Requests of each side, which all run at once, and the tokens of each completion."""
SMALL_REQUESTS, SMALL_TOKENS = 8, 32
CONTEXT = 2048
"""Tokens of a prompt and its completion at most."""
AVERAGE_PROMPT = 400
"""Tokens of a prompt, rounded up: for the size of the cache."""
GPU_SHARE = 0.2
"""Share of the GPU's memory that has to be free as each of several engines starts."""
MOST_SECONDS = {"mless": 1.03, "hooks": 1.03, "recording": 1.15, "intervention": 1.25}
"""Targets on a GPU: seconds relative to raw vLLM, by the kind of a side."""
MOST_CLIENT_US = 5.0
"""Target: the client's CPU time for a token of `mless run`, in microseconds."""


@dataclass(frozen=True)
class Session:
    """One engine start: a shape, and whether it has hooks."""

    shape: str
    kind: str
    folder: Path

    @property
    def figures(self) -> dict[str, Any] | None:
        """What the session has measured so far; None if nothing."""
        path = self.folder / f"{self.kind}.json"
        return read_json(path) if path.exists() else None

    def run(self, requests: int) -> str:
        """Run the session's process to its end; returns why it failed, empty if it did not."""
        command = [sys.executable, "-m", "benchmarks.engine_session", self.kind]
        command += [str(self.folder), str(requests)]
        try:
            run_logged(command, self.folder / f"{self.kind}.log")
        except EngineError as error:
            say(str(error))
            return f"{self.shape}, {self.kind}: failed. {str(error).splitlines()[-1]}"
        finally:
            (self.folder / f"{self.kind}.ended").touch()
        return ""


def measure(folder: Path, small: bool, shapes: Sequence[str] = ("tiny",), kinds: Sequence[str] = KINDS) -> Figures:
    """All figures, JSON-ready."""
    requests, tokens = (SMALL_REQUESTS, SMALL_TOKENS) if small else (REQUESTS, TOKENS)
    sessions = []
    for shape in shapes:
        (folder / shape).mkdir()
        make_model(SHAPES[shape], folder / shape / "model")
        settings = run_settings(SHAPES[shape], folder / shape / "model", tokens)
        config = folder / shape / "config.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        sessions += [Session(shape, kind, folder / shape) for kind in kinds]
    with ThreadPoolExecutor(len(sessions)) as pool:
        runs = [pool.submit(session.run, requests) for session in sessions]
        take_turns(sessions)
        errors = [error for run in runs if (error := run.result())]
    return describe(sessions, errors)


def take_turns(sessions: Sequence[Session]) -> None:
    """Let one session after another measure, as soon as all have loaded.

    Loading and compiling keep many cores busy, so nothing is measured meanwhile.
    """
    for session in sessions:
        paths = (session.folder / f"{session.kind}.{state}" for state in ("loaded", "ended"))
        wait_for(*paths)
    for session in sessions:
        (session.folder / f"{session.kind}.go").touch()
        wait_for(session.folder / f"{session.kind}.ended")


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


def describe(sessions: Sequence[Session], errors: Sequence[str]) -> Figures:
    """The figures of all sides that were measured; a session that failed is named in a note.

    Raises:
        EngineError: no session of raw vLLM and `mless run` came to its end.
    """
    measured = [(session, figures) for session in sessions if (figures := session.figures)]
    rows: list[Row] = []
    for shape in dict.fromkeys(session.shape for session, _ in measured):
        sides: dict[str, list[Side]] = {}
        for session, figures in measured:
            if session.shape == shape:
                for side in figures["sides"]:
                    sides.setdefault(side["name"], []).append(side)
        rows += shape_rows(shape, sides)
    if not rows:
        raise EngineError(f"Raw vLLM was not measured. {' '.join(errors)}")
    loads = [f"{session.shape}, {session.kind}: {figures['load_seconds']:.0f} s" for session, figures in measured]
    _, first = measured[0]
    side, engine = first["sides"][0], first["engine"]
    machine = "On a CPU" if engine["device"] == "cpu" else "On a GPU"
    return {
        "title": f"{machine}: `mless run` and its hooks relative to raw vLLM",
        "what": f"Each side: {side['requests']} requests at once, {side['tokens']:,} tokens, "
        f"sampled; dummy weights in {engine['dtype']} on {engine['device']}. Ratios: seconds "
        "relative to raw vLLM in the plain engine start.",
        "rows": rows,
        "notes": [f"Loading, all at the same time: {'; '.join(loads)}.", *errors],
        "sessions": [{"shape": session.shape, "kind": session.kind, **figures} for session, figures in measured],
    }


def shape_rows(shape: str, sides: Mapping[str, Sequence[Side]]) -> list[Row]:
    """The rows of one shape: the time of each side, then the client's CPU time."""
    raw = sides.get("raw vLLM")
    if not raw:
        return []
    names = [name for name in sides if name != "warm-up"]
    seconds = [seconds_row(f"{shape}: {name}", sides[name], raw) for name in names]
    clients = [name for name in ("raw vLLM", "mless run") if name in sides]
    return seconds + [client_row(f"{shape}: client's CPU, {name}", sides[name]) for name in clients]


def average(repeats: Sequence[Side], name: str) -> float:
    """The mean of a figure over the repeats of a side."""
    return mean(repeat[name] for repeat in repeats)


def seconds_row(measure: str, repeats: Sequence[Side], raw: Sequence[Side]) -> Row:
    """The time that a side takes, relative to raw vLLM."""
    seconds = average(repeats, "seconds")
    speed = average(repeats, "tokens") / seconds
    full_speed = average(repeats, "full_tokens") / average(repeats, "full_seconds")
    listed = ", ".join(f"{repeat['seconds']:.2f}" for repeat in repeats)
    measured = f"{listed} s; {speed:,.0f} tokens/s, {full_speed:,.0f} while all requests run"
    most = MOST_SECONDS.get(repeats[0]["kind"])
    if most is None:
        return row(measure, measured)
    ratio = seconds / average(raw, "seconds")
    return row(measure, measured, ratio=ratio, target=f"at most {most}", met=ratio <= most)


def client_row(measure: str, repeats: Sequence[Side]) -> Row:
    """The client's CPU time for a token."""
    client, full = average(repeats, "client_us"), average(repeats, "full_client_us")
    measured = (
        f"{client:.2f} us a token, of which vLLM's step {average(repeats, 'step_us'):.2f}; "
        f"{full:.2f} while all requests run"
    )
    if repeats[0]["kind"] == "raw":
        return row(measure, measured)
    target = f"at most {MOST_CLIENT_US:g} us"
    return row(measure, measured, target=target, met=client <= MOST_CLIENT_US)


if __name__ == "__main__":
    run_benchmark(__doc__, measure, shapes=tuple(SHAPES))
