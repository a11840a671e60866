"""The processes of an engine: they end with their run, and say what they run on.

`die_with_parent` and `WorkerFacts` run inside vLLM's own processes. Without the first a killed run
would leave its engine behind. The engine would hold the GPU's memory, so the run could not be
continued. vLLM calls every function of the entry-point group `vllm.general_plugins` in each process
that it starts. It does not do so in forked processes, because their parent has called the group
already; the hook for forks covers these.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import EngineError, quote_error

POLL_SECONDS = 1.0
"""Seconds after which a waiting call checks the processes again, and the run reports that it is
alive."""

OWNER_VARIABLE = "MLESS_ENGINE_OWNER"
"""The run's process, as `process_identity` writes it; unset where vLLM is used without mless."""

PLUGIN_NAME = "mless"
"""The name of `die_with_parent` in the entry-point group, and of open layers in vLLM's
`additional_config`."""
RECORD_KEY = "mless-record"
"""The key in a request's `extra_args` of the queries whose attention is summed. The key of its
intervention is PLUGIN_NAME."""
SETS_WITHOUT_OWN_TOKEN = 2
"""A request has sets of queries over which attention is summed. A query's attention to its own
token does not count in the first sets, of which this is the number. It counts in all later sets."""
CHANGE_OPERATION = "mless::change_rows"
"""The operation in vLLM's graphs that changes activations."""

WORKER_EXTENSION = f"{__name__}.WorkerFacts"
"""A value for vLLM's engine argument `worker_extension_cls`."""

CONTINUE_ADVICE = "Everything finished is in the journal: run the same command again to continue."
"""The last sentence of an error in the middle of a run."""


def die_with_parent() -> None:
    """Start a thread that ends this process when the run that started it ends.

    The kernel's own `PR_SET_PDEATHSIG` does not help here: it fires when the *thread* that started
    the process ends, and vLLM 0.33 starts its workers from a pool of threads.

    Because vLLM calls this early in each of its processes, it also lowers the level of vLLM's log.
    """
    owner_identity = os.environ.get(OWNER_VARIABLE)
    # vLLM also calls this without a run of mless, and in the run's own process
    if not owner_identity or owner_identity == process_identity(os.getpid()):
        return
    threading.Thread(
        target=_end_with_owner, args=(owner_identity,), name="mless-owner-watch", daemon=True
    ).start()
    # mless sets the level ERROR to keep vLLM silent in the run's own process. The messages of this
    # process go to libraries.log, where those of level INFO say how far the start is.
    if os.environ.get("VLLM_LOGGING_LEVEL") == "ERROR":
        logger = logging.getLogger("vllm")
        logger.setLevel(logging.INFO)
        for handler in logger.handlers:
            handler.setLevel(logging.INFO)


# at import, which happens once, so that each process has one such hook
os.register_at_fork(after_in_child=die_with_parent)


def process_identity(process_id: int) -> str:
    """Process id and start time, because ids are used again.

    It is empty if the process has ended, reaped or not.
    """
    try:
        stat_line = Path(f"/proc/{process_id}/stat").read_text()
    except OSError:
        return ""
    # Field 2 is the program's name in parentheses, and may contain blanks and parentheses.
    state, *later_fields = stat_line.rpartition(") ")[2].split()
    # The states of a process that has ended are Z before it is reaped, and X after that
    # (proc_pid_stat(5)).
    if state in "ZX":
        return ""
    # field 22 is the time of the start, and `later_fields` begins with field 4
    return f"{process_id}:{later_fields[22 - 4]}"


def _end_with_owner(owner_identity: str) -> None:
    """Kill this process as soon as the owner has ended; see `process_identity`."""
    # the identity begins with the process id, as in `4711:86523`
    while process_identity(int(owner_identity.partition(":")[0])) == owner_identity:
        time.sleep(POLL_SECONDS)
    # not SIGTERM, because vLLM's handler may only note that signal
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def started_processes() -> Iterator[list[BaseProcess]]:
    """Collect the processes that are started within the context.

    Python's own list of them loses a process when it ends, and with it the exit code.
    """
    processes: list[BaseProcess] = []
    original_start = BaseProcess.start

    def start_and_collect(process: BaseProcess) -> None:
        """Stands in for `BaseProcess.start` within the context."""
        original_start(process)
        processes.append(process)

    BaseProcess.start = start_and_collect  # type: ignore[assignment, method-assign]
    try:
        yield processes
    finally:
        BaseProcess.start = original_start  # type: ignore[method-assign]


class WorkerFacts:
    """Facts that only vLLM's worker knows, because only its process has the device open.

    vLLM makes its worker class inherit this class: see WORKER_EXTENSION.
    """

    local_rank: int
    vllm_config: Any

    def mless_facts(self) -> dict[str, Any]:
        """Device and kernels of this worker as plain values; None where they cannot be read."""
        import torch
        from vllm.platforms import current_platform

        def attention_backends() -> list[str]:
            """The names of vLLM's attention kernels in all layers, each once."""
            layers = self.vllm_config.compilation_config.static_forward_context.values()
            return sorted(
                {
                    layer.get_attn_backend().get_name()
                    for layer in layers
                    if hasattr(layer, "get_attn_backend")  # layers of experts have no such method
                }
            )

        def compute_capability() -> Any:
            """The version of a GPU's instructions, such as 9.0, or the name of a CPU's."""
            capability = current_platform.get_device_capability(self.local_rank)
            if capability:
                return capability.as_version_str()
            return torch.backends.cpu.get_cpu_capability()

        def card() -> str | None:
            """The UUID of the device; without one, the cards that the process may use."""
            with suppress(NotImplementedError):  # a CPU has none
                return str(current_platform.get_device_uuid(self.local_rank))
            return os.environ.get("CUDA_VISIBLE_DEVICES")

        getter_by_name = {
            "card": card,
            "device_name": lambda: current_platform.get_device_name(self.local_rank),
            "compute_capability": compute_capability,
            "cuda": lambda: torch.version.cuda or torch.version.hip,
            "attention_backends": attention_backends,
            "triton_f32_default": lambda: os.environ.get("TRITON_F32_DEFAULT"),
            "batch_invariant": lambda: bool(int(os.environ.get("VLLM_BATCH_INVARIANT", "0"))),
        }
        return {name: read_fact(getter) for name, getter in getter_by_name.items()}


def read_fact(getter: Callable[[], Any]) -> Any:
    """Call `getter`; return None if it fails, as versions of vLLM store a fact differently."""
    try:
        return getter()
    except Exception:
        return None


def make_stop_error(program: str, error: BaseException) -> EngineError:
    """The error that ends a run because a program such as vLLM has raised `error`."""
    return EngineError(f"{program} stopped: {quote_error(error).rstrip('.')}. {CONTINUE_ADVICE}")


@contextmanager
def ignored_signals() -> Iterator[None]:
    """Ignore Ctrl-C and SIGTERM within the context."""
    handler_by_signal = {}
    # Python handles signals in the main thread, and only that thread may set handlers
    if threading.current_thread() is threading.main_thread():
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            handler_by_signal[signal_number] = signal.signal(signal_number, signal.SIG_IGN)
    try:
        yield
    finally:
        for signal_number, handler in handler_by_signal.items():
            signal.signal(signal_number, handler)


@contextmanager
def end_processes_with_run() -> Iterator[None]:
    """Have the processes that are started within the context end with this process.

    They do not import the script of this process again, which then needs no main guard.
    """
    main_module = sys.modules["__main__"]
    # A spawned process imports the file of `__main__`. An empty module has no file.
    sys.modules["__main__"] = ModuleType("__main__")
    user_plugins = os.environ.get("VLLM_PLUGINS")
    os.environ[OWNER_VARIABLE] = process_identity(os.getpid())
    if user_plugins is not None:
        # where the user names plugins, vLLM calls no others
        os.environ["VLLM_PLUGINS"] = f"{user_plugins},{PLUGIN_NAME}".lstrip(",")
    try:
        yield
    finally:
        sys.modules["__main__"] = main_module
        del os.environ[OWNER_VARIABLE]
        if user_plugins is not None:
            os.environ["VLLM_PLUGINS"] = user_plugins
