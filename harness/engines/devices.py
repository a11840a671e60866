"""The machine: GPUs and who holds their memory, read from `nvidia-smi` without using CUDA; type and cores of a CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.resources import count_cores

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of a processor's instructions for bf16, the last one of Arm's. Without them vLLM converts every number: a model
of 135 million parameters took 20 s in bf16 and 3.5 s in float32 (108 short answers, two idle cores)."""
FEW_CORES = 4
"""Of up to so many cores vLLM keeps none back: the one that it would mostly waits, and is a quarter of them or more."""


def gpu_driver() -> str | None:
    """The version of the NVIDIA driver; None where `nvidia-smi` is missing or knows no GPU."""
    return next((driver for (driver,) in _query("--query-gpu=driver_version", 1)), None)


def describe_gpu_processes() -> str:
    """Which other processes hold memory of the GPUs that are visible here, for a message; empty if none is known.

    In a container the driver may hide processes, or name them by ids of the host.
    """
    rows = _query("--query-compute-apps=gpu_uuid,pid,process_name,used_memory", 4)
    seen = _visible_uuids()
    held = ", ".join(
        f"{name} (process {process}, {memory} MiB)"
        for uuid, process, name, memory in rows
        if (seen is None or uuid in seen) and process != str(os.getpid())
    )
    return f"It is held by {held}." if held else ""


def _visible_uuids() -> set[str] | None:
    """The GPUs of CUDA_VISIBLE_DEVICES, which may have numbers, or UUIDs cut short; None for all."""
    wanted = [
        one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one.strip()
    ]
    if not wanted or any(one.startswith("MIG-") for one in wanted):
        return None
    known = _query("--query-gpu=index,uuid", 2)
    return {
        uuid
        for index, uuid in known
        for one in wanted
        if one == index or (len(one) > 4 and uuid.startswith(one))
    }


def _query(what: str, columns: int) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == columns]


RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
"""vLLM's variable: so many cores it keeps for itself, one unless told."""


def computes_bf16(flags: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has instructions for bf16. True where nothing tells, so that vLLM's own choice stays."""
    try:
        return not BF16_FLAGS.isdisjoint(flags.read_text(encoding="utf-8").split())
    except OSError:
        return True


def use_all_cores() -> None:
    """Let vLLM compute on every core where there are few, unless the user has said how many it keeps for itself."""
    if count_cores() <= FEW_CORES:
        os.environ.setdefault(RESERVED, "0")


def describe_processor(arguments: Mapping[str, Any]) -> str:
    """The type and the cores that vLLM will compute with, and how to choose others."""
    dtype = str(arguments.get("dtype") or "auto").replace("auto", "the model's own type")
    has = "has" if computes_bf16() else "has no"
    cores = count_cores()
    kept = os.environ.get(RESERVED, "0" if cores <= FEW_CORES else "one")
    chosen = f"{dtype} (model.model_args.dtype; the processor {has} bf16 instructions)"
    return f"{chosen}; vLLM keeps {kept} of {cores} cores back ({RESERVED})"
