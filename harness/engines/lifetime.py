"""What vLLM runs in each of its own processes: it ends them with the run, and asks them what they run on.

Without it a killed run leaves its engine behind, which holds the GPU's memory, so that the run cannot be continued.
vLLM calls every function of the entry-point group `vllm.general_plugins` in each process that it starts, except in
forked ones: there the group counts as called, because the parent has called it. Hence the hook for forks.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OWNER_VARIABLE = "MLESS_ENGINE_OWNER"
"""The run's process as `process_identity` writes it. Unset where vLLM is used without mless: then nothing is done."""

PLUGIN = "mless"
"""Its name in the entry-point group."""

WORKER_EXTENSION = f"{__name__}.WorkerFacts"
"""As vLLM's engine argument `worker_extension_cls` takes it."""

TOLD_BY_WORKERS = ("compute_capability", "cuda", "attention_backends", "triton_f32_default", "batch_invariant")
"""What `WorkerFacts` tells beside the device's name."""

POLL_SECONDS = 1.0
"""Between two looks at the owner where the kernel cannot tell of its end."""


def die_with_parent() -> None:
    """Watch the run that started this process, from a thread, and end with it.

    The kernel's own `PR_SET_PDEATHSIG` is no use here: it fires when the *thread* that started the process ends, and
    vLLM 0.33 starts its workers from a pool of threads.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    if owner and owner != process_identity(os.getpid()):
        threading.Thread(target=_end_with, args=(owner,), name="mless-owner-watch", daemon=True).start()


os.register_at_fork(after_in_child=die_with_parent)  # once in each process: a module is imported once


def process_identity(process_id: int) -> str:
    """Process id and start time, as ids are used again; empty where the process has ended, reaped or not."""
    if sys.platform != "linux":
        import psutil

        return str(process_id) if psutil.pid_exists(process_id) else ""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else f"{process_id}:{fields[18]}"


def _end_with(owner: str) -> None:
    try:
        end = select.poll()
        end.register(os.pidfd_open(int(owner.partition(":")[0])), select.POLLIN)
    except (OSError, AttributeError):  # already gone; or no Linux, a kernel before 5.3, a sandbox that forbids it
        end = None
    # The identity is read after the descriptor was opened, so that the descriptor is proven to be the owner's.
    while process_identity(int(owner.partition(":")[0])) == owner:
        if end:
            end.poll()
        else:
            time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


class WorkerFacts:
    """What only a worker can tell, as it alone has the device open. vLLM adds this class to its own worker's bases."""

    def mless_facts(self) -> dict[str, Any]:
        """Device and kernels of this worker, as plain values; None where they cannot be told."""
        import torch
        from vllm.platforms import current_platform

        def attention_backends() -> list[str]:
            layers = self.vllm_config.compilation_config.static_forward_context.values()  # type: ignore[attr-defined]
            return sorted({layer.get_attn_backend().get_name() for layer in layers})

        def compute_capability() -> str:
            capability = current_platform.get_device_capability(self.local_rank)  # type: ignore[attr-defined]
            return capability.as_version_str() if capability else torch.backends.cpu.get_cpu_capability()

        facts: dict[str, Callable[[], Any]] = {
            "device_name": lambda: current_platform.get_device_name(self.local_rank),  # type: ignore[attr-defined]
            "compute_capability": compute_capability,
            "cuda": lambda: torch.version.cuda or torch.version.hip,
            "attention_backends": attention_backends,
            "triton_f32_default": lambda: os.environ.get("TRITON_F32_DEFAULT"),
            "batch_invariant": lambda: bool(int(os.environ.get("VLLM_BATCH_INVARIANT", "0"))),
        }
        return {name: known(fact) for name, fact in facts.items()}


def known(fact: Callable[[], Any]) -> Any:
    """What `fact` returns, None where it fails: another version of vLLM keeps it elsewhere."""
    try:
        return fact()
    except Exception:
        return None
