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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from harness.engines.completions import Completion
from harness.engines.engine_processes import CONTINUE_ADVICE, make_stop_error
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import EngineError, HarnessError, quote
from harness.experiment.plan import Request
from harness.resources import count_cores

EXCHANGE_SECONDS = 0.1
"""Seconds that a call to a remote engine takes if a completion is ready. Several completions then
share a message."""
FRUITLESS_EXCHANGE_SECONDS = 2.0
"""Seconds after which a call without a completion returns, so that the engine gets new requests."""


@contextmanager
def _explained_errors() -> Iterator[None]:
    """Turn errors of actors and of Ray within the context into errors with a message of one line.

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
        raise EngineError(f"The process of an engine is gone. {CONTINUE_ADVICE}") from error
    except Exception as error:
        raise make_stop_error("Ray", error) from error


class EngineActor:
    """One engine in a process that Ray starts. `RayCarrier` calls its methods."""

    def load(
        self,
        arguments: Mapping[str, Any],
        has_sampled_requests: bool,
        log_path: str,
        omp_threads: str | None,
    ) -> dict[str, Any]:
        """Load the model, and return the engine's facts.

        The processes write to the file `log_path`. `omp_threads` is OMP_NUM_THREADS as the run has
        it; None where it is not set.
        """
        # Ray sets OMP_NUM_THREADS to the number of requested CPUs, and we request none
        os.environ.pop("OMP_NUM_THREADS", None)
        if omp_threads:
            os.environ["OMP_NUM_THREADS"] = omp_threads
        # another machine may not have the folder of the log
        with suppress(OSError), open(log_path, "ab") as log_file:
            os.dup2(log_file.fileno(), 1)
            os.dup2(log_file.fileno(), 2)
        self._engine = VLLMEngine(arguments, has_sampled_requests=has_sampled_requests)
        self._unfinished_count = 0
        return self._engine.facts()

    def exchange(
        self, requests: Sequence[tuple[int, Request]]
    ) -> tuple[list[Completion], list[int]]:
        """Take requests, and work on all that are unfinished.

        This ends when all are finished. Else it ends after EXCHANGE_SECONDS if a completion has
        finished by then, when the first one finishes after that, or without one after
        FRUITLESS_EXCHANGE_SECONDS.

        Returns:
            The completions that have finished, and `VLLMEngine.token_counts`.
        """
        for number, request in requests:
            self._engine.submit(str(number), request)
        self._unfinished_count += len(requests)
        completions: list[Completion] = []
        start_time = time.monotonic()
        deadline = start_time + FRUITLESS_EXCHANGE_SECONDS
        while len(completions) < self._unfinished_count and time.monotonic() < deadline:
            completions += self._engine.step()
            # both limits count from the start of the call
            if completions:
                deadline = start_time + EXCHANGE_SECONDS
        self._unfinished_count -= len(completions)
        return completions, self._engine.token_counts


class RayCarrier:
    """Starts the engines of an `EnginePool` and carries calls to them. Each answer is read once.

    Args:
        arguments: lm-eval's model arguments, for each engine.
        has_sampled_requests: Whether any request will be sampled.
        gpus_per_engine: The number of GPUs of an engine where there are GPUs.
        log_path: A file for the messages of the engines' libraries.

    Attributes:
        gpu_counts: The number of GPUs of each machine that has any. Those of an engine must be on
            one machine.
        core_count: The larger of two numbers of CPU cores: those that this process may use, and
            those of the cluster.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        has_sampled_requests: bool,
        gpus_per_engine: int,
        log_path: Path,
    ) -> None:
        import ray

        self._ray: Any = ray
        self._load_arguments = (
            _make_paths_absolute(arguments),
            has_sampled_requests,
            str(log_path.absolute()),
            os.environ.get("OMP_NUM_THREADS"),
        )
        self._temporary_folder: tempfile.TemporaryDirectory[str] | None = None
        """The files of a Ray that was started here; None with a cluster."""
        self._connect()
        machine_resources = self._list_machine_resources()
        self.gpu_counts = [
            int(resources["GPU"]) for resources in machine_resources if resources.get("GPU", 0) >= 1
        ]
        cluster_core_count = sum(int(resources.get("CPU", 0)) for resources in machine_resources)
        self.core_count = max(count_cores(), cluster_core_count)
        # GPUs limit the number of engines. Without GPUs the user chooses it, and no CPUs are
        # requested, because Ray would not start more engines than it counts CPUs.
        self._actor_class: Any = ray.remote(EngineActor).options(
            num_cpus=0,
            num_gpus=gpus_per_engine if self.gpu_counts else 0,
            max_restarts=0,
            # the pool gives the requests of a lost engine to another one, so a call that Ray
            # repeats would generate them twice
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )

    def _connect(self) -> None:
        """Start Ray on this machine, or connect to the cluster that RAY_ADDRESS names.

        Raises:
            EngineError: Ray does not start, or no cluster answers.
        """
        address = os.environ.get("RAY_ADDRESS") or "local"
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # unless this is set, Ray prints a warning about its next versions
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        try:
            options = {}
            if address == "local":
                options = self._prepare_local_ray()
            else:
                # with this Ray tries to connect once, for 40 seconds, and not twenty times
                os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
            with _restored_sigterm_handler():
                self._ray.init(
                    address=address, logging_level="ERROR", log_to_driver=False, **options
                )
        except Exception as error:
            self.close()
            raise EngineError(
                f"Ray cannot be used (RAY_ADDRESS: {address}): {quote(error)}"
            ) from error
        except BaseException:  # Ctrl-C, or Ray's SystemExit after SIGTERM
            self.close()
            raise KeyboardInterrupt from None

    def _list_machine_resources(self) -> list[dict[str, float]]:
        """The numbers of GPUs, cores and other resources of each machine that is alive."""
        try:
            return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        except BaseException:
            self.close()  # the caller of `__init__` cannot, because it does not get this object
            raise

    def _prepare_local_ray(self) -> dict[str, Any]:
        """Make a folder for Ray on this machine, and return further arguments of `ray.init`."""
        self._temporary_folder = tempfile.TemporaryDirectory(
            prefix="mless-ray-",
            # a short path, because a socket's path has a limited length
            dir=os.environ.get("RAY_TMPDIR") or "/tmp",
            ignore_cleanup_errors=True,
        )
        # without a token in the environment Ray stores one in the home folder
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        # a higher value, such as Ray's default of 15, would give our graders the engine's cores
        os.environ.setdefault("RAY_worker_niceness", "0")
        return {
            "_temp_dir": self._temporary_folder.name,
            # our small messages need no web server, no idle worker for each core, little memory
            "include_dashboard": False,
            "num_cpus": 1,
            "object_store_memory": 2**28,
        }

    @_explained_errors()
    def start(self) -> tuple[Any, Hashable]:
        """Start an actor; return it and its first call, that of `EngineActor.load`."""
        actor = self._actor_class.remote()
        return actor, actor.load.remote(*self._load_arguments)

    @_explained_errors()
    def exchange(self, actor: Any, requests: Sequence[tuple[int, Request]]) -> Any:
        """Call `EngineActor.exchange`, and return the call without waiting for its end."""
        return actor.exchange.remote(requests)

    @_explained_errors()
    def wait(self, calls: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """Wait until a call ends, and return it; return nothing if none ends within `seconds`."""
        # without calls Ray would raise an error
        return self._ray.wait(calls, timeout=seconds)[0] if calls else []

    @_explained_errors()
    def result(self, call: Hashable) -> Any:
        """Wait for a call to end, and return what it returned."""
        return self._ray.get(call)

    @_explained_errors()
    def kill(self, actor: Any) -> None:
        """Kill an actor; its engine's processes end with it."""
        self._ray.kill(actor)

    def close(self) -> None:
        """Leave Ray, stop it if it was started here, and remove its files."""
        self._ray.shutdown()
        if self._temporary_folder:
            self._temporary_folder.cleanup()


def _make_paths_absolute(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The model arguments with absolute paths of folders.

    A relative path may lead elsewhere in an actor, whose working folder may be another.
    """
    absolute_paths = {
        name: str(Path(value).absolute())
        for name, value in arguments.items()
        if name in ("pretrained", "tokenizer") and isinstance(value, str) and Path(value).is_dir()
    }
    return {**arguments, **absolute_paths}


@contextmanager
def _restored_sigterm_handler() -> Iterator[None]:
    """Restore our handler of SIGTERM after the context, if there is one.

    Ray ends the process on SIGTERM. Within a run the signal is an interruption like Ctrl-C.
    """
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
