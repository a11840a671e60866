"""The machine: GPUs and the processes on them, and the type and cores of a CPU.

GPUs are read from `nvidia-smi`, so that CUDA is not initialised.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.resources import count_cores

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of a processor's instructions for bf16; `bf16` is Arm's. Without them vLLM converts all
numbers: a model of 135 million parameters took 20 s in bf16 and 3.5 s in float32 (108 short
answers, two idle cores)."""
FEW_CORES = 4
"""Up to this number of cores vLLM reserves none. The core that it would reserve mostly waits, and
is at least a quarter of them."""
RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
"""vLLM's variable for the number of cores that it reserves for itself; 1 by default."""


def gpu_driver() -> str | None:
    """The version of the NVIDIA driver; None where `nvidia-smi` is missing or knows no GPU."""
    rows = _query("--query-gpu=driver_version", columns=1)
    return rows[0][0] if rows else None


def describe_gpu_processes() -> str:
    """The other processes that hold memory of visible GPUs, as a sentence; empty if there are none.

    In a container the driver may hide processes, or give their ids on the host.
    """
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    options = ["--query-compute-apps=pid,process_name,used_memory"]
    # nvidia-smi knows numbers and UUIDs of GPUs, but no slices of a GPU (MIG)
    if devices and "MIG-" not in devices:
        options.append(f"--id={devices}")
    processes = []
    for process_id, name, memory in _query(*options, columns=3):
        if process_id != str(os.getpid()):
            processes.append(f"{name} (process {process_id}, {memory} MiB)")
    return f"It is held by {', '.join(processes)}." if processes else ""


def _query(*options: str, columns: int) -> list[list[str]]:
    """The rows of `nvidia-smi` that have this number of columns; none where it is missing."""
    command = ["nvidia-smi", *options, "--format=csv,noheader,nounits"]
    try:
        query = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = []
    for line in query.stdout.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == columns:
            rows.append(cells)
    return rows


def computes_bf16(flags: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has instructions for bf16.

    It is True where the flags cannot be read, so that vLLM's own choice stays.
    """
    try:
        return not BF16_FLAGS.isdisjoint(flags.read_text(encoding="utf-8").split())
    except OSError:
        return True


def use_all_cores() -> None:
    """Let vLLM compute on all cores where there are few, unless the user has set RESERVED."""
    if count_cores() <= FEW_CORES:
        os.environ.setdefault(RESERVED, "0")


def describe_processor(arguments: Mapping[str, Any]) -> str:
    """The type and the cores that vLLM will compute with, and how to change them."""
    dtype = str(arguments.get("dtype") or "auto").replace("auto", "the model's own type")
    compiled = "not compiled" if arguments.get("enforce_eager") else "compiled"
    has = "has" if computes_bf16() else "has no"
    cores = count_cores()
    reserved = os.environ.get(RESERVED, "0" if cores <= FEW_CORES else "one")
    return (
        f"{dtype} (model.model_args.dtype; the processor {has} bf16 instructions); "
        f"{compiled} (model.model_args.enforce_eager); "
        f"vLLM keeps {reserved} of {cores} cores back ({RESERVED})"
    )
