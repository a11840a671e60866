"""Engines in Ray actors: on this machine, or on the cluster that RAY_ADDRESS names. All of Ray's API is used here.

Each actor is one process with one `VLLMEngine`. Ray gives it its GPUs and repeats no call: `EnginePool` decides what is
asked again after a loss, because only it knows which samples are there.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.engines.vllm import Finished, VLLMEngine, restore_environment
from harness.engines.watchdog import CONTINUE, stopped
from harness.errors import ConfigError, EngineError, HarnessError
from harness.experiment.requests import Request

ENOUGH_SECONDS = 0.1
"""An exchange with a completion ends after this time, so that messages are few."""

LONGEST_SECONDS = 2.0
"""An exchange without a completion ends after this time, so that new requests come in."""

LOCAL: dict[str, Any] = {"include_dashboard": False, "num_cpus": 1, "object_store_memory": 2**28}
"""What Ray is started with here: no web server, no idle workers for every core, and memory for our small messages."""


class EngineActor:
    """One engine in a process of its own, which Ray starts. Its methods are called from `RayCarrier`."""

    def load(self, arguments: Mapping[str, Any], sampled: bool, log: str | None, threads: str | None) -> dict[str, Any]:
        """Load the model; return the engine's facts. `threads` is the run's own OMP_NUM_THREADS."""
        for name in [name for name in os.environ if name.startswith("VLLM_DP_")]:
            del os.environ[name]  # a launcher's, meant for its own ranks: vLLM would wait for the others
        # where nobody set it Ray did, from a number of CPUs that we do not ask for
        restore_environment({"OMP_NUM_THREADS": threads})
        try:
            with open(log or os.devnull, "ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        except OSError:  # on another machine, which has no such folder
            pass
        self._engine = VLLMEngine(arguments, sampled=sampled)
        self._held: set[str] = set()
        return self._engine.facts()

    def exchange(self, new: Sequence[tuple[int, Request]]) -> list[tuple[int, Finished]]:
        """Take requests, let the engine work for a moment, and return what has finished."""
        for number, request in new:
            self._engine.submit(str(number), request)
            self._held.add(str(number))
        finished: list[Finished] = []
        started = time.monotonic()
        while self._held and time.monotonic() - started < (ENOUGH_SECONDS if finished else LONGEST_SECONDS):
            done = self._engine.step()
            self._held.difference_update(one.request_id for one in done)
            finished += done
        return [(int(one.request_id), one) for one in finished]


class RayCarrier:
    """The `Carrier` of an `EnginePool`.

    Attributes:
        gpus: How many each machine has, of those that have any; an engine's must be on one.
        cores: How many CPU cores this process may use, or the cluster has where that is more.
    """

    def __init__(
        self, arguments: Mapping[str, Any], *, sampled: bool, gpus_each: int = 1, log: Path | None = None
    ) -> None:
        import ray

        self._ray: Any = ray
        self._sampled, self._log = sampled, log and str(log.absolute())
        self._threads = os.environ.get("OMP_NUM_THREADS")
        folders = {  # an actor may be in another folder
            name: str(Path(arguments[name]).absolute())
            for name in ("pretrained", "tokenizer")
            if isinstance(arguments.get(name), str) and Path(arguments[name]).is_dir()
        }
        self._arguments = {**arguments, **folders}
        self._before: dict[str, str | None] = {}
        self._folder: str | None = None
        self._ours = not ray.is_initialized()
        atexit.register(self.close)  # lm-eval closes no model, and an interruption may come too early for us to
        if self._ours:
            self._connect()
        found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self.gpus = [int(node["GPU"]) for node in found if node.get("GPU", 0) >= 1]
        self.cores = max(len(os.sched_getaffinity(0)), sum(int(node.get("CPU", 0)) for node in found))
        # No CPUs are asked for: an engine is counted by its GPUs, and where there are none by the user.
        self._actor: Any = ray.remote(EngineActor).options(
            num_cpus=0,
            num_gpus=gpus_each if self.gpus else 0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )

    def _connect(self) -> None:
        """Start Ray on this machine, or connect to the cluster that RAY_ADDRESS names.

        Raises:
            ConfigError: RAY_TMPDIR is no folder for it.
            EngineError: Ray does not start, or no cluster answers.
        """
        variables = {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns of what it will do one day
        }
        address = os.environ.get("RAY_ADDRESS") or "local"
        if address == "local":
            parent = os.environ.get("RAY_TMPDIR") or "/tmp"  # a short path, because sockets lie in it
            try:
                self._folder = tempfile.mkdtemp(prefix="mless-ray-", dir=parent)
            except OSError as error:
                self.close()
                raise ConfigError(
                    f"Ray's files cannot be made in {parent!r} ({error.strerror}). Expected RAY_TMPDIR to be a folder "
                    "that can be written. Make it, or unset RAY_TMPDIR to use /tmp."
                ) from None
            variables |= {
                "RAY_TMPDIR": self._folder,
                "RAY_AUTH_TOKEN": secrets.token_hex(32),  # else Ray writes one into the home folder
                "RAY_worker_niceness": "0",  # Ray's 15 would give our graders the engine's cores
            }
        else:
            variables["RAY_gcs_server_port_wait_time_s"] = "1"  # one try of 40 seconds, where Ray makes twenty
        for name, value in variables.items():
            if name == "RAY_TMPDIR" or name not in os.environ:
                self._before[name] = os.environ.get(name)
                os.environ[name] = value
        try:
            with _signals_kept():
                self._ray.init(
                    address=address, logging_level="ERROR", log_to_driver=False, **(LOCAL if address == "local" else {})
                )
        except SystemExit:  # Ray's answer to SIGTERM while it starts
            raise KeyboardInterrupt from None
        except Exception as error:
            self.close()
            where = "on this machine" if address == "local" else f"at {address} (RAY_ADDRESS)"
            raise EngineError(
                f"Ray {where} cannot be used: {' '.join(str(error).split())[:300]}. Expected it to start, or a "
                "running cluster. Mend the cause, or run one engine: leave --engines out."
            ) from error

    def start(self) -> tuple[Any, Any]:
        """Start an actor; return it, and the call that loads the model."""
        with self._explained():
            actor = self._actor.remote()
            return actor, actor.load.remote(self._arguments, self._sampled, self._log, self._threads)

    def exchange(self, engine: Any, new: Sequence[tuple[int, Request]]) -> Any:
        """Send requests to an actor."""
        with self._explained():
            return engine.exchange.remote(new)

    def wait(self, calls: Sequence[Any], seconds: float) -> Sequence[Any]:
        """The calls that are answered."""
        with self._explained():
            if calls:
                self._ray.wait(list(calls), timeout=seconds)
            return list(calls and self._ray.wait(list(calls), num_returns=len(calls), timeout=0)[0])

    def answer(self, call: Any) -> Any:
        """The answer to a call.

        Raises:
            HarnessError: the engine's own, with its message.
            EngineError: the actor's process is gone, or Ray has lost the answer.
        """
        with self._explained():
            try:
                return self._ray.get(call)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, HarnessError):
                    raise error.cause from None
                raise stopped("An engine", error.cause) from error
            except self._ray.exceptions.ActorDiedError as error:
                raise EngineError(
                    f"The process of an engine is gone: it was killed, or its machine is lost. {CONTINUE}"
                ) from error

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """What Ray itself raises becomes one line, such as when its own processes are gone."""
        try:
            yield
        except HarnessError:
            raise
        except Exception as error:
            raise stopped("Ray", error) from error

    def kill(self, engine: Any) -> None:
        """Kill an actor; its engine's processes end with it."""
        with self._explained():
            self._ray.kill(engine)

    def close(self) -> None:
        """Leave Ray, stop it if it was started here, and remove its files."""
        if self._ours:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        restore_environment(self._before)
        atexit.unregister(self.close)


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray ends the process on SIGTERM. Within a run that is an interruption like Ctrl-C; elsewhere Ray has its way."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if before is not signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
