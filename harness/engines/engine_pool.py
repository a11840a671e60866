"""Several engines behind one stream. It looks like that of one engine, and no sample is lost if an engine is lost.

The pool decides which engine gets which request and what happens when an engine is lost. The carrier decides where the
engines live and how they are called: see `ray_carrier`.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import socket
import sys
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness.engines.vllm import Finished, VLLMEngine, refuse_too_long, undisturbed
from harness.engines.watchdog import CONTINUE, STALL_FACTOR
from harness.errors import ConfigError, EngineError, HarnessError, MissingDependencyError
from harness.experiment.requests import Request

TURN_SECONDS = 1.0
"""The stream yields at least this often, so that a run shows life."""

SPARE = 1.1
"""Requests that an engine holds, for each that it can run at once: it always has some at hand while answers travel."""

FRUITLESS_STARTS = 3
"""After so many starts in a row without a sample no engine is started any more, while another one works."""

LOAD_SECONDS = 300
"""Loading may take as long as it takes; after this time we ask the user whether the engine has a GPU at all."""

AUTO = "auto"
DATA_PARALLEL = "data_parallel_size"


class Carrier(Protocol):
    """Starts engines somewhere and carries calls to them. A call is anything hashable; each is asked for once."""

    def start(self) -> tuple[Any, Hashable]:
        """Start an engine; return it, and the call that loads the model and answers with the engine's facts."""

    def exchange(self, engine: Any, new: Sequence[tuple[int, Request]]) -> Hashable:
        """Give requests to an engine; the call answers with the numbers and completions of what has finished."""

    def wait(self, calls: Sequence[Hashable], seconds: float) -> Sequence[Hashable]:
        """The calls that are answered; wait until there is one, or the time is over."""

    def answer(self, call: Hashable) -> Any:
        """The answer to a call. Raises HarnessError if the engine failed or its process is gone."""

    def kill(self, engine: Any) -> None:
        """End an engine at once."""

    def close(self) -> None:
        """End everything that was started."""


@dataclass(slots=True, eq=False)
class _Engine:
    """One engine of the pool.

    Attributes:
        handle: The carrier's.
        call: The call in flight; None between two.
        silent: For how many seconds of our own time it has not been answered.
        facts: What the engine told of itself; empty while it loads.
        held: The requests that it has, by number.
        samples: How many it has made.
    """

    handle: Any
    call: Hashable | None
    silent: float = 0
    facts: dict[str, Any] = field(default_factory=dict)
    held: dict[int, Request] = field(default_factory=dict)
    samples: int = 0

    @property
    def room(self) -> int:
        """How many requests it may hold."""
        return math.ceil(SPARE * int(self.facts["max_num_seqs"]))


class EnginePool:
    """Engines with one queue of requests. It has the methods of `VLLMEngine` that a run uses.

    Args:
        carrier: Starts the engines.
        size: How many engines there are at most.
        stall_seconds: An engine that has not answered an exchange for so long is given up.
    """

    def __init__(self, carrier: Carrier, size: int, stall_seconds: float) -> None:
        self._carrier, self._size, self._stall_seconds = carrier, size, stall_seconds
        self._engines: list[_Engine] = []
        self._waiting: deque[tuple[int, Request]] = deque()
        self._fruitless = 0
        self._worked: list[_Engine] = []
        self._cause: HarnessError | None = None
        self._turned = time.monotonic()

    def facts(self) -> dict[str, Any]:
        """The facts of the first engine that has loaded the model, and how many engines are asked for; waits for it.

        Raises:
            HarnessError: no engine can be started; the message is the last one's.
        """
        while not (loaded := [engine for engine in self._engines if engine.facts]):
            self._start(self._size)
            self._collect()
        return {**loaded[0].facts, "engines": self._size}

    def stream(self, requests: Sequence[Request]) -> Iterator[list[tuple[Request, Finished]]]:
        """Generate all requests, the first ones first; yield what has finished, at least once a second.

        Requests of an engine that is lost go back to the head of the queue, and an engine is started in its place.

        Raises:
            EngineError: a request does not fit, or three starts in a row made no sample and no engine works.
            HarnessError: as `facts`.
        """
        self._waiting = deque(enumerate(requests))
        while left := len(self._waiting) + sum(len(engine.held) for engine in self._engines):
            if self._waiting:
                self._start(min(self._size, left))
            else:  # whoever loads now would come too late
                self._drop([engine for engine in self._engines if not engine.facts])
            self._hand_out(math.ceil(left / max(1, len(self._engines))))
            yield self._collect()

    def describe_work(self) -> list[dict[str, Any]]:
        """The devices and the number of samples of each engine that made any, for the run's receipt."""
        return [{"device_names": one.facts["device_names"], "samples": one.samples} for one in self._worked]

    def close(self) -> None:
        """End all engines and drop what is unfinished. A second Ctrl-C must not leave them behind."""
        with undisturbed():
            try:
                self._drop(self._engines)
            finally:
                self._carrier.close()

    def _start(self, size: int) -> None:
        while len(self._engines) < size and self._fruitless < FRUITLESS_STARTS:
            handle, call = self._carrier.start()
            self._engines.append(_Engine(handle, call))

    def _hand_out(self, share: int) -> None:
        """Fill up the engines that wait for a call; none gets more than its share of what is left."""
        for engine in self._engines:
            if engine.facts and engine.call is None:
                room = max(0, min(engine.room, share) - len(engine.held))
                new = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
                for _, request in new:
                    refuse_too_long(request, engine.facts["max_model_len"])
                engine.held.update(new)
                if engine.held:
                    engine.call, engine.silent = self._carrier.exchange(engine.handle, new), 0

    def _collect(self) -> list[tuple[Request, Finished]]:
        """Take the answers that are there."""
        calls = {engine.call: engine for engine in self._engines if engine.call is not None}
        finished = []
        for call in self._carrier.wait(list(calls), TURN_SECONDS):
            engine = calls.pop(call)
            engine.call = None
            try:
                answer = self._carrier.answer(call)
            except HarnessError as error:
                self._lose(engine, error)
                continue
            if not engine.facts:
                engine.facts = answer
                continue
            finished += [(engine.held.pop(number), done) for number, done in answer]
            if answer and not engine.samples:
                self._fruitless = 0
                self._worked.append(engine)
            engine.samples += len(answer)
        self._look(list(calls.values()))
        return finished

    def _look(self, silent: Sequence[_Engine]) -> None:
        """Give up engines that have been silent for too long.

        The clock also runs while this process is stopped, by Ctrl-Z or a scheduler, so a turn counts for no more than
        it can have taken.
        """
        now = time.monotonic()
        turn, self._turned = min(now - self._turned, 2 * TURN_SECONDS), now
        for engine in silent:
            before, engine.silent = engine.silent, engine.silent + turn
            if engine.facts and engine.silent > self._stall_seconds:
                told = f"An engine has not answered for {self._stall_seconds:.0f} seconds. {CONTINUE}"
                self._lose(engine, EngineError(told))
            elif not engine.facts and self._fruitless >= FRUITLESS_STARTS and engine.silent > LOAD_SECONDS:
                self._end_if_hopeless()
            elif not engine.facts and before <= LOAD_SECONDS < engine.silent:
                print(
                    f"mless: an engine has been starting for {LOAD_SECONDS / 60:.0f} minutes. Where a cluster has no "
                    "free GPUs for it, it waits for them.",
                    file=sys.stderr,
                )

    def _lose(self, engine: _Engine, error: HarnessError) -> None:
        """Put the requests of an engine that failed back in their places.

        Raises:
            HarnessError: the error, if no engine works and none will be started.
        """
        self._drop([engine])
        self._waiting.extendleft(reversed(engine.held.items()))
        self._fruitless = 0 if engine.samples else self._fruitless + 1
        given_up, working = self._fruitless >= FRUITLESS_STARTS, sum(bool(one.facts) for one in self._engines)
        if given_up and not working:
            self._cause = error
            self._end_if_hopeless()
        left = f"{working} go on without it" if working else "others still load"
        follows = left if given_up else "another is started in its place"
        print(f"mless: an engine is lost; {follows}. {str(error).replace(f' {CONTINUE}', '')}", file=sys.stderr)

    def _end_if_hopeless(self) -> None:
        """No engine works, none will be started, and those that load have had their time."""
        if self._cause and not any(engine.facts or engine.silent <= LOAD_SECONDS for engine in self._engines):
            self._drop(self._engines)
            raise self._cause

    def _drop(self, engines: Sequence[_Engine]) -> None:
        for engine in list(engines):
            self._engines.remove(engine)
            self._carrier.kill(engine.handle)


def check_engines(asked: object, arguments: Mapping[str, Any]) -> int | str:
    """How many engines are wanted, or `auto`: what the command asks, else lm-eval's `data_parallel_size`, else one.

    Raises:
        ConfigError: neither a number from 1 to 9999 nor `auto`; several, with GPUs each that are no number, or no
            cluster.
        MissingDependencyError: more than one, and Ray is not installed.
    """
    name, value = ("--engines", asked) if asked is not None else (DATA_PARALLEL, arguments.get(DATA_PARALLEL))
    text = str(1 if value is None else value)
    if text != AUTO and not _is_count(text):
        raise ConfigError(
            f"{name} is {text!r:.40}. Expected auto, for as many engines as GPUs allow, or a number from 1 to 9999."
        )
    if text == "1":
        return 1
    _count_gpus(arguments)
    _check_cluster(os.environ.get("RAY_ADDRESS") or "local")
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError(
            f"{name} is {text}, and several engines need the package 'ray'. Install `mless[ray]`, or run one engine."
        )
    return text if text == AUTO else int(text)


def _is_count(text: str) -> bool:
    """Whether it is a number from 1 to 9999. Python itself fails on thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= 4 and int(text) > 0


def _check_cluster(address: str) -> None:
    """Ray itself would try for ten minutes, in silence.

    Raises:
        ConfigError: it is no address, or nobody answers there.
    """
    if address in ("local", "auto"):
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not re.fullmatch("[0-9]{1,5}", port):
        raise ConfigError(
            f"RAY_ADDRESS is {address!r}. Expected HOST:PORT of a running Ray cluster's head, such as 10.0.0.1:6379, "
            "without ray://; unset it to have Ray started on this machine."
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"RAY_ADDRESS is {address!r}, and no Ray cluster answers there ({error}). Expected HOST:PORT of a running "
            "one; unset it to have Ray started on this machine."
        ) from None


def _count_gpus(arguments: Mapping[str, Any]) -> int:
    """How many GPUs one engine takes.

    Raises:
        ConfigError: an argument that says so is no number from 1 to 9999.
    """
    each = 1
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        text = str(1 if arguments.get(name) is None else arguments[name])
        if not _is_count(text):
            raise ConfigError(f"{name} is {text!r:.40}. Expected a number of GPUs from 1 to 9999.")
        each *= int(text)
    return each


def open_engines(
    arguments: Mapping[str, Any], engines: int | str, *, sampled: bool, most: int | None = None, log: Path | None = None
) -> VLLMEngine | EnginePool:
    """One engine in this process, or several in Ray actors.

    Args:
        arguments: lm-eval's model arguments, for each engine.
        engines: How many, or `auto`: as many as the GPUs allow, one where there are none.
        sampled: Whether any request will be sampled.
        most: There are not more requests than this, and so no more engines.
        log: A file that takes what the libraries of several engines print, where an actor can write it.

    Raises:
        ConfigError: there are not enough GPUs or cores, or as `VLLMEngine`.
        EngineError: Ray does not start, or the cluster is not there.
        HarnessError: as `VLLMEngine`.
    """
    if engines == 1:
        return VLLMEngine(arguments, sampled=sampled)
    from harness.engines.ray_carrier import RayCarrier

    each, step_seconds = _count_gpus(arguments), os.environ.get("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "300")
    if not step_seconds.isdigit():
        raise ConfigError(f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS is {step_seconds!r}. Expected a number of seconds.")
    carrier = RayCarrier(arguments, sampled=sampled, gpus_each=each, log=log)
    room = sum(gpus // each for gpus in carrier.gpus) if carrier.gpus else None
    if room is not None and (room == 0 or (engines != AUTO and int(engines) > room)):
        carrier.close()
        raise ConfigError(
            f"The number of engines is {engines}, with {each} GPUs of one machine each, and there is room for {room}: "
            f"the machines have {', '.join(map(str, carrier.gpus))} GPUs. Use --engines auto, or lower "
            "tensor_parallel_size."
        )
    most_here = max(8, 4 * carrier.cores)  # nothing else would stop 9999 processes
    if room is None and engines != AUTO and int(engines) > most_here:
        carrier.close()
        raise ConfigError(
            f"The number of engines is {engines}, with no GPUs and {carrier.cores} CPU cores. Expected at most "
            f"{most_here}. Lower --engines."
        )
    size = (room or 1) if engines == AUTO else int(engines)
    # an engine's own watch knows more, so it comes first
    return EnginePool(carrier, min(size, most or size), (STALL_FACTOR + 1) * int(step_seconds))
