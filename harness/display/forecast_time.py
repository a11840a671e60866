"""The forecast of a run's time, from an earlier run of the same model."""

import json
import math
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from harness.constants import ANSWER_LOGPROB
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


def describe_time(config: RunConfig, requests: int, prompt_tokens: int = 0) -> str:
    """The time that a run takes, at the speed of the longest earlier run of the same model.

    For log-probabilities all prompt tokens are computed, and this is what takes the time.

    Short runs are slower, because starting up and waiting for the last samples count more. The runs
    are those in the config's output folder.
    """
    timing = max(_read_timings(config), key=itemgetter("tokens"), default=None)
    if timing is None:
        return f"unknown: no finished run with these model_args in {config.output}"
    speed, devices = timing["tokens_per_second"], timing["device_names"]
    seconds = timing["load_seconds"] + requests * timing["request_seconds"]
    if config.endpoint == ANSWER_LOGPROB:
        seconds = timing["load_seconds"] + prompt_tokens / speed
    note = ""
    if any(condition.intervention for condition in config.conditions):
        # Hugging Face answers under interventions before the engine starts
        seconds += timing.get("reference_seconds", 0)
        if "reference_seconds" not in timing:
            note = ", and the check of interventions, which that run did not need"
    # in GPU-minutes: minutes times the number of GPUs
    minutes = max(1, math.ceil(seconds / 60 * max(1, len(devices))))
    unit = plural("minute" if timing["device"] == "cpu" else "GPU-minute", minutes)
    device = f" on {devices[0]}" if devices else ""
    return f"about {minutes} {unit} (as {timing['run']}: {speed:,.0f} tokens/s{device}){note}"


def _read_timings(config: RunConfig) -> Iterator[dict[str, Any]]:
    """The timing of each run of the same model, with its folder and devices.

    Files that are no receipts are skipped.
    """
    for path in config.output.glob(f"*/{RECEIPT}"):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            engine: dict[str, Any] = {}
            # a session that only graded has no engine
            for session in receipt["sessions"]:
                engine = session.get("engine") or engine
            model = receipt["config"]["model"]
            is_same = _read_speed_settings(**model) == _read_speed_settings(**dict(config.model))
            is_same &= receipt["config"].get("endpoint", "accuracy") == config.endpoint
            # The number of engines of the next run is not known here.
            if is_same and engine.get("engines", 1) == 1:
                timing = receipt["timing"]
                tokens = timing["tokens"] / timing["samples"]
                yield {
                    "load_seconds": 0.0,
                    **timing,
                    "request_seconds": tokens / timing["tokens_per_second"],
                    "run": path.parent,
                    "device": receipt["engine"]["device"],
                    "device_names": engine.get("device_names") or (),
                }
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            continue


def _read_speed_settings(backend: str, model_args: dict[str, Any], **_: Any) -> list[Any]:
    return [backend, *(model_args.get(name) for name in SPEED_ARGUMENTS)]
