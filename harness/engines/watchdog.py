"""Calls of an engine that may never answer: made in a thread of their own, and watched.

vLLM's client (0.24 to 0.33) waits for ever if its process dies or hangs, and only a signal to the main thread could
interrupt it. So one thread waits there, and callers in any thread wait here, with a look at the processes every second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from itertools import count
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from harness.errors import EngineError

LOOK_SECONDS = 1.0
"""While we wait for the engine, we look this often whether its process lives."""

STALL_FACTOR = 2
"""The engine hangs if it gives no answer for this many times VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS. That is vLLM's own
limit for one step of its workers (300 s), so where vLLM enforces it, vLLM's error comes first. No step of ours takes as
long: the longest are the first ones, in which kernels are compiled. NCCL gives up after 600 s too."""

CONTINUE = "Everything finished is in the journal: run the same command again to continue."
"""The end of an error in the middle of a run."""


class WatchedCalls:
    """Makes calls one after another in a thread, and gives a caller up when the engine has died or hangs.

    Args:
        processes: The engine's. If one of them is gone, no answer comes.
        step_seconds: The engine's own limit for one step, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS.
        died: Makes the error for a dead engine.
    """

    def __init__(self, processes: Sequence[BaseProcess], step_seconds: float, died: Callable[[], EngineError]) -> None:
        self._processes, self._died = processes, died
        self._stall_seconds = STALL_FACTOR * step_seconds
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._serve, name="mless-engine", daemon=True).start()

    def call(self, method: Callable[[], Any]) -> Any:
        """Have the thread call a method of vLLM's, and wait for the answer.

        Raises:
            EngineError: the engine process has died or hangs, or vLLM raised an error.
        """
        answer: Future[Any] = Future()
        self._calls.put((method, answer))
        for looks in count(1):  # counted, as the clock also runs while this process is stopped by Ctrl-Z or a scheduler
            if wait([answer], timeout=LOOK_SECONDS).done:
                break
            if any(not process.is_alive() for process in self._processes):
                raise self._died()
            if looks * LOOK_SECONDS > self._stall_seconds:
                raise EngineError(
                    f"The engine has not answered for {self._stall_seconds} seconds, and its process lives: a hung "
                    f"GPU, driver or connection between GPUs (look into `dmesg` for Xid). {CONTINUE} If steps "
                    "really take that long, raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS; this limit is "
                    f"{STALL_FACTOR} times it."
                )
        error = answer.exception()
        if error is None:
            return answer.result()
        if type(error).__name__ == "EngineDeadError":
            raise self._died() from error
        raise stopped("vLLM", error) from error

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            method, answer = call
            try:
                answer.set_result(method())
            except Exception as error:
                answer.set_exception(error)

    def close(self) -> None:
        """End the thread behind the last call."""
        self._calls.put(None)


def stopped(program: str, error: BaseException) -> EngineError:
    """The error for a program that answered a request with an error of its own."""
    told = " ".join(str(error).split())[:400].rstrip(".")
    return EngineError(f"{program} stopped: {type(error).__name__}: {told}. Mend the cause. {CONTINUE}")
