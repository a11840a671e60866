"""One engine of `benchmarks.engine`, and the figures that are measured with it.

    python -m benchmarks.engine_session plain|hooks FOLDER REQUESTS

FOLDER holds the `config.yaml` of `benchmarks.engine`. After each side the figures are written to
FOLDER/plain.json or FOLDER/hooks.json: a session that is cut off loses the current side only.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from attention_probe.measure.engine_fields import AVERAGES
from benchmarks.runs import run_mless_here, say, write_json
from harness.engines.completions import sampling_parameters
from harness.engines.engine_options import engine_arguments
from harness.engines.interventions.open_layers import opened_layers, refuse_to_open
from harness.engines.vllm_engine import VLLMEngine
from harness.errors import EngineError
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


class Step(NamedTuple):
    """The moment at which a step ended."""

    wall: float
    cpu: float
    tokens: int
    is_full: bool


class StepTimes:
    """The wall time and the client's CPU time at every step of an engine.

    CPU time is that of this process: the engine and the graders have their own processes.

    Args:
        engine: The `vllm.LLMEngine`.
        requests: The number of requests. While all of them are unfinished the engine is full.
    """

    def __init__(self, engine: Any, requests: int) -> None:
        self._engine, self._requests = engine, requests
        self._tokens = 0
        self._step_cpu = 0.0
        self._steps: list[Step] = []
        self._closed_cpu: float | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the steps within the context, of any caller."""
        engine, processor = self._engine, self._engine.output_processor
        add_request, step = engine.add_request, engine.step
        process_outputs = processor.process_outputs

        def add_and_note(*arguments: Any, **keywords: Any) -> Any:
            if not self._steps:
                self._note()
            return add_request(*arguments, **keywords)

        def count_and_process(outputs: Any, *arguments: Any, **keywords: Any) -> Any:
            self._tokens += sum(len(output.new_token_ids) for output in outputs)
            return process_outputs(outputs, *arguments, **keywords)

        def step_and_note() -> Any:
            started = time.thread_time()
            outputs = step()
            self._step_cpu += time.thread_time() - started
            self._note()
            return outputs

        engine.add_request, engine.step = add_and_note, step_and_note
        processor.process_outputs = count_and_process
        try:
            yield
        finally:
            del engine.add_request, engine.step, processor.process_outputs

    def _note(self) -> None:
        is_full = self._engine.get_num_unfinished_requests() == self._requests
        step = Step(time.monotonic(), time.process_time(), self._tokens, is_full)
        self._steps.append(step)

    def note_close(self) -> None:
        """Note the CPU time of now: `mless run` journals and grades until it closes its engine."""
        self._closed_cpu = time.process_time()

    def figures(self) -> dict[str, Any]:
        """Tokens, seconds, and microseconds of the client's CPU time for a token.

        They are of the whole side, and (`full_`) of the time in which the engine was full.
        """
        first, last = self._steps[0], self._steps[-1]
        last_cpu = last.cpu if self._closed_cpu is None else self._closed_cpu
        full_steps = [step for step in self._steps if step.is_full]
        full_first, full_last = full_steps[0], full_steps[-1]
        full_tokens = full_last.tokens - full_first.tokens
        return {
            "requests": self._requests,
            "tokens": self._tokens,
            "seconds": last.wall - first.wall,
            "client_us": 1e6 * (last_cpu - first.cpu) / self._tokens,
            "step_us": 1e6 * self._step_cpu / self._tokens,
            "full_tokens": full_tokens,
            "full_seconds": full_last.wall - full_first.wall,
            "full_client_us": 1e6 * (full_last.cpu - full_first.cpu) / full_tokens,
        }


class Session:
    """An engine, and the figures of the sides that it has served.

    Args:
        name: `plain`, or `hooks`: the attention of all layers and the activations of Layer 1 open.
        folder: Has the config, and takes the figures.
        request_count: The number of problems, and of the requests of a side.
    """

    def __init__(self, name: str, folder: Path, request_count: int) -> None:
        self.name, self.folder, self.request_count = name, folder, request_count
        self.config = load_config(folder / "config.yaml")
        self._plan = make_plan(self.config, limit=request_count)
        arguments = self.config.model_arguments()
        if name == "hooks":
            layers = {
                **opened_layers(self.config.interventions),
                "recorded": "all",
                "set_count": AVERAGES,
            }
            refuse_to_open(arguments, layers)
            arguments["interventions"] = {"layers": layers}
        started = time.monotonic()
        self.engine = VLLMEngine(arguments)
        prompts = self.requests("mless")
        self._figures: dict[str, Any] = {
            "load_seconds": time.monotonic() - started,
            "facts": self.engine.facts(),
            "dataset": self._plan.full_dataset.name,
            "prompt_tokens": mean(len(request.prompt_token_ids or ()) for request in prompts),
            "sides": [],
        }

    def requests(self, condition: str) -> list[Request]:
        """The requests of a condition, which every side of the benchmark answers."""
        requests = make_requests(self._plan, self.config.resolve_sampling(None))
        tasks = self._plan.tasks
        return [request for request in requests if tasks[request.task].condition.name == condition]

    def measure(self, name: str, kind: str, serve: Callable[[StepTimes], None]) -> None:
        """Measure one side: the engine answers all requests."""
        say(f"{self.name}: {name}")
        vllm_engine = self.engine._engine
        if not vllm_engine.reset_prefix_cache():
            raise EngineError("Requests of the side before are still running.")
        times = StepTimes(vllm_engine, self.request_count)
        with times.recorded():
            serve(times)
        self._figures["sides"].append({"name": name, "kind": kind, **times.figures()})
        write_json(self.folder / f"{self.name}.json", self._figures)

    def measure_stream(self, name: str, kind: str, requests: Sequence[Request]) -> None:
        """Measure mless's engine alone, without journal and grading."""

        def serve(_: StepTimes) -> None:
            for _finished in self.engine.stream(requests):
                pass

        self.measure(name, kind, serve)


def measure_plain(session: Session) -> None:
    """Raw vLLM and `mless run` in turn, after a run that warms the engine up."""
    with shared_engine(session.engine) as shutdown_callbacks:

        def serve_raw(_: StepTimes) -> None:
            generate_raw(session)

        def serve_mless(times: StepTimes) -> None:
            shutdown_callbacks.append(times.note_close)
            run_config(session)
            shutdown_callbacks.clear()

        session.measure("warm-up", "raw", serve_raw)
        session.measure("raw vLLM", "raw", serve_raw)
        for _ in range(2):
            session.measure("mless run", "mless", serve_mless)
            session.measure("raw vLLM", "raw", serve_raw)


def generate_raw(session: Session) -> None:
    """Call `LLM.generate` once with all requests, as somebody without mless would."""
    from vllm import LLM, TokensPrompt

    requests = session.requests("mless")
    prompts = [
        TokensPrompt(prompt_token_ids=list(request.prompt_token_ids or ())) for request in requests
    ]
    parameters = [sampling_parameters(request) for request in requests]
    for request_parameters in parameters:
        request_parameters.detokenize = True  # as vLLM does where nobody says otherwise
    llm = LLM(**engine_arguments(session.config.model_arguments()))
    llm.generate(prompts, parameters, use_tqdm=False)


def run_config(session: Session) -> None:
    """The command `mless run` in this process: it makes prompts, journals and grades."""
    output = session.folder / f"run-{time.monotonic_ns()}"
    command = ["run", str(session.folder / "config.yaml"), "--quiet", "--output", str(output)]
    command += ["--limit", str(session.request_count), "--set", "conditions=[mless]"]
    thresholds = gc.get_threshold()
    try:
        run_mless_here(command)
    finally:
        gc.set_threshold(*thresholds)  # which the command raises; raw vLLM has Python's own


@contextmanager
def shared_engine(owner: VLLMEngine) -> Iterator[list[Callable[[], None]]]:
    """Within the context every start of vLLM gets this engine, and nobody shuts it down.

    Yields:
        Functions that are called where the engine would be shut down.
    """
    from vllm import LLMEngine

    engine, core = owner._engine, owner._engine.engine_core
    start, shutdown = LLMEngine.from_engine_args, core.shutdown
    shutdown_callbacks: list[Callable[[], None]] = []

    def call_back(**_: Any) -> None:
        for callback in shutdown_callbacks:
            callback()

    LLMEngine.from_engine_args = lambda *_, **__: engine
    core.shutdown = call_back
    try:
        yield shutdown_callbacks
    finally:
        LLMEngine.from_engine_args, core.shutdown = start, shutdown


def measure_hooks(session: Session) -> None:
    """The same requests with hooks: unused, recording, and under interventions."""
    requests = session.requests("mless")
    session.measure_stream("warm-up", "hooks", requests)
    session.measure_stream("hooks unused", "hooks", requests)
    # of each set of queries, all queries
    recorded = [
        replace(request, record=[[1] * len(request.prompt_token_ids or ())] * AVERAGES)
        for request in requests
    ]
    model = json.loads((session.folder / "model" / "config.json").read_text(encoding="utf-8"))
    for name, count in (("Layers 1 to 3", 3), ("all layers", model["num_hidden_layers"])):
        session.engine._engine.collective_rpc(record_layers, args=(count,))
        session.measure_stream(f"attention recorded, {name}", "recording", recorded)
    for condition, effect in ARMS.items():
        session.measure_stream(effect, "intervention", session.requests(condition))


def record_layers(worker: Any, count: int) -> None:
    """In a worker in which all layers are open, record the first ones only.

    A run opens the layers that it records, and no others.
    """
    worker._interventions._recorded_layers = set(range(count))


MEASURES = {"plain": measure_plain, "hooks": measure_hooks}


def run_session() -> None:
    """Load the engine, and measure."""
    name, folder, request_count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for `record_layers`, a function
    session = Session(name, folder, request_count)
    with closing(session.engine):
        MEASURES[name](session)


if __name__ == "__main__":
    run_session()
