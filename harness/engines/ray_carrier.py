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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.engines.engine_processes import CONTINUE, stopped
from harness.engines.vllm_engine import Finished, VLLMEngine
from harness.errors import QUOTED_CHARACTERS, EngineError, HarnessError
from harness.experiment.plan import Request
from harness.resources import count_cores

EXCHANGE_SECONDS, LONGEST_EXCHANGE_SECONDS = 0.1, 2.0
"""A call of a distant engine ends after the first with a completion, so that messages are few, and after the second
without, so that new requests come in."""


@contextmanager
def _explained() -> Iterator[None]:
    """What Ray itself raises becomes one line, such as when its own processes are gone."""
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:
        raise stopped("Ray", error) from error


class EngineActor:
    """One engine in a process of its own, which Ray starts. Its methods are called from `RayCarrier`."""

    def load(
        self, arguments: Mapping[str, Any], sampled: bool, log: str | None, threads: str | None
    ) -> dict[str, Any]:
        """Load the model; return the engine's facts. `threads` is the run's own OMP_NUM_THREADS."""
        take_gpus()
        for name in [name for name in os.environ if name.startswith("VLLM_DP_")]:
            del os.environ[
                name
            ]  # a launcher's, meant for its own ranks: vLLM would wait for the others
        os.environ.pop(
            "OMP_NUM_THREADS", None
        )  # Ray's, from a number of CPUs that we do not ask for
        os.environ |= {"OMP_NUM_THREADS": threads} if threads else {}
        try:
            with open(log or os.devnull, "ab") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
        except OSError:  # on another machine, which has no such folder
            pass
        self._engine = VLLMEngine(arguments, sampled=sampled)
        self._held: set[str] = set()
        return self._engine.facts()

    def exchange(self, new: Sequence[tuple[int, Request]]) -> list[tuple[int, Finished | int]]:
        """Take requests, work for a moment; return what has finished, and how many tokens the others have so far."""
        for number, request in new:
            self._engine.submit(str(number), request)
            self._held.add(str(number))
        finished: list[Finished] = []
        started = time.monotonic()
        while self._held and time.monotonic() - started < (
            EXCHANGE_SECONDS if finished else LONGEST_EXCHANGE_SECONDS
        ):
            done = self._engine.step()
            self._held.difference_update(one.request_id for one in done)
            finished += done
        return [*((int(one.request_id), one) for one in finished), *self._engine.so_far.items()]


def take_gpus() -> None:
    """Make visible to this actor the GPUs that Ray gave it, and no others.

    Ray does so itself, but not where RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is set, as some launchers have it.
    """
    import ray

    ids = sorted(
        map(str, ray.get_runtime_context().get_accelerator_ids()["GPU"]),
        key=lambda one: (len(one), one),
    )
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES") if ids else ():
        os.environ[name] = ",".join(ids)


class RayCarrier:
    """Starts the engines of an `EnginePool` and carries calls to them. A call is asked for its answer once.

    Attributes:
        gpus: How many each machine has, of those that have any; an engine's must be on one.
        cores: How many CPU cores this process may use, or the cluster has where that is more.
    """

    def __init__(
        self,
        arguments: Mapping[str, Any],
        *,
        sampled: bool,
        gpus_each: int = 1,
        log: Path | None = None,
    ) -> None:
        import ray

        self._ray: Any = ray
        folders = {  # an actor may be in another folder
            name: str(Path(arguments[name]).absolute())
            for name in ("pretrained", "tokenizer")
            if isinstance(arguments.get(name), str) and Path(arguments[name]).is_dir()
        }
        threads = os.environ.get("OMP_NUM_THREADS")
        self._load = ({**arguments, **folders}, sampled, log and str(log.absolute()), threads)
        self._folder: str | None = None
        self._ours = not ray.is_initialized()
        atexit.register(
            self.close
        )  # lm-eval closes no model, and an interruption may come too early for us to
        if self._ours:
            self._connect()
        found = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self.gpus = [int(node["GPU"]) for node in found if node.get("GPU", 0) >= 1]
        self.cores = max(count_cores(), sum(int(node.get("CPU", 0)) for node in found))
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
            EngineError: Ray does not start, or no cluster answers.
        """
        address = os.environ.get("RAY_ADDRESS") or "local"
        options: dict[str, Any] = {
            "address": address,
            "logging_level": "ERROR",
            "log_to_driver": False,
        }
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault(
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
        )  # else Ray warns of what it will do one day
        try:
            if address == "local":
                parent = (
                    os.environ.get("RAY_TMPDIR") or "/tmp"
                )  # a short path, because sockets lie in it
                self._folder = tempfile.mkdtemp(prefix="mless-ray-", dir=parent)
                os.environ.setdefault(
                    "RAY_AUTH_TOKEN", secrets.token_hex(32)
                )  # else Ray keeps one in the home folder
                os.environ.setdefault(
                    "RAY_worker_niceness", "0"
                )  # Ray's 15 would give our graders the engine's cores
                # no web server, no idle workers for every core, and memory for our small messages
                options |= {"include_dashboard": False, "num_cpus": 1, "object_store_memory": 2**28}
                options["_temp_dir"] = self._folder
            else:  # one try of 40 seconds, where Ray makes twenty
                os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
            with _signals_kept():
                self._ray.init(**options)
        except SystemExit:  # Ray's answer to SIGTERM while it starts
            raise KeyboardInterrupt from None
        except Exception as error:
            self.close()
            said = " ".join(str(error).split())[:QUOTED_CHARACTERS]
            raise EngineError(f"Ray cannot be used (RAY_ADDRESS: {address}): {said}") from error

    @_explained()
    def start(self) -> tuple[Any, Hashable]:
        """Start an actor; return it, and the call that loads the model and answers with the engine's facts."""
        actor = self._actor.remote()
        return actor, actor.load.remote(*self._load)

    @_explained()
    def exchange(self, engine: Any, new: Sequence[tuple[int, Request]]) -> Hashable:
        """Send requests to an actor; the call answers as `EngineActor.exchange`."""
        call: Hashable = engine.exchange.remote(new)
        return call

    @_explained()
    def wait(self, calls: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """The calls that are answered; wait until there is one, or the time is over."""
        if calls:
            self._ray.wait(calls, timeout=seconds)
        return list(calls and self._ray.wait(calls, num_returns=len(calls), timeout=0)[0])

    @_explained()
    def answer(self, call: Hashable) -> Any:
        """The answer to a call.

        Raises:
            HarnessError: the engine's own, with its message.
            EngineError: the actor's process is gone, or Ray has lost the answer.
        """
        try:
            return self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            own = isinstance(error.cause, HarnessError)
            raise error.cause if own else stopped("An engine", error.cause) from error
        except self._ray.exceptions.ActorDiedError as error:
            raise EngineError(f"The process of an engine is gone. {CONTINUE}") from error

    @_explained()
    def kill(self, engine: Any) -> None:
        """Kill an actor; its engine's processes end with it."""
        self._ray.kill(engine)

    def close(self) -> None:
        """Leave Ray, stop it if it was started here, and remove its files."""
        if self._ours:
            self._ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
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
