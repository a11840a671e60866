"""The forecast of a run's time: from earlier runs of the model, else from its size on a CPU."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.display.format_values import plural
from harness.engines.devices import computes_bf16
from harness.engines.vllm_engine import device_type
from harness.experiment.run_config import RunConfig
from harness.resources import count_cores
from harness.runs.run_folder import RECEIPT

START_SECONDS = 60.0
"""The time in which an engine starts on a CPU; most of it is importing and compiling."""
CORE_SPEEDS = {True: 1e11, False: 4e10}
"""Operations per second of one CPU core, in bf16 where the processor has instructions for it, else
in float32. One busy core of an EPYC 9005 took 7.5 s in bf16 for 48 prompts of SmolLM2-135M with 160
to 220 tokens and 64 new tokens each; most of each prompt was cached."""

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

    Short runs are slower, because starting up and waiting for the last samples count more. Without
    any run in the config's output folder, the model's size and the number of cores are used.
    """
    speeds = _find_speeds(config, requests)
    longest = max(speeds, default=None)
    if longest is not None:
        return longest[1]
    forecast = _forecast(config, prompt_tokens + requests * config.max_gen_toks / 2)
    return f"{forecast}: no finished run of this model in {config.output}"


def _forecast(config: RunConfig, tokens: float) -> str:
    """The time of a model without an earlier run: unknown on a GPU, or if its size is not known.

    Args:
        config: The config of the run.
        tokens: The tokens of prompts and completions.
    """
    from transformers import AutoConfig

    if config.model.backend != "vllm" or device_type() != "cpu":
        return "unknown"
    arguments, cores = config.model_arguments(), count_cores()
    try:
        model = AutoConfig.from_pretrained(
            arguments["pretrained"], revision=arguments.get("revision")
        ).get_text_config()
        layer = model.hidden_size * (4 * model.hidden_size + 3 * model.intermediate_size)
        parameters = model.num_hidden_layers * layer + model.vocab_size * model.hidden_size
    except (LookupError, AttributeError, OSError, ValueError):
        return "unknown"
    # A token costs two operations for every parameter.
    speed = cores * CORE_SPEEDS[computes_bf16()]
    minutes = math.ceil((START_SECONDS + 2 * parameters * tokens / speed) / 60)
    return (
        f"about {minutes} min, may be wrong by 3 times "
        f"({parameters / 1e6:,.0f} million parameters on {cores} CPU cores)"
    )


def _find_speeds(config: RunConfig, requests: int) -> Iterator[tuple[int, str]]:
    """The tokens of each run of the same model, and the time of the requests at its speed.

    Files that are no receipts are skipped.
    """
    for path in config.output.glob(f"*/{RECEIPT}"):
        try:
            receipt = json.loads(path.read_text(encoding="utf-8"))
            model, timing = receipt["config"]["model"], receipt["timing"]
            engine: Mapping[str, Any] = {}
            for session in receipt["sessions"]:
                engine = session.get("engine") or engine
            is_same = _read_speed_settings(**model) == _read_speed_settings(**dict(config.model))
            # The number of engines of the next run is not known here.
            if is_same and engine.get("engines", 1) == 1:
                is_cpu = receipt["engine"]["device"] == "cpu"
                devices = engine.get("device_names") or ()
                yield (
                    timing["tokens"],
                    _describe_speed(timing, requests, path.parent, devices, is_cpu=is_cpu),
                )
        except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError):
            continue


def _describe_speed(
    timing: Mapping[str, Any], requests: int, run: Path, devices: Sequence[str], *, is_cpu: bool
) -> str:
    speed = timing["tokens_per_second"]
    seconds = requests * timing["tokens"] / timing["samples"] / speed + timing["load_seconds"]
    minutes = max(1, math.ceil(seconds / 60 * max(1, len(devices))))
    unit = plural("minute" if is_cpu else "GPU-minute", minutes)
    device = f" on {devices[0]}" if devices else ""
    return f"about {minutes} {unit} (as {run}: {speed:,.0f} tokens/s{device})"


def _read_speed_settings(backend: str, model_args: Mapping[str, Any], **_: Any) -> list[Any]:
    return [backend, *(model_args.get(name) for name in SPEED_ARGUMENTS)]
