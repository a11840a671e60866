"""How fast a model generated in earlier runs, from which a plan tells how long the next one takes."""

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
