"""Calls of vLLM that are given up if the engine has died or hangs.

vLLM's client (0.28 to 0.33) waits for ever if its process dies or hangs, and only a signal to the
main thread could interrupt it. So one thread waits for vLLM, and callers in any thread wait for
this thread.
"""

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any

from harness.engines.engine_processes import (
    CONTINUE_ADVICE,
    POLL_SECONDS,
    ignored_signals,
    make_stop_error,
)
from harness.errors import EngineError

VLLM_ERROR_WAIT_SECONDS = 5
"""Seconds for vLLM to raise an error of its own after a process has died during the start. It names
the cause, and ours does not."""
MOST_INTERRUPTED_POLLS = 60
"""The number of polls after which an interrupted start is abandoned. vLLM reads the model's files
before it starts processes that can be ended."""
STALL_FACTOR = 2
"""An engine counts as hanging if it gives no answer within this multiple of vLLM's own limit for a
step (300 s). Where vLLM enforces its limit, its error comes first. The longest steps are the first
ones, in which kernels are compiled."""


class WatchedCalls:
    """Makes one call after another in a thread; gives it up if the engine has died or hangs.

    The thread is a daemon: Python would wait for the thread of an executor when it exits.

    Args:
        processes: The engine's processes, which may be added later. If one of them has ended, no
            answer comes.
        step_limit_seconds: vLLM's own limit for one step, VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS.
        make_death_error: Makes the error for a dead engine.
    """

    def __init__(
        self,
        processes: Collection[BaseProcess],
        step_limit_seconds: float,
        make_death_error: Callable[[], EngineError],
    ) -> None:
        self._processes = processes
        self._make_death_error = make_death_error
        self._stall_seconds = STALL_FACTOR * step_limit_seconds
        self._queue: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        """Calls for the thread, each with the future that gets its answer; None ends the thread."""
        threading.Thread(target=self._make_calls, name="mless-engine", daemon=True).start()

    def start(self, make_engine: Callable[[], Any]) -> Any:
        """Have the thread call `make_engine`, which starts vLLM, and return the engine.

        vLLM raises an error if a process dies while it loads the model. If it dies just after that,
        vLLM sends it a first message and waits for the answer for ever. So this does not wait for
        vLLM's error for more than VLLM_ERROR_WAIT_SECONDS.

        Raises:
            RuntimeError: a process has died, and vLLM has not noticed.
            BaseException: whatever vLLM raises.
        """
        future: Future[Any] = Future()
        self._queue.put((make_engine, future))
        poll_count_since_death = 0
        try:
            while not wait([future], timeout=POLL_SECONDS).done:
                if self._has_dead_process():
                    poll_count_since_death += 1
                if poll_count_since_death * POLL_SECONDS > VLLM_ERROR_WAIT_SECONDS:
                    raise RuntimeError(
                        "Engine core initialization failed: its process ended just after it had "
                        "loaded the model."
                    )
            return future.result()
        except BaseException:
            self.close()
            # Ctrl-C ends the wait while the call goes on. After a process has died, the call may
            # never end.
            self._kill_until_done(future, 1 if poll_count_since_death else MOST_INTERRUPTED_POLLS)
            raise

    def _kill_until_done(self, future: Future[Any], most_polls: int) -> None:
        """Kill the engine's processes once a second until the call of a start ends.

        The call ends when vLLM notices that they are gone. Those that it starts meanwhile are
        killed in the next round.

        Args:
            future: The call's.
            most_polls: The number of rounds after which the call is abandoned.
        """
        with ignored_signals():
            for _ in range(most_polls):
                for process in list(self._processes):
                    process.kill()
                if wait([future], timeout=POLL_SECONDS).done:
                    break

    def _has_dead_process(self) -> bool:
        """Whether any process of the engine has ended."""
        # a copy, because vLLM may add a process meanwhile, in the other thread
        return any(not process.is_alive() for process in list(self._processes))

    def call(self, method: Callable[[], Any]) -> Any:
        """Have the thread call a method of vLLM's, and wait for the answer.

        Raises:
            EngineError: the engine process has died or hangs, or vLLM raised an error.
        """
        future: Future[Any] = Future()
        self._queue.put((method, future))
        # Polls are counted, because the clock also runs while Ctrl-Z or a scheduler has stopped
        # this process.
        poll_count = 0
        while not wait([future], timeout=POLL_SECONDS).done:
            poll_count += 1
            if self._has_dead_process():
                raise self._make_death_error()
            if poll_count * POLL_SECONDS > self._stall_seconds:
                raise EngineError(
                    f"The engine has not answered for {self._stall_seconds} seconds, and its "
                    "process lives: it hangs (see `dmesg`), or its steps take longer than "
                    f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS. {CONTINUE_ADVICE}"
                )
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, EngineError):
            raise error
        if type(error).__name__ == "EngineDeadError":
            raise self._make_death_error() from error
        raise make_stop_error("vLLM", error) from error

    def _make_calls(self) -> None:
        """Make the calls of the queue one after another, in the thread."""
        # `close` puts None, which ends the loop
        for method, future in iter(self._queue.get, None):
            try:
                future.set_result(method())
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        """End the thread after the last call."""
        self._queue.put(None)
