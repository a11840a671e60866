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


def use_all_cores() -> None:
    """Let vLLM compute on every core where there are few, unless the user has said how many it keeps for itself."""
    if len(os.sched_getaffinity(0)) <= FEW_CORES:
        os.environ.setdefault(RESERVED, "0")


def describe_processor(arguments: Mapping[str, Any]) -> str:
    """The type and the cores that vLLM will compute with, and how to choose others."""
    use_all_cores()
    dtype = str(arguments.get("dtype") or "auto").replace("auto", "the model's own type")
    has = "has" if computes_bf16() else "has no"
    cores = f"vLLM keeps {os.environ.get(RESERVED, 'one')} of {len(os.sched_getaffinity(0))} cores back ({RESERVED})"
    return f"{dtype} (model.arguments.dtype; the processor {has} bf16 instructions); {cores}"
