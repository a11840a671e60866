"""The cost of the probe, relative to other ways to the same weights and to bare arithmetic.

A Qwen2.5-Math-1.5B with random weights reads a prompt of 2,048 tokens on one core; each figure is
from a fresh process. Then the command `mless probe` reads 500 problems in four conditions
with a Qwen2.5-Math-7B. MATH500_PATH names the file of MATH-500; without it the problems are
those of the tests.

    python -m benchmarks.probe [--small]
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.attention import peak_memory
from benchmarks.report import Figures, Row, row
from benchmarks.runs import (
    PROBLEMS,
    SHAPES,
    TEST_FOLDER,
    read_json,
    run_benchmark,
    run_logged,
    run_mless_here,
    say,
    write_json,
)
from harness.experiment.problems import PATH_VARIABLE

LENGTH, SMALL_LENGTH = 2048, 64
LAYERS = 3
ROUNDS = 3
"""The number of rounds. A round measures the probe, then the bare arithmetic.

A row has the smallest CPU time over the rounds.
"""

TARGET_LIMIT = 1.25
TARGET_CPU = 20
TARGET_MEMORY = 5
TARGET_LAYER_1 = 300
TARGET_COMMAND_SECONDS = 60
TARGET_COMMAND_BYTES = 4.5e9
CONDITIONS = "wo,mless,mful,random"

Measured = Mapping[str, Any]
"""The figures of one process, such as `cpu` (seconds) and `peak` (bytes)."""


def main() -> None:
    """Measure the benchmark, or one command of `mless` for it."""
    if sys.argv[1:2] == ["command"]:
        write_json(Path(sys.argv[2]), measure_command(sys.argv[3:]))
        return
    run_benchmark(__doc__, measure)


def measure(folder: Path, small: bool) -> Figures:
    """Measure all figures."""
    processes = _Processes(folder, small)
    length = SMALL_LENGTH if small else LENGTH
    rounds = [_measure_round(processes, length) for _ in range(1 if small else ROUNDS)]
    ways = {
        name: min((measured[name] for measured in rounds), key=itemgetter("cpu"))
        for name in rounds[0]
    }
    ways["full_eager"] = processes.way("full_eager", length)
    command = processes.command()
    return {
        "title": "Attention probe",
        "what": f"Qwen2.5-Math-1.5B with random weights in float32 on one core; {LAYERS} layers "
        "unless a row says otherwise. CPU: the least time of a few forward passes. Memory: the "
        "peak of the process, with weights.",
        "rows": [*_rows(length, ways), *_command_rows(command)],
        "notes": _notes(ways, command),
        "compared": ways,
        "command": command,
    }


def _measure_round(processes: _Processes, length: int) -> dict[str, Any]:
    """Measure processes that are compared soon after each other, as a machine's speed changes."""
    return {
        "probe": processes.way("probe", length),
        "limit": processes.way("arithmetic", length),
        "layer_1": processes.way("probe", length, layers=1),
        "layer_1_limit": processes.way("arithmetic", length, layers=1),
    }


def measure_command(arguments: list[str]) -> dict[str, Any]:
    """Wall seconds, CPU seconds and peak memory of `mless` in this process, with imports."""
    started = time.monotonic()
    run_mless_here(arguments)
    cpu = time.process_time()
    return {"wall": time.monotonic() - started, "cpu": cpu, "peak": peak_memory()}


class _Processes:
    """Fresh processes for one shape, with their logs in one folder."""

    def __init__(self, folder: Path, small: bool) -> None:
        self._folder, self._small = folder, small
        self._config = folder / "config.json"
        shape = SHAPES["tiny" if small else "qwen2.5-math-1.5b"]
        write_json(self._config, {**shape, "max_position_embeddings": LENGTH})

    def way(self, way: str, length: int, *, layers: int = LAYERS) -> dict[str, Any]:
        """Measure one of the ways of `benchmarks.attention`."""
        say(f"probe: {way}, {length:,} tokens, {layers} of the layers")
        path = self._folder / f"{way}-{length}-{layers}.json"
        command = [sys.executable, "-m", "benchmarks.attention", way, f"--config={self._config}"]
        command += [f"--length={length}", f"--layers={layers}", f"--json={path}"]
        one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        run_logged(command, path.with_suffix(".log"), one_thread)
        return dict(read_json(path))

    def command(self) -> dict[str, Any]:
        """Measure `mless probe` over all problems, Layer 1, four conditions, with all cores."""
        dataset = os.environ.get(PATH_VARIABLE) or str(PROBLEMS)
        path, traces = self._folder / "command.json", self._folder / "layer-1.traces"
        say(f"probe: `mless probe --dataset {dataset}`, {CONDITIONS}")
        command = [sys.executable, "-m", "benchmarks.probe", "command", str(path)]
        command += ["probe", "--dataset", dataset, "--model", str(self._save_model())]
        command += ["--conditions", CONDITIONS, "--layers", "1", "--output", str(traces)]
        command += ["--n", "8"] if self._small else []
        run_logged(command, path.with_suffix(".log"))
        sizes = _prompt_sizes(traces)
        return {
            **read_json(path),
            "dataset": "the tests' problems" if dataset == str(PROBLEMS) else "MATH-500",
            "prompts": len(sizes),
            "tokens": sum(sizes),
            "bytes": sum(file.stat().st_size for file in traces.iterdir()),
        }

    def _save_model(self) -> Path:
        """Save one layer of the command's model with random weights, and the tests' tokenizer."""
        from transformers import AutoConfig, AutoModel

        folder = self._folder / "model"
        shape = SHAPES["tiny" if self._small else "qwen2.5-math-7b"] | {"num_hidden_layers": 1}
        config = AutoConfig.for_model(shape.pop("model_type"), **shape)
        AutoModel.from_config(config).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(TEST_FOLDER / "model" / file, folder)
        return folder


def _prompt_sizes(path: Path) -> list[int]:
    """Tokens of every prompt in a folder of traces."""
    from attention_probe.traces import AttentionTraces

    with AttentionTraces(path) as traces:
        return [len(trace.tokens) for trace in traces]


def _rows(length: int, ways: Mapping[str, Measured]) -> list[Row]:
    """Compare the ways."""
    probe, layer_1, eager = ways["probe"], ways["layer_1"], ways["full_eager"]
    layers = f"{length:,} tokens, Layers 1 to {LAYERS}"
    against_arithmetic = "CPU against bare arithmetic"
    whole_model = "Hugging Face `output_attentions`, whole model"
    return [
        _compare(f"{layers}: {against_arithmetic}", probe, ways["limit"], most=TARGET_LIMIT),
        _compare(f"{layers}: CPU of {whole_model}", eager, probe, least=TARGET_CPU),
        _compare("the same: peak memory", eager, probe, key="peak", least=TARGET_MEMORY),
        _compare("the same for Layer 1 alone: CPU", eager, layer_1, least=TARGET_LAYER_1),
        _compare(f"Layer 1 alone: {against_arithmetic}", layer_1, ways["layer_1_limit"]),
    ]


def _compare(
    measure: str,
    first: Measured,
    second: Measured,
    *,
    key: str = "cpu",
    least: float | None = None,
    most: float | None = None,
) -> Row:
    """Compare two processes by CPU seconds or peak memory. The target is a limit of the ratio."""
    ratio = first[key] / second[key]
    measured = f"{_quantity(key, first[key])}; {second['way']} {_quantity(key, second[key])}"
    if most is not None:
        target = f"at most {most} times"
        return row(measure, measured, target=target, ratio=ratio, met=ratio <= most)
    if least is not None:
        target = f"at least {least} times the probe's"
        return row(measure, measured, target=target, ratio=ratio, met=ratio >= least)
    return row(measure, measured, ratio=ratio)


def _command_rows(command: Measured) -> list[Row]:
    title = f"Layer-1 curves by `mless probe`, {command['prompts']:,} prompts, 7B shape"
    rows = []
    for measure, key, limit in (
        (f"{title}: wall time", "wall", TARGET_COMMAND_SECONDS),
        ("the same: peak memory", "peak", TARGET_COMMAND_BYTES),
    ):
        value = command[key]
        target = f"under {_quantity(key, limit)}"
        measured = _quantity(key, value)
        rows.append(row(measure, measured, target=target, ratio=value / limit, met=value < limit))
    return rows


def _quantity(key: str, value: float) -> str:
    return f"{value / 1e9:.2f} GB" if key == "peak" else f"{value:.3g} s"


def _notes(ways: Mapping[str, Measured], command: Measured) -> list[str]:
    seconds = ways["limit"]["seconds"]
    kinds = ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())
    return [
        f"Arithmetic: {kinds}, each with its fastest block size.",
        "The probe also computes its measures from the weights; `output_attentions` only returns "
        "the matrices.",
        f"The command: {command['dataset']}, {command['tokens']:,} tokens in "
        f"{command['prompts']:,} prompts ({CONDITIONS}), with the tests' tokenizer if the model's "
        "own is not available; with imports, weights and self-checks "
        f"{command['cpu']:.0f} CPU seconds; {command['bytes'] / 1e6:.0f} MB of traces.",
    ]


if __name__ == "__main__":
    main()
