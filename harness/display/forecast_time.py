"""The forecast of a run's time, from an earlier run of the same model."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.display.format_values import plural
from harness.experiment.run_config import RunConfig
from harness.runs.run_files import RECEIPT

SPEED_ARGUMENTS = (
    "pretrained",
    "model",
    "dtype",
    "quantization",
    "enforce_eager",
    "tensor_parallel_size",
)
"""The model arguments that decide the speed of a model."""


def describe_time(config: RunConfig, requests: int) -> str:
    """The time that a run takes, at the speed of the longest earlier run of the same model.

    Short runs are slower, because starting up and waiting for the last samples count more. The runs
    are those in the config's output folder.
    """
    longest = max(_find_speeds(config, requests), default=None)
    if longest is None:
        return f"unknown: no finished run of this model in {config.output}"
    return longest[1]


def _find_speeds(config: RunConfig, requests: int) -> Iterator[tuple[int, str]]:
    """The tokens of each run of the same model, and the time of the requests at its speed.

    Files that are no receipts are skipped.
    """
    is_checked = any(condition.intervention for condition in config.conditions)
    for path in config.output.glob(f"*/{RECEIPT}"):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            model, timing = receipt["config"]["model"], receipt["timing"]
            engine: Mapping[str, Any] = {}
            # a session that only graded has no engine
            for session in receipt["sessions"]:
                engine = session.get("engine") or engine
            is_same = _read_speed_settings(**model) == _read_speed_settings(**dict(config.model))
            # The number of engines of the next run is not known here.
            if is_same and engine.get("engines", 1) == 1:
                is_cpu = receipt["engine"]["device"] == "cpu"
                devices = engine.get("device_names") or ()
                text = _describe_speed(
                    timing, requests, path.parent, devices, is_cpu=is_cpu, is_checked=is_checked
                )
                yield timing["tokens"], text
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            continue


def _describe_speed(
    timing: Mapping[str, Any],
    requests: int,
    run: Path,
    devices: Sequence[str],
    *,
    is_cpu: bool,
    is_checked: bool,
) -> str:
    speed = timing["tokens_per_second"]
    seconds = requests * timing["tokens"] / timing["samples"] / speed + timing["load_seconds"]
    # Hugging Face answers under interventions before the engine starts
    check_seconds = timing.get("reference_seconds", 0)
    seconds += check_seconds if is_checked else 0
    # GPU-minutes count each GPU
    minutes = max(1, math.ceil(seconds / 60 * max(1, len(devices))))
    unit = plural("minute" if is_cpu else "GPU-minute", minutes)
    device = f" on {devices[0]}" if devices else ""
    text = f"about {minutes} {unit} (as {run}: {speed:,.0f} tokens/s{device})"
    if is_checked and not check_seconds:
        text += ", and the check of interventions, which that run did not need"
    return text


def _read_speed_settings(backend: str, model_args: Mapping[str, Any], **_: Any) -> list[Any]:
    return [backend, *(model_args.get(name) for name in SPEED_ARGUMENTS)]
