"""Several engines behind one stream. It looks like that of one engine, and no sample is lost if an engine is lost.

The pool decides which engine gets which request and what happens when an engine is lost. The carrier decides where the
engines live and how they are called: see `ray_carrier`.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.engines.engine_processes import (
    CONTINUE,
    ENGINE_TURN_SECONDS,
    STALL_FACTOR,
    undisturbed,
)
from harness.engines.vllm_engine import QUEUE_PER_SEQUENCE, Finished, VLLMEngine, refuse_too_long
from harness.errors import (
    ConfigError,
    EngineError,
    HarnessError,
    MissingDependencyError,
    StartEndedError,
)
from harness.experiment.plan import Request

if TYPE_CHECKING:
    from harness.engines.ray_carrier import RayCarrier

LOAD_SECONDS = 7200
"""Seconds after which one of several engines is given up if it has not loaded its model. 70 billion
parameters may take half of it to load and compile."""
FRUITLESS_STARTS = 3
"""After so many starts in a row without a sample no engine is started any more."""

AUTO = "auto"
DATA_PARALLEL = "data_parallel_size"


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


class EnginePool:
    """Engines with one queue of requests. It has the methods of `VLLMEngine` that a run uses.

    Args:
        carrier: Starts the engines.
        size: How many engines there are at most.
        stall_seconds: An engine that has not answered an exchange for so long is given up.
        load_seconds: The same of one that loads the model, or waits for a free GPU of a cluster.
        compiles: Whether an engine compiles as it starts.

    Attributes:
        so_far: As of `VLLMEngine`.
    """

    def __init__(
        self,
        carrier: RayCarrier,
        size: int,
        stall_seconds: float,
        load_seconds: float,
        *,
        compiles: bool = False,
    ) -> None:
        self._carrier, self._size = carrier, size
        self._stall_seconds, self._load_seconds = stall_seconds, load_seconds
        self._engines: list[_Engine] = []
        self._waiting: deque[tuple[int, Request]] = deque()
        self._fruitless = 0
        self._compiles, self._lost = compiles, False
        self.so_far: dict[int, int] = {}
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
            EngineError: a request does not fit, or three starts in a row made no sample and no engine is left.
            HarnessError: as `facts`.
        """
        self._waiting = deque(enumerate(requests))
        while left := len(self._waiting) + sum(len(engine.held) for engine in self._engines):
            if self._waiting:
                self._start(min(self._size, left))
            else:  # whoever loads now would come too late
                self._drop([engine for engine in self._engines if not engine.facts])
            coming = (
                min(self._size, left) if self._fruitless < FRUITLESS_STARTS else len(self._engines)
            )
            self._hand_out(math.ceil(left / max(1, coming)))
            yield self._collect()

    def close(self) -> None:
        """End all engines and drop what is unfinished. A second Ctrl-C must not leave them behind."""
        with undisturbed():
            try:
                self._drop(self._engines)
            finally:
                self._carrier.close()

    def _start(self, size: int) -> None:
        """Start what is missing; where engines compile the first alone, so that the others find what it made."""
        first = (
            self._compiles and not self._lost and not any(engine.facts for engine in self._engines)
        )
        while len(self._engines) < (1 if first else size) and self._fruitless < FRUITLESS_STARTS:
            handle, call = self._carrier.start()
            self._engines.append(_Engine(handle, call))

    def _hand_out(self, share: int) -> None:
        """Fill up the engines that wait for a call; none gets more than its share of what is left."""
        for engine in self._engines:
            if engine.facts and engine.call is None:
                most = min(QUEUE_PER_SEQUENCE * engine.facts["max_num_seqs"], share)
                room = max(0, most - len(engine.held))
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
        for call in self._carrier.wait(list(calls), ENGINE_TURN_SECONDS):
            engine = calls.pop(call)
            engine.call = None
            try:
                answer = self._carrier.answer(call)
            except HarnessError as error:
                self._lose(engine, error)
                continue
            if not engine.facts:
                self._refuse_shared_device(answer)
                engine.facts = answer
                continue
            self.so_far |= {number: done for number, done in answer if isinstance(done, int)}
            made = [(number, done) for number, done in answer if isinstance(done, Finished)]
            for number, done in made:
                self.so_far.pop(number, None)
                finished.append((engine.held.pop(number), done))
            if made and not engine.samples:
                self._fruitless = 0
            engine.samples += len(made)
        self._look(list(calls.values()))
        return finished

    def _refuse_shared_device(self, facts: Mapping[str, Any]) -> None:
        """Raise EngineError if another engine runs on the same GPU: one would get no memory, or both half the speed."""
        taken = {
            uuid for engine in self._engines for uuid in engine.facts.get("device_uuids") or ()
        }
        if shared := taken & {*(facts.get("device_uuids") or ())}:
            raise EngineError(
                f"Two engines run on one GPU, {sorted(shared)[0]}: is CUDA_VISIBLE_DEVICES overridden?"
            )

    def _look(self, silent: Sequence[_Engine]) -> None:
        """Give up engines that have been silent for too long.

        The clock also runs while this process is stopped, by Ctrl-Z or a scheduler, so a turn counts for no more than
        it can have taken.
        """
        now = time.monotonic()
        turn, self._turned = min(now - self._turned, 2 * ENGINE_TURN_SECONDS), now
        for engine in silent:
            engine.silent += turn
            limit, what = (
                (self._stall_seconds, "answered")
                if engine.facts
                else (self._load_seconds, "loaded")
            )
            if engine.silent > limit:
                self._lose(
                    engine,
                    EngineError(f"An engine has not {what} for {limit:.0f} seconds. {CONTINUE}"),
                )

    def _lose(self, engine: _Engine, error: HarnessError) -> None:
        """Put the requests of an engine that failed back in their places.

        Raises:
            HarnessError: the error, if no engine is left and none will be started, or if a signal
                ended a start and no engine has loaded the model yet.
        """
        self._drop([engine])
        if isinstance(error, StartEndedError) and not any(engine.facts for engine in self._engines):
            raise error
        self._lost = True
        self.so_far = {
            number: tokens for number, tokens in self.so_far.items() if number not in engine.held
        }
        self._waiting.extendleft(reversed(engine.held.items()))
        self._fruitless = 0 if engine.samples else self._fruitless + 1
        given_up = self._fruitless >= FRUITLESS_STARTS
        if given_up and not self._engines:
            raise error
        follows = f"{len(self._engines)} left" if given_up else "another is started in its place"
        print(
            f"mless: an engine is lost; {follows}. {str(error).replace(f' {CONTINUE}', '')}",
            file=sys.stderr,
        )

    def _drop(self, engines: Sequence[_Engine]) -> None:
        for engine in list(engines):
            self._engines.remove(engine)
            self._carrier.kill(engine.handle)


def check_engines(asked: object, arguments: Mapping[str, Any]) -> int | str:
    """How many engines are wanted, or `auto`: what the command asks, else lm-eval's `data_parallel_size`, else one.

    Raises:
        ConfigError: neither a number from 1 nor `auto`; several, with GPUs each that are no number.
        MissingDependencyError: more than one, and Ray is not installed.
    """
    name, value = (
        ("--engines", asked) if asked is not None else (DATA_PARALLEL, arguments.get(DATA_PARALLEL))
    )
    wanted = AUTO if value == AUTO else _count(name, value, "auto, or ")
    if wanted != 1:
        _count_gpus(arguments)
        if importlib.util.find_spec("ray") is None:
            raise MissingDependencyError(
                f"{name} is {wanted}, which needs the package 'ray'. Install `mless[ray]`."
            )
    return wanted


def _count(name: str, value: object, also: str = "") -> int:
    """A number from 1, which None stands for."""
    try:
        number = 1 if value is None else int(str(value))
    except ValueError:
        number = 0
    if number < 1:
        raise ConfigError(f"{name} is {str(value)!r:.40}. Expected {also}a number from 1.")
    return number


def _count_gpus(arguments: Mapping[str, Any]) -> int:
    """How many GPUs one engine takes."""
    return math.prod(
        _count(name, arguments.get(name))
        for name in ("tensor_parallel_size", "pipeline_parallel_size")
    )


def open_engines(
    arguments: Mapping[str, Any],
    engines: int | str,
    *,
    sampled: bool,
    most: int | None = None,
    log: Path | None = None,
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

    each = _count_gpus(arguments)
    step_variable = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    step_seconds = _count(step_variable, os.environ.get(step_variable, 300))
    carrier = RayCarrier(arguments, sampled=sampled, gpus_each=each, log=log)
    # without GPUs it is for the user to say how many fit, but nothing else would stop 9999 processes
    room = sum(gpus // each for gpus in carrier.gpus) if carrier.gpus else max(8, 4 * carrier.cores)
    size = (room if carrier.gpus else 1) if engines == AUTO else int(engines)
    if not 1 <= size <= room:
        carrier.close()
        raise ConfigError(
            f"The number of engines is {engines}, and there is room for {room}: each has {each} GPUs of one machine, "
            f"and the machines have {carrier.gpus}, with {carrier.cores} CPU cores."
        )
    # an engine's own watch knows more, so it comes first
    limits = (STALL_FACTOR + 1) * step_seconds, LOAD_SECONDS
    compiles = bool(carrier.gpus) and not arguments.get("enforce_eager")
    return EnginePool(carrier, min(size, most or size), *limits, compiles=compiles)
