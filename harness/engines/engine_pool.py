"""Several engines behind one stream, which loses no sample if an engine is lost.

The stream looks like that of one engine. The pool decides which engine gets which request and what
happens when an engine is lost. The carrier decides where the engines live and how they are called:
see `ray_carrier`.
"""

import math
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from harness.engines.completions import Completion, FinishedRequests, refuse_too_long_request
from harness.engines.engine_processes import CONTINUE_ADVICE, POLL_SECONDS, ignored_signals
from harness.engines.ray_carrier import RayCarrier
from harness.engines.vllm_engine import REQUESTS_PER_SEQUENCE
from harness.errors import HarnessError, print_message
from harness.experiment.plan import Request

MOST_FRUITLESS_STARTS = 3
"""After this number of starts in a row that gave no sample, no engine is started any more."""


@dataclass(eq=False)
class _Engine:
    """One engine of the pool.

    Attributes:
        actor: The carrier's object for the engine.
        call: The carrier's object for the call that runs; None between two calls.
        facts: The engine's facts; empty while it loads.
        request_by_number: Its unfinished requests, by their numbers in the queue.
        token_counts: The number of tokens of each unfinished request.
        has_finished_samples: Whether it has finished any sample; if it is lost before, its start
            was fruitless.
    """

    actor: Any
    call: Hashable | None
    facts: dict[str, Any] = field(default_factory=dict)
    request_by_number: dict[int, Request] = field(default_factory=dict)
    token_counts: Sequence[int] = ()
    has_finished_samples: bool = False


class EnginePool:
    """Engines with one queue of requests. It has the methods of `VLLMEngine` that a run uses.

    Args:
        carrier: Starts the engines.
        most_engines: The largest number of engines at a time.
        is_compiled: Whether vLLM compiles the model. The other engines then start when one has
            loaded it, because they find its compiled model in vLLM's cache.

    Attributes:
        cards: The GPUs of each engine that has loaded the model, in the order of loading.
    """

    def __init__(
        self, carrier: RayCarrier, most_engines: int, *, is_compiled: bool = False
    ) -> None:
        self._carrier = carrier
        self._most_engines = most_engines
        self._is_compiled = is_compiled
        self.cards: list[Sequence[str] | None] = []
        self._engines: list[_Engine] = []
        self._queue: deque[tuple[int, Request]] = deque()
        """The requests that no engine has, with their numbers."""
        self._fruitless_start_count = 0
        """Starts in a row that gave no sample."""

    @property
    def token_counts(self) -> list[int]:
        """The number of tokens of each unfinished request, of all engines."""
        # a copy, because another thread may call this while engines come and go
        return [*chain.from_iterable(engine.token_counts for engine in list(self._engines))]

    def facts(self) -> dict[str, Any]:
        """The facts of the first engine that has loaded the model, and the number of engines.

        This waits for an engine.

        Raises:
            HarnessError: no engine can be started; the message is the last engine's.
        """
        while not (loaded_engines := [engine for engine in self._engines if engine.facts]):
            self._start_engines(self._most_engines)
            self._collect_answers()
        return {**loaded_engines[0].facts, "engines": self._most_engines}

    def stream(self, requests: Sequence[Request]) -> Iterator[FinishedRequests]:
        """Generate all requests in their order; yield what has finished, at least once a second.

        An engine gets at most an equal share of the unfinished requests. Engines that still load or
        will be started count too.

        Requests of an engine that is lost go back to the head of the queue, and another engine is
        started. An engine that hangs is given up in its actor: see `watched_calls`.

        Raises:
            EngineError: a request does not fit, or three starts in a row made no sample and no
                engine is left.
            HarnessError: as `facts`.
        """
        self._queue = deque(enumerate(requests))
        unfinished_count = len(requests)
        while unfinished_count:
            # further engines would get no request
            useful_engine_count = min(self._most_engines, unfinished_count)
            if self._queue:
                self._start_engines(useful_engine_count)
            else:  # an engine that still loads would get no request
                self._drop_engines([engine for engine in self._engines if not engine.facts])
            sharing_engine_count = useful_engine_count
            # once no engine may be started, only those that are left share the requests
            if not self._may_start:
                sharing_engine_count = max(1, len(self._engines))
            # with equal shares no engine holds a long queue while another is idle
            self._hand_out_requests(math.ceil(unfinished_count / sharing_engine_count))
            finished_requests = self._collect_answers()
            unfinished_count -= len(finished_requests)
            yield finished_requests

    def close(self) -> None:
        """End all engines, which a second Ctrl-C must not leave behind, and drop their requests."""
        with ignored_signals():
            try:
                self._drop_engines(self._engines)
            finally:
                self._carrier.close()

    @property
    def _may_start(self) -> bool:
        """Whether engines may still be started."""
        return self._fruitless_start_count < MOST_FRUITLESS_STARTS

    def _start_engines(self, target_count: int) -> None:
        """Start engines until there are `target_count`.

        There are fewer while the first one compiles the model, and if no engine may be started.
        """
        # the other engines find the compiled model in vLLM's cache
        if self._is_compiled and not self.cards:
            target_count = 1
        while len(self._engines) < target_count and self._may_start:
            actor, call = self._carrier.start()
            self._engines.append(_Engine(actor, call))

    def _hand_out_requests(self, most_requests: int) -> None:
        """Call each loaded engine that has no call, with further requests from the queue.

        An engine has at most `most_requests` unfinished requests, and no more than
        REQUESTS_PER_SEQUENCE for each sequence that it can run at once.
        """
        for engine in self._engines:
            # an engine without facts is still loading the model
            if not engine.facts or engine.call is not None:
                continue
            capacity = min(REQUESTS_PER_SEQUENCE * engine.facts["max_num_seqs"], most_requests)
            request_count = min(capacity - len(engine.request_by_number), len(self._queue))
            requests = [self._queue.popleft() for _ in range(request_count)]
            for _, request in requests:
                refuse_too_long_request(request, engine.facts["max_model_len"])
            engine.request_by_number.update(requests)
            # also without a new request, so that the engine goes on with those that it has
            if engine.request_by_number:
                engine.call = self._carrier.exchange(engine.actor, requests)

    def _collect_answers(self) -> FinishedRequests:
        """Wait up to POLL_SECONDS for answers of engines, and return the requests they finished.

        The first answer of an engine is its facts, all others are completions. An engine whose call
        fails is lost: see `_lose_engine`.
        """
        engine_by_call = {
            engine.call: engine for engine in self._engines if engine.call is not None
        }
        finished_requests = []
        for call in self._carrier.wait(list(engine_by_call), POLL_SECONDS):
            engine = engine_by_call[call]
            engine.call = None
            try:
                result = self._carrier.result(call)
            # a lost engine must not end the run: the others take over its requests
            except HarnessError as error:
                self._lose_engine(engine, error)
                continue
            if engine.facts:
                completions, engine.token_counts = result
                finished_requests += self._finish_requests(engine, completions)
            else:
                engine.facts = result
                self.cards.append(result.get("cards"))
        return finished_requests

    def _finish_requests(
        self, engine: _Engine, completions: Sequence[Completion]
    ) -> FinishedRequests:
        """Remove finished requests from their engine, and return them with their completions."""
        # the start of an engine that gives its first sample ends the row of fruitless starts
        if completions and not engine.has_finished_samples:
            self._fruitless_start_count = 0
            engine.has_finished_samples = True
        return [
            (engine.request_by_number.pop(int(completion.request_id)), completion)
            for completion in completions
        ]

    def _lose_engine(self, engine: _Engine, error: HarnessError) -> None:
        """Forget an engine that failed, and put its requests back at the head of the queue.

        Raises:
            HarnessError: the error, if no engine is left and none will be started.
        """
        self._drop_engines([engine])
        # `extendleft` reverses, so the requests keep their order
        self._queue.extendleft(reversed(engine.request_by_number.items()))
        # an engine that gave samples before it was lost shows that the engines can work
        if engine.has_finished_samples:
            self._fruitless_start_count = 0
        else:
            self._fruitless_start_count += 1
        if self._may_start:
            consequence = "another is started in its place"
        elif self._engines:
            consequence = f"{len(self._engines)} left"
        else:
            raise error
        message = str(error).replace(f" {CONTINUE_ADVICE}", "")
        print_message(f"an engine is lost; {consequence}. {message}")

    def _drop_engines(self, engines: Sequence[_Engine]) -> None:
        """End these engines and forget them."""
        # a copy, because `engines` may be the list from which they are removed
        for engine in list(engines):
            self._engines.remove(engine)
            self._carrier.kill(engine.actor)
