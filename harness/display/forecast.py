"""How fast earlier runs of a model generated, which tells how long the next run takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.experiment.config import RunConfig
from harness.runs.folder import RECEIPT


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a finished run of the same model generated.

    Attributes:
        tokens: Tokens that it generated.
        tokens_per_second: Over all sequences together.
        tokens_each: Mean tokens of a completion.
        load_seconds: From the start of loading to the first request.
        devices: The device of each worker.
        unit: `GPU-minutes`, or `minutes` without a GPU.
        source: The run's folder.
    """

    tokens: int
    tokens_per_second: float
    tokens_each: float
    load_seconds: float
    devices: tuple[str, ...]
    unit: str
    source: Path


def find_speed(config: RunConfig) -> Speed | None:
    """The speed of the longest earlier run of the same model, backend and dtype in the config's output folder.

    Short runs are slower, because they pay for ramp-up and tail.
    """
    return max(_speeds(config), key=lambda speed: speed.tokens, default=None)


def _speeds(config: RunConfig) -> Iterator[Speed]:
    """The speed of each run of the same model. Files that are no receipts are skipped."""
    for path in config.output.glob(f"*/{RECEIPT}"):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            model, timing = receipt["config"]["model"], receipt["timing"]
            if _asked(model["backend"], model["arguments"]) != _asked(config.model.backend, config.model.arguments):
                continue
            engines = [session["engine"] for session in receipt["sessions"] if session.get("engine")]
            if engines and engines[-1].get("engines", 1) != 1:
                continue  # how many the next run will have is not known here
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
    """The settings in a config that decide the speed of a model."""
    names = ("pretrained", "model", "dtype", "quantization", "enforce_eager", "tensor_parallel_size")
    return backend, *(arguments.get(name) for name in names)
