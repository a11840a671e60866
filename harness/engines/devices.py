"""The machine: the driver of its GPUs, and the type and cores of its CPU."""

import os
import subprocess
from pathlib import Path

from harness.resources import count_cores

BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names of a processor's instructions for bf16; `bf16` is Arm's. Without them vLLM converts all
numbers: a model of 135 million parameters took 20 s in bf16 and 3.5 s in float32 (108 short
answers, two idle cores)."""
MOST_CORES_WITHOUT_RESERVE = 4
"""On a machine with at most this number of cores vLLM reserves none. A reserved core would be idle
most of the time, and would be at least a quarter of the cores."""
RESERVED_CORES_VARIABLE = "VLLM_CPU_NUM_OF_RESERVED_CPU"
"""vLLM's variable for the number of cores that it reserves for itself; 1 by default."""


def gpu_driver_version() -> str:
    """The version of the NVIDIA driver, from `nvidia-smi`, so that CUDA is not initialised.

    Raises:
        OSError: `nvidia-smi` is missing.
        SubprocessError: it knows no GPU.
    """
    return subprocess.check_output(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        text=True,
        timeout=10,
    ).splitlines()[0]


def computes_bf16(cpuinfo_path: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has instructions for bf16."""
    return not BF16_FLAGS.isdisjoint(cpuinfo_path.read_text(encoding="utf-8").split())


def use_all_cores() -> None:
    """Let vLLM compute on all cores where there are few, unless the user has set the variable."""
    if count_cores() <= MOST_CORES_WITHOUT_RESERVE:
        os.environ.setdefault(RESERVED_CORES_VARIABLE, "0")
