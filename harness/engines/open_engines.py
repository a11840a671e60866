"""Opens the engines that a run asks for: one in this process, or a pool of several."""

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.engines.engine_pool import EnginePool
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import ConfigError, MissingDependencyError

AUTO = "auto"
DATA_PARALLEL = "data_parallel_size"


def check_engines(option: object, arguments: Mapping[str, Any]) -> int | str:
    """The number of engines, or `auto`.

    Args:
        option: The value of `--engines`; where it is None, lm-eval's `data_parallel_size` counts.
        arguments: lm-eval's model arguments.

    Raises:
        ConfigError: neither a number from 1 nor `auto`; several engines, with a number of GPUs that
            is none.
        MissingDependencyError: more than one engine, and Ray is not installed.
    """
    name, value = "--engines", option
    if option is None:
        name, value = DATA_PARALLEL, arguments.get(DATA_PARALLEL)
    engines = AUTO if value == AUTO else _parse_count(name, value, "auto, or ")
    if engines != 1:
        _count_gpus(arguments)
        if importlib.util.find_spec("ray") is None:
            raise MissingDependencyError(
                f"{name} is {engines}, which needs the package 'ray'. Install `mless[ray]`."
            )
    return engines


def _parse_count(name: str, value: object, alternative: str = "") -> int:
    """A number from 1; None means 1."""
    try:
        number = 1 if value is None else int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name} is {str(value)!r:.40}. Expected {alternative}a number from 1.")
    return number


def _count_gpus(arguments: Mapping[str, Any]) -> int:
    """The number of GPUs of one engine."""
    return math.prod(
        _parse_count(name, arguments.get(name))
        for name in ("tensor_parallel_size", "pipeline_parallel_size")
    )


def open_engines(
    arguments: Mapping[str, Any],
    engines: int | str,
    *,
    sampled: bool,
    most: int | None = None,
    log: Path | None = None,
) -> VLLMEngine | EnginePool:
    """One engine in this process, or several in Ray actors.

    Args:
        arguments: lm-eval's model arguments, for each engine.
        engines: Their number, or `auto`: as many as the GPUs allow, one where there are none.
        sampled: Whether any request will be sampled.
        most: The number of requests, and so the largest number of engines.
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

    engine_gpus = _count_gpus(arguments)
    carrier = RayCarrier(arguments, sampled=sampled, engine_gpus=engine_gpus, log=log)
    # Without GPUs the user decides how many engines fit, but nothing else would stop 9999
    # processes.
    room, size = max(8, 4 * carrier.cores), 1
    if carrier.gpus:
        room = size = sum(gpus // engine_gpus for gpus in carrier.gpus)
    if engines != AUTO:
        size = int(engines)
    if not 1 <= size <= room:
        carrier.close()
        raise ConfigError(
            f"The number of engines is {engines}, and there is room for {room}: each has "
            f"{engine_gpus} GPUs of one machine, and the machines have {carrier.gpus}, with "
            f"{carrier.cores} CPU cores."
        )
    if most:
        size = min(size, most)
    return EnginePool(carrier, size)
