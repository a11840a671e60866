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
DATA_PARALLEL = "data_parallel_size"
"""lm-eval's model argument for the number of engines."""
ENGINES_PER_CORE, ENGINES_ON_FEW_CORES = 4, 8
"""Most engines without a GPU: the user decides how many fit, but nothing else would stop 9999
processes."""


def check_engines(option: object, arguments: Mapping[str, Any]) -> int | str:
    """The number of engines, or `auto`.

    Args:
        option: The value of `--engines`; where it is None, lm-eval's `data_parallel_size` counts.
        arguments: lm-eval's model arguments.

    Raises:
        ConfigError: neither a number from 1 nor `auto`.
        ModuleNotFoundError: more than one engine, and Ray is not installed.
    """
    name, value = "--engines", option
    if option is None:
        name, value = DATA_PARALLEL, arguments.get(DATA_PARALLEL, 1)
    if not re.fullmatch(rf"{AUTO}|[1-9]\d{{,3}}", str(value)):
        raise ConfigError(f"{name} is {str(value)!r:.40}. Expected auto, or a number from 1.")
    engines = AUTO if value == AUTO else int(str(value))
    if engines != 1:
        import ray  # noqa: F401 - here, so that a run without Ray ends before its plan is made
    return engines


def open_engines(
    arguments: Mapping[str, Any],
    engines: int | str,
    *,
    sampled: bool,
    request_count: int,
    log: Path,
) -> VLLMEngine | EnginePool:
    """One engine in this process, or several in Ray actors.

    Args:
        arguments: lm-eval's model arguments, for each engine.
        engines: Their number, or `auto`: as many as the GPUs allow, one where there are none.
        sampled: Whether any request will be sampled.
        request_count: The number of requests, and so the largest number of engines.
        log: A file that takes what the libraries of several engines print, where an actor can write
            it.

    Raises:
        ConfigError: there are not enough GPUs or cores, or as `VLLMEngine`.
        EngineError: Ray does not start, or the cluster is not there.
        HarnessError: as `VLLMEngine`.
    """
    if engines == 1:
        return VLLMEngine(arguments, sampled=sampled)
    from harness.engines.ray_carrier import RayCarrier

    sizes = (arguments.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline"))
    engine_gpus = math.prod(int(size or 1) for size in sizes)
    carrier = RayCarrier(arguments, sampled=sampled, engine_gpus=engine_gpus, log=log)
    largest_count = max(ENGINES_ON_FEW_CORES, ENGINES_PER_CORE * carrier.cores)
    engine_count = 1  # of `auto` without a GPU
    if carrier.gpus:
        engine_count = largest_count = sum(gpus // engine_gpus for gpus in carrier.gpus)
    if engines != AUTO:
        engine_count = int(engines)
    if not 1 <= engine_count <= largest_count:
        carrier.close()
        raise ConfigError(
            f"The number of engines is {engines}, and there is room for {largest_count}: each has "
            f"{engine_gpus} GPUs of one machine, and the machines have {carrier.gpus}, with "
            f"{carrier.cores} CPU cores."
        )
    compiles = not arguments.get("enforce_eager")
    return EnginePool(carrier, min(engine_count, request_count), compiles=compiles)
