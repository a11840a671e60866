"""What vLLM runs in each of its own processes: with it, an engine never outlives the run that started it.

Without it a killed run leaves its engine behind, holding the GPU's memory, so that the run cannot be continued. vLLM
calls every function of the entry-point group `vllm.general_plugins` in all processes that it starts.
"""

from __future__ import annotations

import ctypes
import os
import signal

OWNER_VARIABLE = "MLESS_ENGINE_OWNER"
"""Process id of the run; unset where vLLM is used without mless, and then nothing is done."""

PLUGIN = "mless"
"""Its name in the entry-point group."""

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux; elsewhere nothing is done)."""
    owner = os.environ.get(OWNER_VARIABLE)
    if not owner or int(owner) == os.getpid():
        return
    parent = os.getppid()
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):
        return
    if os.getppid() != parent or not _alive(int(owner)):  # it died before we asked
        os._exit(1)


def _alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except OSError:
        return False
    return True
