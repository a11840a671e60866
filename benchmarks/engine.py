"""Speed of `mless run` and of its hooks, relative to raw `vllm.LLM.generate` on the same requests.

The model has the shape of one of the study's models, dummy weights, and SmolLM2's tokenizer without
an end of text, so that every completion has all its tokens. Prompts are those of MATH-500 with 55
slashes (MATH500_PATH names the file; without it they are the tests' problems). Sampling is on.

Two engines are started for each shape. All are loaded in parallel and then measured one at a time.
The engine `plain` serves raw vLLM and `mless run` in turn. The engine `hooks` has the hooks of
interventions and recording, which change the CUDA graphs. The prefix cache is emptied before each
side. Seconds run from the first request to the last completion. The client's CPU time is that of
its process, without the engine's and the graders' processes, until the last completion is graded.

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
ENGINES = ("plain", "hooks")
"""The engines of each shape."""
REQUESTS, TOKENS = 256, 512
"""Requests of each side, which all run at once, and the tokens of each completion."""
SMALL_REQUESTS, SMALL_TOKENS = 8, 32
AVERAGE_PROMPT_TOKENS = 400
"""Rounded up: for the size of the cache."""
GPU_SHARE = 0.2
"""Share of the GPU's memory that has to be free as each of several engines starts."""
MAX_RELATIVE_TIME = {"mless": 1.03, "hooks": 1.03, "recording": 1.15, "intervention": 1.25}
"""Targets on a GPU: seconds relative to raw vLLM, by the kind of a side."""
MAX_CLIENT_US = 5.0
"""Target: the client's CPU time for a token of `mless run`, in microseconds."""


@dataclass(frozen=True)
class SessionProcess:
    """A process that starts one engine of a shape and measures its sides."""

    shape: str
    engine: str
    folder: Path

    def run(self, requests: int) -> str:
        """Run it to its end; returns why it failed, empty if it did not."""
        command = [sys.executable, "-m", "benchmarks.engine_session", self.engine]
        command += [str(self.folder), str(requests)]
        try:
            run_logged(command, self.folder / f"{self.engine}.log")
        except EngineError as error:
            say(str(error))
            return f"{self.shape}, {self.engine}: failed. {str(error).splitlines()[-1]}"
        finally:
            (self.folder / f"{self.engine}.ended").touch()
        return ""

    def read_figures(self) -> dict[str, Any] | None:
        """What has been measured so far; None if nothing has."""
        path = self.folder / f"{self.engine}.json"
        return read_json(path) if path.exists() else None


def measure(folder: Path, small: bool, shapes: Sequence[str] = ("tiny",), engines: Sequence[str] = ENGINES) -> Figures:
    """All figures, JSON-ready."""
    requests, tokens = (SMALL_REQUESTS, SMALL_TOKENS) if small else (REQUESTS, TOKENS)
    processes = []
    for shape in shapes:
        make_model(SHAPES[shape], folder / shape / "model")
        settings = run_settings(SHAPES[shape], folder / shape / "model", tokens)
        config = folder / shape / "config.yaml"
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        processes += [SessionProcess(shape, engine, folder / shape) for engine in engines]
    with ThreadPoolExecutor(len(processes)) as pool:
        results = [pool.submit(process.run, requests) for process in processes]
        take_turns(processes)
        errors = [result.result() for result in results]
    return describe(processes, [error for error in errors if error])


def take_turns(processes: Sequence[SessionProcess]) -> None:
    """Let one process after another measure, as soon as all have loaded.

    Loading and compiling keep many cores busy, so nothing is measured meanwhile.
    """
    for process in processes:
        loaded, ended = (process.folder / f"{process.engine}.{end}" for end in ("loaded", "ended"))
        wait_for(loaded, ended)
    for process in processes:
        (process.folder / f"{process.engine}.go").touch()
        wait_for(process.folder / f"{process.engine}.ended")


def make_model(values: Mapping[str, Any], folder: Path) -> None:
    """A model folder without weights, whose tokenizer has no token that ends a text."""
    smollm2 = Path(resolve_model("smollm2"))
    folder.mkdir(parents=True)
    write_json(folder / "config.json", {**values, "max_position_embeddings": 2048})
    shutil.copy(smollm2 / "tokenizer.json", folder)
    tokenizer = read_json(smollm2 / "tokenizer_config.json")
    write_json(folder / "tokenizer_config.json", {**tokenizer, "eos_token": None})


def run_settings(values: Mapping[str, Any], model: Path, tokens: int) -> dict[str, Any]:
    """The run config of all sides."""
    import torch

    settings: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
    settings["max_gen_toks"] = tokens
    arguments = settings["model"]["arguments"]
    arguments["pretrained"] = str(model)
    if torch.cuda.is_available():
        # vLLM cannot measure what memory is free while another engine starts
        size = cache_bytes(values)
        arguments |= {"kv_cache_memory_bytes": size, "gpu_memory_utilization": GPU_SHARE}
        arguments |= {"dtype": "bfloat16", "enforce_eager": False}
    return settings


def cache_bytes(values: Mapping[str, Any]) -> int:
    """The size of the cache in bfloat16 that all requests of a side need at once."""
    head_size = values.get("head_dim", values["hidden_size"] // values["num_attention_heads"])
    # keys and values, two bytes each
    per_token = 2 * 2 * values["num_hidden_layers"] * values["num_key_value_heads"] * head_size
    return int(REQUESTS * (AVERAGE_PROMPT_TOKENS + TOKENS) * per_token)


def describe(processes: Sequence[SessionProcess], errors: Sequence[str]) -> Figures:
    """The figures of all sides that were measured; a process that failed is named in a note.

    Raises:
        EngineError: raw vLLM was measured with no shape.
    """
    sessions = []
    for process in processes:
        figures = process.read_figures()
        if figures:
            sessions.append({"shape": process.shape, "engine": process.engine, **figures})
    rows: list[Row] = []
    for shape in dict.fromkeys(session["shape"] for session in sessions):
        sides: dict[str, list[Side]] = {}
        for session in sessions:
            if session["shape"] == shape:
                for side in session["sides"]:
                    sides.setdefault(side["name"], []).append(side)
        rows += shape_rows(shape, sides)
    if not rows:
        raise EngineError(f"Raw vLLM was not measured. {' '.join(errors)}")
    loads = [f"{session['shape']}, {session['engine']}: {session['load_seconds']:.0f} s" for session in sessions]
    facts, side = sessions[0]["facts"], sessions[0]["sides"][0]
    machine = "On a CPU" if facts["device"] == "cpu" else "On a GPU"
    return {
        "title": f"{machine}: `mless run` and its hooks relative to raw vLLM",
        "what": f"Each side: {side['requests']} requests at once, {side['tokens']:,} tokens, "
        f"sampled; dummy weights in {facts['dtype']} on {facts['device']}. Ratios: seconds "
        "relative to raw vLLM in the engine without hooks.",
        "rows": rows,
        "notes": [f"Loading, all at the same time: {'; '.join(loads)}.", *errors],
        "sessions": sessions,
    }


def shape_rows(shape: str, sides: Mapping[str, Sequence[Side]]) -> list[Row]:
    """The rows of one shape: the time of each side, then the client's CPU time."""
    if "raw vLLM" not in sides:
        return []
    names = [name for name in sides if name != "warm-up"]
    rows = [seconds_row(f"{shape}: {name}", sides[name], sides["raw vLLM"]) for name in names]
    for name in ("raw vLLM", "mless run"):
        if name in sides:
            rows.append(client_row(f"{shape}: client's CPU, {name}", sides[name]))
    return rows


def average(repeats: Sequence[Side], name: str) -> float:
    """The mean of a figure over the repeats of a side."""
    return mean(repeat[name] for repeat in repeats)


def seconds_row(measure: str, repeats: Sequence[Side], raw: Sequence[Side]) -> Row:
    """The time that a side takes, relative to raw vLLM."""
    seconds = average(repeats, "seconds")
    speed = average(repeats, "tokens") / seconds
    full_speed = average(repeats, "full_tokens") / average(repeats, "full_seconds")
    listed = ", ".join(f"{repeat['seconds']:.2f}" for repeat in repeats)
    text = f"{listed} s; {speed:,.0f} tokens/s, {full_speed:,.0f} while all requests run"
    max_ratio = MAX_RELATIVE_TIME.get(repeats[0]["kind"])
    if max_ratio is None:
        return row(measure, text)
    ratio = seconds / average(raw, "seconds")
    return row(measure, text, ratio=ratio, target=f"at most {max_ratio}", met=ratio <= max_ratio)


def client_row(measure: str, repeats: Sequence[Side]) -> Row:
    """The client's CPU time for a token."""
    client, full = average(repeats, "client_us"), average(repeats, "full_client_us")
    text = (
        f"{client:.2f} us a token, of which vLLM's step {average(repeats, 'step_us'):.2f}; "
        f"{full:.2f} while all requests run"
    )
    if repeats[0]["kind"] == "raw":
        return row(measure, text)
    target = f"at most {MAX_CLIENT_US:g} us"
    return row(measure, text, target=target, met=client <= MAX_CLIENT_US)


if __name__ == "__main__":
    run_benchmark(__doc__, measure, shapes=tuple(SHAPES))
