"""Opens the engines that a run asks for: one in this process, or a pool of several."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.engines.engine_pool import EnginePool
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError

AUTO = "auto"
"""The number of engines that stands for one on each GPU, or for one without a GPU."""

MOST_ENGINES_PER_CORE = 4
MOST_ENGINES_ON_FEW_CORES = 8
"""Without a GPU a run may have the larger of two numbers of engines: the first for each core, or
the second in total. The user decides how many fit, but nothing else would stop 9999 processes."""


def read_engine_choice(option_value: object, arguments: Mapping[str, Any]) -> int | str:
    """The number of engines, or `auto`, from the command's option or the model arguments.

    Args:
        option_value: The value of `--engines`; None where the option is not given, and lm-eval's
            `data_parallel_size` counts.
        arguments: lm-eval's model arguments.

    Raises:
        ConfigError: neither a number from 1 nor `auto`.
        ModuleNotFoundError: more than one engine, and Ray is not installed.
    """
    setting_name = "--engines"
    choice = str(option_value)
    if option_value is None:
        setting_name = "data_parallel_size"
        choice = str(arguments.get(setting_name, 1))
    # more than four digits are more engines than any cluster has room for
    if not re.fullmatch(rf"{AUTO}|[1-9]\d{{,3}}", choice):
        raise ConfigError(f"{setting_name} is {choice!r:.40}. Expected auto, or a number from 1.")
    if choice != "1":
        import ray  # noqa: F401 - here, so that a run without Ray ends before its plan is made
    return AUTO if choice == AUTO else int(choice)


def open_engines(
    arguments: Mapping[str, Any],
    engine_choice: int | str,
    has_sampled_requests: bool,
    request_count: int,
    log_path: Path,
) -> VLLMEngine | EnginePool:
    """One engine in this process, or several in Ray actors.

    Args:
        arguments: lm-eval's model arguments, for each engine.
        engine_choice: The number of engines, or `auto`: as many as the GPUs allow, one where there
            are none.
        has_sampled_requests: Whether any request will be sampled.
        request_count: The number of requests; no more engines are started.
        log_path: A file for the messages of the libraries of several engines, where an actor can
            write it.

    Raises:
        ConfigError: there are not enough GPUs or cores, or as `VLLMEngine`.
        EngineError: Ray does not start, or the cluster is not there.
        HarnessError: as `VLLMEngine`.
    """
    if engine_choice == 1:
        return VLLMEngine(arguments, has_sampled_requests=has_sampled_requests)
    from harness.engines.ray_carrier import RayCarrier

    gpus_per_engine = math.prod(
        int(arguments.get(argument_name) or 1)
        for argument_name in ("tensor_parallel_size", "pipeline_parallel_size")
    )
    carrier = RayCarrier(arguments, has_sampled_requests, gpus_per_engine, log_path)
    # without GPUs; where there are GPUs, they decide both numbers
    auto_count = 1
    most_engines = max(MOST_ENGINES_ON_FEW_CORES, MOST_ENGINES_PER_CORE * carrier.core_count)
    if carrier.gpu_counts:
        # the GPUs of an engine are on one machine, so each machine is divided by itself
        most_engines = sum(gpu_count // gpus_per_engine for gpu_count in carrier.gpu_counts)
        auto_count = most_engines
    engine_count = auto_count if engine_choice == AUTO else int(engine_choice)
    if not 1 <= engine_count <= most_engines:
        carrier.close()
        raise ConfigError(
            f"The number of engines is {engine_choice}, and there is room for {most_engines}: "
            f"each has {gpus_per_engine} GPUs of one machine, and the machines have "
            f"{carrier.gpu_counts}, with {carrier.core_count} CPU cores."
        )
    return EnginePool(
        carrier, min(engine_count, request_count), is_compiled=not arguments.get("enforce_eager")
    )
