"""What a run can find and what it will cost, said before it is made."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.experiment.conditions import BASELINE
from harness.experiment.config import RunConfig
from harness.runs.folder import RECEIPT

DISCORDANCES = (0.05, 0.1, 0.2)
"""Shares of problems that two conditions may disagree on in one sample each."""

DEFAULT_DISCORDANCE = DISCORDANCES[1]
"""The guess where one number is asked for."""

NONE = "none"
"""Where so few problems show no effect at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a finished run of the same model generated.

    Attributes:
        tokens: All that it generated.
        tokens_per_second: Generated tokens, all sequences together.
        tokens_each: Mean length of a completion, in tokens.
        load_seconds: From the start of loading to the first request.
        devices: The device of each worker.
        unit: Of what is used up: GPU-minutes, or minutes where there is no GPU.
        source: The run's folder.
    """

    tokens: int
    tokens_per_second: float
    tokens_each: float
    load_seconds: float
    devices: tuple[str, ...]
    unit: str
    source: Path


def describe_power(config: RunConfig, problems: int) -> list[str]:
    """The least true differences that a run finds, as lines; empty if it tests nothing.

    Args:
        config: The run's.
        problems: How many are asked.
    """
    tests = _tests(config)
    if not tests:
        return []
    from harness.analysis.power import ALPHA, POWER

    names = [f"{name} (primary)" if name == config.primary_condition else name for name in config.tested]
    alpha = f"alpha {ALPHA:g}" + (f" / {tests}" if tests > 1 else "")
    rows = [("", [f"{100 * discordance:.0f} %" for discordance in DISCORDANCES])]
    for way, samples in _ways(config):
        rows.append((way, [_gain(problems, samples, discordance, tests) for discordance in DISCORDANCES]))
    return [
        "detects   the least gain in points, if single samples with and without filler disagree on so many problems",
        f"          ({100 * POWER:.0f} % power, {alpha}; {', '.join(names)}):",
        *(f"          {way:<42}" + "".join(f"{cell:>7}" for cell in cells) for way, cells in rows),
    ]


def describe_outlook(config: RunConfig, problems: int, requests: int) -> str:
    """The smallest gain that a run can detect, and how long it takes, in one line."""
    said = []
    if tests := _tests(config):
        first, *others = [_gain(problems, samples, DEFAULT_DISCORDANCE, tests) for _, samples in _ways(config)]
        rest = f" (if the filler moves all problems one way; {others[0]} if it moves them both ways)" if others else ""
        share = f"at {100 * DEFAULT_DISCORDANCE:.0f} % disagreement"
        gain = first if first == NONE else f"{first} points{rest}"
        said.append(f"smallest gain this run can detect: {gain}, {share}")
    speed = find_speed(config)
    if speed is None:
        said.append(f"time unknown: no finished run of this model in {config.output}")
    else:
        minutes = (requests * speed.tokens_each / speed.tokens_per_second + speed.load_seconds) / 60
        on = f" on {speed.devices[0]}" if speed.devices else ""
        number = max(1, math.ceil(minutes * max(1, len(speed.devices))))
        unit = speed.unit.removesuffix("s") if number == 1 else speed.unit
        said.append(f"about {number} {unit} (as {speed.source}: {speed.tokens_per_second:,.0f} tokens/s{on})")
    return "; ".join(said)


def find_speed(config: RunConfig) -> Speed | None:
    """The speed of the longest run in the config's output folder of the same model, backend and dtype.

    The runs of `mless verify` count too. A short run is slower: it pays for ramp-up and tail.
    """
    return max(_speeds(config), key=lambda speed: speed.tokens, default=None)


def _speeds(config: RunConfig) -> Iterator[Speed]:
    """The speed of each fitting run. A file that is no such receipt is passed over."""
    for path in (*config.output.glob(f"*/{RECEIPT}"), *config.output.glob(f"verify*/*/run/{RECEIPT}")):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            model, timing = receipt["config"]["model"], receipt["timing"]
            if _asked(model["backend"], model["arguments"]) != _asked(config.model.backend, config.model.arguments):
                continue
            engines = [session["engine"] for session in receipt["sessions"] if session.get("engine")]
            yield Speed(
                tokens=int(timing["tokens"]),
                tokens_per_second=float(timing["tokens_per_second"]),
                tokens_each=timing["tokens"] / timing["samples"],
                load_seconds=float(timing["load_seconds"]),
                devices=tuple(engines[-1]["device_names"] or ()) if engines else (),
                unit="minutes" if receipt["engine"]["device"] == "cpu" else "GPU-minutes",
                source=path.parent,
            )
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            continue


def _asked(backend: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides the speed of a model, as far as a config says it."""
    names = ("pretrained", "model", "dtype", "quantization", "enforce_eager", "tensor_parallel_size")
    return backend, *(arguments.get(name) for name in names)


def _tests(config: RunConfig) -> int:
    """Tests of the run's family; none without a baseline."""
    compared = BASELINE in [condition.name for condition in config.conditions]
    return len(config.tested) * len(config.layouts) if compared else 0


def _ways(config: RunConfig) -> list[tuple[str, int]]:
    """How a filler may move problems, and how many samples a problem then count.

    If it moves whole problems, some up and some down, all samples of a problem say the same, and count as one.
    """
    samples = config.samples_per_problem
    if samples == 1:
        return [("with 1 sample a problem", 1)]
    return [(f"{samples} samples, all problems moved one way", samples), ("whole problems moved both ways", 1)]


def _gain(problems: int, samples: int, discordance: float, tests: int) -> str:
    from harness.analysis.power import ALPHA, minimal_detectable_effect

    effect = minimal_detectable_effect(n=problems, k=samples, discordance=discordance, alpha=ALPHA / tests)
    return NONE if math.isnan(effect) else f"{100 * effect:.1f}"
