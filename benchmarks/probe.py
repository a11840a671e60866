"""What the probe costs, beside other ways to the same attention weights and beside bare arithmetic.

A Qwen2.5-Math-1.5B with random weights and prompts of 128, 512 and 2,048 tokens; one core, each figure from a fresh
process. Then the real command over 500 problems in four conditions for a Qwen2.5-Math-7B. MATH500_PATH names the
problems; without it they are the toy's.

    python -m benchmarks.probe [--small]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.attention import peak_memory
from benchmarks.report import Figures, Row, row, section
from benchmarks.runs import PROBLEMS, SHAPES, TOY, run_logged, say, work_folder, write_json
from harness.experiment.problems import PATH_VARIABLE

LENGTHS, SMALL_LENGTHS = (128, 512, 2048), (64,)
LAYERS = 3
ROUNDS = 3
"""How often ours and bare arithmetic take turns; the least of each counts."""
EAGER = "Hugging Face `output_attentions`, whole model"

TARGET_LIMIT = 1.25
TARGET_CPU = 20
TARGET_MEMORY = 5
TARGET_LAYER_1 = 300
TARGET_COMMAND_SECONDS = 60
TARGET_COMMAND_BYTES = 4.5e9
CONDITIONS = "wo,mless,mful,random"


def main() -> None:
    """Measure, print a Markdown section, and write the figures as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--small", action="store_true", help="a tiny model and short prompts, to see that it works"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.command:
        figures_path, *command = arguments.command
        write_json(Path(figures_path), mless(command))
        return
    figures = measure(small=arguments.small)
    write_json(arguments.json, figures)
    print(section(figures))


def measure(*, small: bool = False) -> Figures:
    """All figures, JSON-ready."""
    bench = _Bench(small=small)
    lengths = SMALL_LENGTHS if small else LENGTHS
    compared: dict[int, dict[str, Any]] = {}
    for length in lengths:
        rounds = [_round(bench, length) for _ in range(1 if small else ROUNDS)]
        compared[length] = {
            name: min((one[name] for one in rounds), key=_cpu) for name in rounds[0]
        }
        compared[length]["full_eager"] = bench.way("full_eager", length)
    return _figures(compared, bench.command())


def _round(bench: _Bench, length: int) -> dict[str, Any]:
    """What is compared closely, one soon after the other: a machine's pace changes with the minutes."""
    return {
        "ours": bench.way("ours", length),
        "limit": bench.limit(length, LAYERS),
        "layer_1": bench.way("ours", length, layers=1),
        "layer_1_limit": bench.limit(length, 1),
    }


def _cpu(figures: Mapping[str, Any]) -> float:
    return float(figures["cpu"])


def mless(command: list[str]) -> dict[str, Any]:
    """A command of `mless` in this process: wall seconds with the imports, CPU-seconds, and peak memory."""
    started = time.monotonic()
    from harness.cli import main

    sys.argv = ["mless", *command]
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise
    cpu = time.process_time()
    return {"wall": time.monotonic() - started, "cpu": cpu, "peak": peak_memory()}


class _Bench:
    """Fresh processes for one shape, with their logs in one folder."""

    def __init__(self, *, small: bool) -> None:
        self.small = small
        self.folder = work_folder(small) / "probe"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        self.config = self.folder / "config.json"
        facts = SHAPES["tiny" if small else "qwen2.5-math-1.5b"] | {
            "max_position_embeddings": LENGTHS[-1]
        }
        self.config.write_text(json.dumps(facts), encoding="utf-8")

    def way(self, way: str, length: int, *, layers: int = LAYERS) -> dict[str, Any]:
        """One of the ways of `benchmarks.attention`."""
        written = self.folder / f"{way}-{length}-{layers}.json"
        say(f"probe: {way}, {length:,} tokens, {layers} of the layers")
        command = [sys.executable, "-m", "benchmarks.attention", way, "--config", str(self.config)]
        return _step(
            [*command, "--length", str(length), "--layers", str(layers)], written, threads=1
        )

    def limit(self, length: int, layers: int) -> dict[str, Any]:
        """The arithmetic limit."""
        say(f"probe: bare arithmetic, {length:,} tokens, {layers} of the layers")
        command = [sys.executable, "-m", "benchmarks.arithmetic", "--config", str(self.config)]
        written = self.folder / f"limit-{length}-{layers}.json"
        return _step(
            [*command, "--length", str(length), "--layers", str(layers)], written, threads=1
        )

    def command(self) -> dict[str, Any]:
        """`mless probe` over all problems, Layer 1, four conditions, with all cores."""
        dataset = os.environ.get(PATH_VARIABLE) or str(PROBLEMS)
        written, traces = self.folder / "command.json", self.folder / "layer-1.traces"
        say(f"probe: `mless probe --dataset {dataset}`, {CONDITIONS}")
        arguments = ["probe", "--dataset", dataset, "--model", str(self._save_model())]
        arguments += ["--conditions", CONDITIONS, "--layers", "1", "--output", str(traces)]
        arguments += ["--n", "8"] if self.small else []
        command = [sys.executable, "-m", "benchmarks.probe", "--command", str(written), *arguments]
        run_logged(command, written.with_suffix(".log"))
        figures: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
        sizes = _prompt_sizes(traces)
        size = sum(file.stat().st_size for file in traces.iterdir())
        shown = "the toy's problems" if dataset == str(PROBLEMS) else "MATH-500"
        return figures | {
            "dataset": shown,
            "prompts": len(sizes),
            "tokens": sum(sizes),
            "bytes": size,
        }

    def _save_model(self) -> Path:
        """The first layer of the command's model with random weights, and the toy's tokenizer; tiny if --small."""
        from transformers import AutoConfig, AutoModel

        folder = self.folder / "model"
        facts = SHAPES["tiny" if self.small else "qwen2.5-math-7b"] | {"num_hidden_layers": 1}
        config = AutoConfig.for_model(facts.pop("model_type"), **facts)
        AutoModel.from_config(config).save_pretrained(folder)
        for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(TOY / "model" / file, folder)
        return folder


def _step(command: list[str], written: Path, *, threads: int) -> dict[str, Any]:
    """Figures that a fresh process writes."""
    environment = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    run_logged([*command, "--json", str(written)], written.with_suffix(".log"), environment)
    return dict(json.loads(written.read_text(encoding="utf-8")))


def _prompt_sizes(path: Path) -> list[int]:
    """Tokens of every prompt in a folder of traces."""
    from attention_probe.traces import AttentionTraces

    with AttentionTraces.open(path) as traces:
        return [len(trace.tokens) for trace in traces]


def _figures(compared: Mapping[int, Mapping[str, Any]], command: Mapping[str, Any]) -> Figures:
    longest = max(compared)
    ours, layer_1, eager = (compared[longest][name] for name in ("ours", "layer_1", "full_eager"))
    limit, layer_1_limit = compared[longest]["limit"], compared[longest]["layer_1_limit"]
    rows = [
        _target(
            f"{longest:,} tokens, Layers 1 to {LAYERS}: CPU against bare arithmetic",
            f"{ours['cpu']:.3g} s; arithmetic {limit['cpu']:.3g} s",
            ours["cpu"] / limit["cpu"],
            most=TARGET_LIMIT,
        ),
        _target(
            f"{longest:,} tokens, Layers 1 to {LAYERS}: CPU of {EAGER}",
            f"{eager['cpu']:.3g} s; ours {ours['cpu']:.3g} s",
            eager["cpu"] / ours["cpu"],
            least=TARGET_CPU,
        ),
        _target(
            "the same: peak memory",
            f"{_gb(eager['peak'])}; ours {_gb(ours['peak'])}",
            eager["peak"] / ours["peak"],
            least=TARGET_MEMORY,
        ),
        _target(
            "the same for Layer 1 alone: CPU",
            f"{eager['cpu']:.3g} s; ours {layer_1['cpu']:.3g} s",
            eager["cpu"] / layer_1["cpu"],
            least=TARGET_LAYER_1,
        ),
        row(
            f"{longest:,} tokens, Layer 1 alone: CPU against bare arithmetic",
            f"{layer_1['cpu']:.3g} s; arithmetic {layer_1_limit['cpu']:.3g} s",
            ratio=layer_1["cpu"] / layer_1_limit["cpu"],
        ),
        row(
            f"Layer-1 curves by `mless probe`, {command['prompts']:,} prompts, 7B shape: the command in all",
            f"{command['wall']:.1f} s",
            target=f"under {TARGET_COMMAND_SECONDS} s",
            ratio=command["wall"] / TARGET_COMMAND_SECONDS,
            met=command["wall"] < TARGET_COMMAND_SECONDS,
        ),
        row(
            "the same: peak memory",
            _gb(command["peak"]),
            target=f"under {_gb(TARGET_COMMAND_BYTES)}",
            ratio=command["peak"] / TARGET_COMMAND_BYTES,
            met=command["peak"] < TARGET_COMMAND_BYTES,
        ),
    ]
    for length, ways in compared.items():
        if length != longest:
            rows.append(
                _comparison(f"{length:,} tokens: {EAGER}", ways["full_eager"], ways["ours"])
            )
    kinds = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in limit["seconds"].items())
    rates = ", ".join(f"{name} {rate / 1e9:.3g}" for name, rate in limit["rates"].items())
    return {
        "title": "Attention probe",
        "what": f"Qwen2.5-Math-1.5B with random weights in float32, one core; {LAYERS} layers unless said. CPU: one "
        "forward pass, the least of a few. Memory: the process's peak, weights included.",
        "rows": rows,
        "notes": [
            f"Arithmetic: {kinds}. Rates: {rates} (10^9 operations, or elements of softmax, a CPU-second), each at its "
            "best block size.",
            f"Of the whole model's {eager['cpu']:.1f} s, {eager['logits_cpu_seconds']:.1f} s are the logits.",
            "The probe makes its numbers of the weights; `output_attentions` only hands back whole matrices.",
            f"The command: {command['dataset']}, {command['tokens']:,} tokens in {command['prompts']:,} prompts "
            f"({CONDITIONS}), by the toy's tokenizer if the model's own is not at hand; "
            f"imports, weights and self-checks included, {command['cpu']:.0f} CPU-seconds; "
            f"{command['bytes'] / 1e6:.0f} MB of traces.",
        ],
        "compared": {str(length): ways for length, ways in compared.items()},
        "command": command,
    }


def _target(
    measure: str,
    measured: str,
    ratio: float,
    *,
    least: float | None = None,
    most: float | None = None,
) -> Row:
    if most is not None:
        return row(
            measure, measured, target=f"at most {most} times", ratio=ratio, met=ratio <= most
        )
    assert least is not None
    return row(
        measure, measured, target=f"at least {least} times ours", ratio=ratio, met=ratio >= least
    )


def _comparison(measure: str, other: Mapping[str, Any], ours: Mapping[str, Any]) -> Row:
    measured = (
        f"{other['cpu']:.3g} s, {_gb(other['peak'])}; ours {ours['cpu']:.3g} s, {_gb(ours['peak'])}"
    )
    return row(measure, measured, ratio=other["cpu"] / ours["cpu"])


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


if __name__ == "__main__":
    main()
