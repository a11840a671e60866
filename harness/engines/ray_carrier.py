"""Engines in Ray actors, on this machine or on the cluster that RAY_ADDRESS names.

All of Ray's API that mless uses is used here. Each actor is one process with one `VLLMEngine`. Ray
gives it its GPUs and repeats no call: `EnginePool` decides what is generated again after a loss,
because only it knows which samples are there.
"""

import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.engines.completions import Completion
from harness.engines.engine_processes import CONTINUE, make_stop_error
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import EngineError, HarnessError, quote
from harness.experiment.plan import Request
from harness.resources import count_cores

EXCHANGE_SECONDS, LONGEST_EXCHANGE_SECONDS = 0.1, 2.0
"""Seconds after which a call to a remote engine returns: the first if a completion is ready, so
that messages are few; the second if none is, so that new requests arrive."""


@contextmanager
def _explained_errors() -> Iterator[None]:
    """Errors of actors and of Ray become errors of one line.

    Raises:
        HarnessError: the engine's own, with its message.
        EngineError: the actor's process is gone, or Ray has lost the answer.
    """
    import ray

    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HarnessError):
            raise error.cause from error
        raise make_stop_error("An engine", error.cause) from error
    except ray.exceptions.ActorDiedError as error:
        raise EngineError(f"The process of an engine is gone. {CONTINUE}") from error
    except Exception as error:
        raise make_stop_error("Ray", error) from error


class EngineActor:
    """One engine in a process that Ray starts. `RayCarrier` calls its methods."""

    def load(
        self, arguments: Mapping[str, Any], sampled: bool, log: str, threads: str | None
    ) -> dict[str, Any]:
        """Load the model; return the engine's facts. `threads` is the run's own OMP_NUM_THREADS."""
        # set by Ray, from a number of CPUs that we do not request
        os.environ.pop("OMP_NUM_THREADS", None)
        if threads:
            os.environ["OMP_NUM_THREADS"] = threads
        try:
            with open(log, "ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        except OSError:  # on another machine, which has no such folder
            pass
        self._engine = VLLMEngine(arguments, sampled=sampled)
        self._unfinished = 0
        return self._engine.facts()

    def exchange(
        self, requests: Sequence[tuple[int, Request]]
    ) -> tuple[list[Completion], list[int]]:
        """Take requests and work for a moment.

        Returns:
            The completions that have finished, and `VLLMEngine.token_counts`.
        """
        for number, request in requests:
            self._engine.submit(str(number), request)
        self._unfinished += len(requests)
        completions: list[Completion] = []
        started, seconds = time.monotonic(), LONGEST_EXCHANGE_SECONDS
        while len(completions) < self._unfinished and time.monotonic() - started < seconds:
            completions += self._engine.step()
            if completions:
                seconds = EXCHANGE_SECONDS
        self._unfinished -= len(completions)
        return completions, self._engine.token_counts


class RayCarrier:
    """Starts the engines of an `EnginePool` and carries calls to them. Each answer is read once.

    Attributes:
        gpus: The number of GPUs of each machine that has any. Those of an engine must be on one
            machine.
        cores: The CPU cores that this process may use, or those of the cluster where these are
            more.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        sampled: bool,
        engine_gpus: int,
        log: Path,
    ) -> None:
        import ray

        self._ray: Any = ray
        arguments = dict(arguments)
        for name in ("pretrained", "tokenizer"):  # an actor may be in another working folder
            path = arguments.get(name)
            if isinstance(path, str) and Path(path).is_dir():
                arguments[name] = str(Path(path).absolute())
        threads = os.environ.get("OMP_NUM_THREADS")
        self._load_arguments = arguments, sampled, str(log.absolute()), threads
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._connect()
        try:
            nodes = self._ray.nodes()
        except BaseException:
            self.close()  # nobody else closes a carrier that was not made
            raise
        machines = [node["Resources"] for node in nodes if node["Alive"]]
        self.gpus = [int(machine["GPU"]) for machine in machines if machine.get("GPU", 0) >= 1]
        self.cores = max(count_cores(), sum(int(machine.get("CPU", 0)) for machine in machines))
        # GPUs limit the number of engines. Without GPUs the user chooses it, and no CPUs are
        # requested, because Ray would not start more engines than it counts CPUs.
        self._actor: Any = ray.remote(EngineActor).options(
            num_cpus=0,
            num_gpus=engine_gpus if self.gpus else 0,
            max_restarts=0,
            # a repeated call would generate samples that the pool has already handed out again
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )

    def _connect(self) -> None:
        """Start Ray on this machine, or connect to the cluster that RAY_ADDRESS names.

        Raises:
            EngineError: Ray does not start, or no cluster answers.
        """
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {
            "address": address,
            "logging_level": "ERROR",
            "log_to_driver": False,
        }
        variables = {
            "RAY_USAGE_STATS_ENABLED": "0",
            # otherwise Ray warns of a future change
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }
        try:
            if address == "local":
                # a short path, because that of a socket is limited
                parent = os.environ.get("RAY_TMPDIR") or "/tmp"
                self._folder = tempfile.TemporaryDirectory(
                    prefix="mless-ray-", dir=parent, ignore_cleanup_errors=True
                )
                # otherwise Ray stores a token in the home folder
                variables["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
                # Ray's 15 would give our graders the engine's cores
                variables["RAY_worker_niceness"] = "0"
                # our small messages need no web server, no idle worker for each core, little memory
                options |= {"include_dashboard": False, "num_cpus": 1, "object_store_memory": 2**28}
                options["_temp_dir"] = self._folder.name
            else:  # one try of 40 seconds, where Ray makes twenty
                variables["RAY_gcs_server_port_wait_time_s"] = "1"
            for name, value in variables.items():
                os.environ.setdefault(name, value)
            with _own_sigterm_handler():
                self._ray.init(**options)
        except Exception as error:
            self.close()
            raise EngineError(
                f"Ray cannot be used (RAY_ADDRESS: {address}): {quote(error)}"
            ) from error
        except BaseException:  # Ctrl-C, or Ray's SystemExit after SIGTERM
            self.close()
            raise KeyboardInterrupt from None

    @_explained_errors()
    def start(self) -> tuple[Any, Hashable]:
        """Start an actor; return it, and its call of `EngineActor.load`."""
        actor = self._actor.remote()
        return actor, actor.load.remote(*self._load_arguments)

    @_explained_errors()
    def exchange(self, engine: Any, requests: Sequence[tuple[int, Request]]) -> Any:
        """Call `EngineActor.exchange`."""
        return engine.exchange.remote(requests)

    @_explained_errors()
    def wait(self, calls: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """A call that is answered, if there is one before the time is over."""
        return list(self._ray.wait(calls, timeout=seconds)[0]) if calls else []

    @_explained_errors()
    def result(self, call: Hashable) -> Any:
        """Wait for a call to end, and return what it returned."""
        return self._ray.get(call)

    @_explained_errors()
    def kill(self, engine: Any) -> None:
        """Kill an actor; its engine's processes end with it."""
        self._ray.kill(engine)

    def close(self) -> None:
        """Leave Ray, stop it if it was started here, and remove its files."""
        self._ray.shutdown()
        if self._folder:
            self._folder.cleanup()


@contextmanager
def _own_sigterm_handler() -> Iterator[None]:
    """Restore our handler of SIGTERM after the context, if there is one.

    Ray ends the process on SIGTERM. Within a run the signal is an interruption like Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
