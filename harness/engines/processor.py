"""What a run on a CPU depends on: whether the processor computes in bf16, and the cores that vLLM may use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.constants import BF16_FLAGS, FEW_CORES

RESERVED = "VLLM_CPU_NUM_OF_RESERVED_CPU"
"""vLLM's variable: so many cores it keeps for itself, one unless told."""


def computes_bf16(flags: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor has instructions for bf16. True where nothing tells, so that vLLM's own choice stays."""
    try:
        return not BF16_FLAGS.isdisjoint(flags.read_text(encoding="utf-8").split())
    except OSError:
        return True


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    chosen = f"{dtype} (model.arguments.dtype; the processor {has} bf16 instructions)"
    return f"{chosen}; vLLM keeps {kept} of {cores} cores back ({RESERVED})"
