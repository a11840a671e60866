"""The engines of one shape, which take turns, and the figures that `benchmarks.engine` describes.

All engines are open on the one device all the time, so what makes the machine slower for a while
does not make one of them slower. After each side all figures are written to session.json, so that
little is lost if the machine is.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
)
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple
from unittest.mock import patch

from attention_probe.measure.prompt_fields import QUERY_SET_COUNT
from benchmarks.runs import read_json, run_mless_here, say, write_json
from harness.engines import vllm_engine
from harness.engines.completions import sampling_parameters
from harness.engines.engine_options import engine_arguments
from harness.engines.interventions.open_layers import find_changed_layers
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import EngineError
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Request, make_plan, make_requests
from harness.experiment.run_config import load_config

ARMS = {
    "mless-masked": "slashes hidden from Layer 1",
    "mless-layer-1": "slashes visible to Layer 1 alone",
    "redistributed": "activations of Layer 1 redistributed",
}
"""A condition for each kind of intervention, and its effect.

Interventions of the kind `function` use the code of the kind `redistribute`.
"""


RAW, GREEDY_RAW = "raw vLLM", "raw vLLM, greedy"
ROUNDS = 2
"""In each round all sides are measured. Raw vLLM comes first in each, and after the last one."""


class StepTimes:
    """The wall time and the client's CPU time at every step of an engine.

    CPU time is that of this process: the engine and the graders have their own processes.

    Args:
        engine: The `vllm.LLMEngine`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._tokens = self._requests = 0
        self._step_cpu = 0.0
        self._clocks: list[tuple[float, float]] = []
        self._closed_cpu: float | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the steps within the context, of any caller."""
        engine = self._engine
        add_request, step = engine.add_request, engine.step

        def add_and_note(*arguments: Any, **keywords: Any) -> Any:
            if not self._clocks:
                self._note()
            return add_request(*arguments, **keywords)

        def step_and_note() -> Any:
            started = time.thread_time()
            outputs = step()
            self._step_cpu += time.thread_time() - started
            self._requests += len(outputs)
            self._tokens += sum(len(output.outputs[0].token_ids) for output in outputs)
            self._note()
            return outputs

        engine.add_request, engine.step = add_and_note, step_and_note
        try:
            yield
        finally:
            del engine.add_request, engine.step

    def _note(self) -> None:
        self._clocks.append((time.monotonic(), time.process_time()))

    def note_close(self) -> None:
        """Note the CPU time of now: `mless run` journals and grades until it closes its engine."""
        self._closed_cpu = time.process_time()

    def figures(self) -> dict[str, Any]:
        """Tokens, seconds, and microseconds of the client's CPU time for a token."""
        (start, start_cpu), *_, (end, end_cpu) = self._clocks
        return {
            "requests": self._requests,
            "tokens": self._tokens,
            "seconds": end - start,
            "client_us": 1e6 * ((self._closed_cpu or end_cpu) - start_cpu) / self._tokens,
            "step_us": 1e6 * self._step_cpu / self._tokens,
        }


class Side(NamedTuple):
    """What is measured together.

    Attributes:
        name: What is served.
        kind: `raw`, `mless`, `hooks`, `v2_hooks`, `recording` or `intervention`.
        reference: The side whose time is 1; empty if this one is not compared.
        engine: Serves all requests.
        serve: Hands the requests to the engine, and waits for all completions.
    """

    name: str
    kind: str
    reference: str
    engine: VLLMEngine
    serve: Callable[[StepTimes], None]


class Session:
    """The requests of all sides, and the figures of those that were measured.

    Args:
        folder: Has the config, and takes the figures.
        request_count: The number of problems, and of the requests of a side.
    """

    def __init__(self, folder: Path, request_count: int) -> None:
        self.folder, self.request_count = folder, request_count
        self.config = load_config(folder / "config.yaml")
        self._plan = make_plan(self.config, limit=request_count)
        prompts = self.requests("mless")
        self.figures: dict[str, Any] = {
            "dataset": self._plan.full_dataset.name,
            "prompt_tokens": mean(len(request.prompt_token_ids or ()) for request in prompts),
            "load_seconds": {},
            "sides": [],
        }

    def requests(self, condition: str, *, is_greedy: bool = False) -> list[Request]:
        """The requests of a condition, which every side of the benchmark answers."""
        sampling = self.config.resolve_sampling(None)
        if is_greedy:
            sampling = Sampling(max_tokens=sampling.max_tokens)
        requests, tasks = make_requests(self._plan, sampling), self._plan.tasks
        return [request for request in requests if tasks[request.task].condition.name == condition]

    def measure(self, side: Side) -> None:
        """Measure one side: its engine answers all requests."""
        say(side.name)
        engine = side.engine._engine
        if not engine.reset_prefix_cache():
            raise EngineError("Requests of the side before are still running.")
        times = StepTimes(engine)
        with times.recorded():
            side.serve(times)
        figures = {"kind": side.kind, "reference": side.reference, **times.figures()}
        self.figures["sides"].append({"name": side.name, **figures})
        write_json(self.folder / "session.json", self.figures)


def list_sides(session: Session, engines: Mapping[str, VLLMEngine]) -> list[Side]:
    """The sides in the order in which they are measured; those with hooks have no journal."""
    requests, greedy = (session.requests("mless", is_greedy=flag) for flag in (False, True))
    # of each set of queries, all queries
    recorded = [
        replace(request, query_sets=[[1] * len(request.prompt_token_ids or ())] * QUERY_SET_COUNT)
        for request in requests
    ]
    plain, hooks = engines["plain"], engines["hooks"]
    layer_count = hooks._engine.vllm_config.model_config.hf_text_config.num_hidden_layers
    generate, stream = partial(generate_raw, session, plain), partial(stream_with_hooks, hooks)
    sides = [
        Side(RAW, "raw", "", plain, partial(generate, requests)),
        Side("mless run", "mless", RAW, plain, partial(run_config, session, plain)),
        Side("hooks unused", "hooks", "", hooks, partial(stream, requests, 0)),
        Side(GREEDY_RAW, "raw", "", plain, partial(generate, greedy)),
        Side("hooks unused, greedy", "hooks", GREEDY_RAW, hooks, partial(stream, greedy, 0)),
    ]
    for name, layers in (("Layers 1 to 3", 3), ("all layers", layer_count)):
        serve = partial(stream, recorded, layers)
        sides.append(Side(f"attention recorded, {name}", "recording", RAW, hooks, serve))
    for condition, effect in ARMS.items():
        serve = partial(stream, session.requests(condition), 0)
        sides.append(Side(effect, "intervention", RAW, hooks, serve))
    if v2_hooks := engines.get("V2 hooks"):
        stream = partial(stream_with_hooks, v2_hooks)
        serve = partial(stream, requests, 0)
        sides.append(Side("V2 hooks unused", "v2_hooks", RAW, v2_hooks, serve))
        for condition, effect in ARMS.items():
            serve = partial(stream, session.requests(condition), 0)
            sides.append(Side(f"{effect}, V2 hooks", "intervention", RAW, v2_hooks, serve))
    return sides


def stream_with_hooks(
    engine: VLLMEngine, requests: Sequence[Request], layers: int, _: StepTimes
) -> None:
    """Answer requests in mless's engine; the first `layers` may be recorded."""
    engine._engine.collective_rpc(record_layers, args=(layers,))
    for _finished in engine.stream(requests):
        pass


def generate_raw(
    session: Session, engine: VLLMEngine, requests: Sequence[Request], _: StepTimes
) -> None:
    """Call `LLM.generate` once with all requests, as somebody without mless would."""
    from vllm import LLM, TokensPrompt

    prompts = [
        TokensPrompt(prompt_token_ids=list(request.prompt_token_ids or ())) for request in requests
    ]
    parameters = [sampling_parameters(request) for request in requests]
    for request_parameters in parameters:
        request_parameters.detokenize = True  # as vLLM does where nobody says otherwise
    with shared_engine(engine):
        llm = LLM(**engine_arguments(session.config.model_arguments()))
    llm.generate(prompts, parameters, use_tqdm=False)


def run_config(session: Session, engine: VLLMEngine, times: StepTimes) -> None:
    """The command `mless run` in this process: it makes prompts, journals and grades."""
    output = session.folder / f"run-{time.monotonic_ns()}"
    command = ["run", str(session.folder / "config.yaml"), "--quiet", "--output", str(output)]
    command += ["--limit", str(session.request_count), "--set", "conditions=[mless]"]
    thresholds = gc.get_threshold()
    try:
        with shared_engine(engine, times.note_close):
            run_mless_here(command)
    finally:
        gc.set_threshold(*thresholds)  # which the command raises; raw vLLM has Python's own


@contextmanager
def shared_engine(
    owner: VLLMEngine, note_close: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within the context every start of vLLM gets this engine.

    Nobody shuts it down: `note_close` is called instead.
    """
    from vllm import LLMEngine

    engine, core = owner._engine, owner._engine.engine_core
    start, shutdown = LLMEngine.from_engine_args, core.shutdown
    LLMEngine.from_engine_args = lambda *_, **__: engine
    core.shutdown = lambda **_: note_close and note_close()
    try:
        yield
    finally:
        LLMEngine.from_engine_args, core.shutdown = start, shutdown


def record_layers(worker: Any, count: int) -> None:
    """In a worker in which all layers are open, record the first ones only.

    A run opens the layers that it records, and no others.
    """
    worker._interventions._recorded_layers = list(range(count))


def run_session(folder: Path, request_count: int) -> dict[str, Any]:
    """Load the engines, warm them up, measure all sides in turn, and return the figures.

    Raises:
        HarnessError: an engine does not start, or stops.
    """
    session = Session(folder, request_count)
    layer_count = read_json(folder / "model" / "config.json")["num_hidden_layers"]
    layers = find_changed_layers(session.config.interventions)
    recording = {"recorded": list(range(layer_count)), "set_count": QUERY_SET_COUNT}
    options = {"plain": {}, "hooks": {"interventions": {"layers": layers | recording}}}
    if find_spec("triton"):
        options["V2 hooks"] = {"interventions": {"layers": layers}}
    with ExitStack() as stack:
        engines = {}
        for name, engine_options in options.items():
            hooks = v2_hooks(session) if name == "V2 hooks" else nullcontext()
            started = time.monotonic()
            with hooks:
                engine = VLLMEngine(session.config.model_arguments() | engine_options)
            engines[name] = stack.enter_context(closing(engine))
            session.figures["load_seconds"][name] = time.monotonic() - started
        session.figures["facts"] = engines["plain"].facts()
        sides = list_sides(session, engines)
        # an engine's first side is slower, because kernels are compiled in it
        warm_ups = {side.engine: side for side in sides if side.reference == RAW}
        for side in warm_ups.values():
            session.measure(side._replace(name="warm-up"))
        for side in (*sides * ROUNDS, sides[0]):
            session.measure(side)
    return session.figures


def v2_hooks(session: Session) -> AbstractContextManager[Any]:
    """Within the context mless's engine opens layers by the hooks of vLLM's V2 runner."""
    from benchmarks.v2_hooks.worker import open_layers

    changes = [
        request.intervention or [] for condition in ARMS for request in session.requests(condition)
    ]
    open_v2_layers = partial(open_layers, interventions=changes)
    return patch.object(vllm_engine, "open_layers", open_v2_layers)
