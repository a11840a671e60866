"""End vLLM's own processes together with the run that started them. This code runs inside these processes.

Without it a killed run would leave its engine behind. The engine would hold the GPU's memory, so the run could not be
continued. vLLM calls every function of the entry-point group `vllm.general_plugins` in each process that it starts. It
does not do so in forked processes, because their parent has called the group already; the hook for forks covers these.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OWNER_VARIABLE = "MLESS_ENGINE_OWNER"
"""Names the run's process as `process_identity` does. It is unset where vLLM is used without mless."""

PLUGIN = "mless"
"""The name of `die_with_parent` in the entry-point group."""

WORKER_EXTENSION = f"{__name__}.WorkerFacts"
"""A value for vLLM's engine argument `worker_extension_cls`."""

TOLD_BY_WORKERS = ("compute_capability", "cuda", "attention_backends", "triton_f32_default", "batch_invariant")
"""The facts of `WorkerFacts` other than the device's name."""

POLL_SECONDS = 1.0
"""How often the owner is looked at where the kernel cannot report its end."""


def die_with_parent() -> None:
    """Start a thread that ends this process when the run that started it ends.

    The kernel's own `PR_SET_PDEATHSIG` is no use here: it fires when the *thread* that started the process ends, and
    vLLM 0.33 starts its workers from a pool of threads.
    """
    owner = os.environ.get(OWNER_VARIABLE)
    if owner and owner != process_identity(os.getpid()):
        threading.Thread(target=_end_with, args=(owner,), name="mless-owner-watch", daemon=True).start()


os.register_at_fork(after_in_child=die_with_parent)  # once in each process: a module is imported once


def process_identity(process_id: int) -> str:
    """Process id and start time, because ids are used again; empty if the process has ended, reaped or not."""
    try:
        state, *fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else f"{process_id}:{fields[18]}"


def _end_with(owner: str) -> None:
    try:
        end = select.poll()
        end.register(os.pidfd_open(int(owner.partition(":")[0])), select.POLLIN)
    except (OSError, AttributeError):  # already gone; or a kernel before 5.3, or a sandbox that forbids it
        end = None
    # The identity is read after the descriptor was opened, so that the descriptor is proven to be the owner's.
    while process_identity(int(owner.partition(":")[0])) == owner:
        if end:
            end.poll()
        else:
            time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


class WorkerFacts:
    """Facts that only a worker knows, because only it has the device open. vLLM makes its worker inherit this class."""

    def mless_facts(self) -> dict[str, Any]:
        """Device and kernels of this worker, as plain values; None where vLLM or torch does not tell."""
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
    """Call `fact`; return None if it fails, because another version of vLLM keeps the fact elsewhere."""
    try:
        return fact()
    except Exception:
        return None
