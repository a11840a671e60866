import os
import sys
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from harness.engines import ray_carrier
from harness.engines.completions import Completion
from harness.engines.engine_choice import open_engines, read_engine_choice
from harness.engines.engine_pool import MOST_FRUITLESS_STARTS, EnginePool
from harness.errors import (
    ConfigError,
    EngineError,
    ModelError,
)
from harness.experiment.generation_settings import Sampling
from tests.engines.test_backends import request
from tests.make import with_cases

OPTIONS = {"has_sampled_requests": False, "log_path": Path(os.devnull)}


def make_requests(count, *, size=3):
    facts = {"prompt_token_ids": (1,) * size, "sampling": Sampling(max_tokens=8)}
    return [request(str(number), **facts) for number in range(count)]


@dataclass(eq=False)
class FakeEngine:
    """An engine, which also stands for its call in flight.

    Attributes:
        number: Its position among all engines that were started.
        holds: The numbers of its unfinished requests.
        answers: The answer of the call in flight; empty between two calls.
        killed: Whether the pool has ended it.
    """

    number: int
    holds: list = field(default_factory=list)
    answers: list = field(default_factory=list)
    killed: bool = False

    def call(self, answer):
        assert not self.answers  # one call in flight for each engine
        self.answers.append(answer)
        return self


@dataclass
class FakeCarrier:
    """Engines that finish at once everything that they hold, if a test does not change it.

    Attributes:
        sequences: How many requests an engine says that it can run at once.
        at_once: How many of the requests that it holds an engine finishes in one exchange.
        load: The answers to loading, by the engine's number: None for silence, an error, or facts.
        fail: The error of the exchange with this ordinal number.
        poison: A request that no engine survives.
    """

    sequences: int = 10
    at_once: int = 1000
    load: dict = field(default_factory=dict)
    fail: dict = field(default_factory=dict)
    poison: int | None = None
    engines: list = field(default_factory=list)
    exchanges: list = field(default_factory=list)
    closed: bool = False

    def start(self):
        engine = FakeEngine(len(self.engines))
        self.engines.append(engine)
        facts = {"max_num_seqs": self.sequences, "max_model_len": 100, "device_names": ["fake"]}
        facts["cards"] = [f"card {engine.number}"]
        return engine, engine.call(self.load.get(engine.number, facts))

    def exchange(self, engine, new):
        assert not engine.killed
        numbers = [number for number, _ in new]
        engine.holds += numbers
        ordinal = len(self.exchanges)
        self.exchanges.append((engine.number, numbers))
        if self.poison in engine.holds:
            return engine.call(EngineError("poisoned"))
        if ordinal in self.fail:
            return engine.call(self.fail[ordinal])
        finished, engine.holds = engine.holds[: self.at_once], engine.holds[self.at_once :]
        completions = [Completion(text=str(n), request_id=str(n)) for n in finished]
        # the number of a request is that of its tokens, so a test knows whose they are
        return engine.call((completions, [*engine.holds]))

    def begun(self, exchanges=slice(None)):
        """The requests that engines got in some of the exchanges, in order."""
        return [*chain.from_iterable(new for _, new in self.exchanges[exchanges])]

    def wait(self, engines, seconds):
        return [engine for engine in engines if engine.answers != [None]]

    def result(self, engine):
        answer = engine.answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, engine):
        engine.killed = True

    def close(self):
        self.closed = True


def generate(carrier, count, size=2):
    """All requests of a stream, in the order in which they finish, each with its own completion."""
    pool = EnginePool(carrier, size)
    numbers = []
    for turn, finished in enumerate(pool.stream(make_requests(count))):
        assert turn < 1000  # the stream must end
        assert all(request.problem_id == completion.text for request, completion in finished)
        numbers += [int(completion.text) for _, completion in finished]
        held = [engine.holds for engine in carrier.engines if not engine.killed]
        assert set(pool.token_counts) <= set(chain(*held))
    pool.close()
    assert sorted(numbers) == list(range(count))
    assert not pool.token_counts
    assert carrier.closed and all(engine.killed for engine in carrier.engines)
    return numbers


REPLACED = "mless: an engine is lost; another is started in its place. "


def test_two_engines_make_every_sample_once_and_begin_them_in_order():
    carrier = FakeCarrier(at_once=3)
    generate(carrier, 100)
    assert carrier.begun() == list(range(100))
    assert {engine for engine, _ in carrier.exchanges} == {0, 1}


def test_an_engine_gets_twice_as_many_requests_as_it_runs_at_once():
    carrier = FakeCarrier(sequences=20, at_once=5)
    generate(carrier, 200)
    assert len(carrier.exchanges[0][1]) == 40
    assert all(len(new) <= 40 for _, new in carrier.exchanges)


def test_no_engine_gets_more_than_its_share():
    carrier = FakeCarrier(sequences=1000)
    stream = EnginePool(carrier, 4).stream(make_requests(100))
    next(stream)
    next(stream)
    shares = [list(range(first, first + 25)) for first in range(0, 100, 25)]
    assert carrier.exchanges == list(enumerate(shares))


def test_the_requests_of_a_lost_engine_come_next_and_another_is_started(capsys):
    carrier = FakeCarrier(at_once=2, fail={3: EngineError("killed")})
    generate(carrier, 60)
    lost, _ = carrier.exchanges[3]
    unfinished = carrier.engines[lost].holds
    assert carrier.engines[lost].killed and len(carrier.engines) == 3
    later = carrier.begun(slice(4, None))
    assert later[: len(unfinished)] == unfinished  # they are at the head again
    begun_before = carrier.begun(slice(4))
    assert set(later) & set(begun_before) == set(unfinished)  # no finished request is made again
    assert f"{REPLACED}killed" in capsys.readouterr().err


def test_where_one_gpu_is_bad_and_the_good_engine_is_lost_later_engines_are_started_again(capsys):
    bad = dict.fromkeys(range(1, 5), ModelError("no memory on GPU 1"))
    carrier = FakeCarrier(sequences=2, at_once=1, load=bad, fail={20: EngineError("killed")})
    generate(carrier, 40)
    assert carrier.engines[0].killed and 4 < len(carrier.engines) <= 1 + 2 * MOST_FRUITLESS_STARTS
    stderr = capsys.readouterr().err
    assert "an engine is lost; 1 left. no memory" in stderr and f"{REPLACED}killed" in stderr


def test_one_pool_serves_one_stream_after_the_other():
    carrier = FakeCarrier(at_once=3)
    pool, requests = EnginePool(carrier, 2), make_requests(30)
    for _ in range(2):
        finished = [request for request, _ in chain.from_iterable(pool.stream(requests))]
        assert sorted(finished, key=requests.index) == requests
    assert len(carrier.engines) == 2


def test_three_starts_without_a_sample_end_the_run_with_their_cause():
    load = {number: ModelError(f"no memory {number}") for number in range(9)}
    carrier = FakeCarrier(load=load)
    with pytest.raises(ModelError, match="no memory 2"):
        generate(carrier, 10, 1)
    assert len(carrier.engines) == 3
    with pytest.raises(ModelError, match="no memory"):
        EnginePool(FakeCarrier(load=load), 2).facts()


def test_a_request_that_kills_every_engine_ends_the_run_with_its_cause():
    carrier = FakeCarrier(sequences=4, at_once=2, poison=13)
    finished = []
    with pytest.raises(EngineError, match="poisoned"):
        for pairs in EnginePool(carrier, 2).stream(make_requests(30)):
            finished += [completion.text for _, completion in pairs]
    assert len(finished) == len(set(finished)) > 5  # each sample that finished before is there once
    assert len(carrier.engines) <= 2 * (1 + MOST_FRUITLESS_STARTS)


@with_cases
def test_no_more_engines_start_than_are_needed(sequences, at_once, count, engines):
    """The second engine loads for ever."""
    carrier = FakeCarrier(sequences=sequences, at_once=at_once, load={1: None})
    generate(carrier, count)
    assert len(carrier.engines) == engines


@with_cases
def test_facts_are_those_of_the_first_engine_that_has_loaded_and_cards_those_of_all(facts):
    pool = EnginePool(FakeCarrier(at_once=1), 3)
    assert len(list(chain.from_iterable(pool.stream(make_requests(9))))) == 9
    assert pool.cards == [["card 0"], ["card 1"], ["card 2"]]
    assert EnginePool(FakeCarrier(load={0: None}), 2).facts() == facts


def test_a_request_over_the_context_is_refused_before_any_engine_gets_it():
    carrier = FakeCarrier()
    message = "Problem 0 of t has 93 prompt tokens: with max_gen_toks 8"
    with pytest.raises(EngineError, match=message):
        list(EnginePool(carrier, 2).stream(make_requests(1, size=93)))
    assert carrier.exchanges == []


@with_cases
def test_the_option_of_the_command_comes_before_the_model_arguments(option, arguments, engines):
    assert read_engine_choice(option, arguments) == engines


def test_several_engines_need_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert read_engine_choice("1", {}) == 1  # one engine needs no Ray
    with pytest.raises(ModuleNotFoundError, match="ray"):
        read_engine_choice("2", {})


@with_cases
def test_gpus_of_one_machine_or_cores_bound_the_engines(
    monkeypatch, gpus, cores, gpus_of_engine, fit, too_many
):
    carrier, arguments = FakeCarrier(), {"tensor_parallel_size": gpus_of_engine}
    carrier.gpu_counts, carrier.core_count = gpus, cores
    monkeypatch.setattr(ray_carrier, "RayCarrier", lambda *_, **__: carrier)
    for engines in fit:
        open_engines(arguments, engines, request_count=1000, **OPTIONS)
    assert not carrier.closed
    message = f"number of engines is {too_many}, and there is room for "
    with pytest.raises(ConfigError, match=message):
        open_engines(arguments, too_many, request_count=1000, **OPTIONS)
    assert carrier.closed


@with_cases
def test_if_a_model_is_compiled_one_engine_loads_it_before_the_others_start(
    monkeypatch, eager, engines
):
    """The first engine fails."""
    carrier = FakeCarrier(at_once=1, load={0: ModelError("killed")})
    carrier.gpu_counts, carrier.core_count = [3], 1
    monkeypatch.setattr(ray_carrier, "RayCarrier", lambda *_, **__: carrier)
    pool = open_engines({"enforce_eager": eager}, "auto", request_count=9, **OPTIONS)
    counts = [len(carrier.engines) for _ in pool.stream(make_requests(9))]
    assert counts[: len(engines)] == engines


@pytest.fixture
def fake_ray(monkeypatch):
    """A Ray whose connection fails as that of the real one does."""
    ray = MagicMock(environment_at_start={})

    def init(**options):
        ray.environment_at_start = {**os.environ}
        raise RuntimeError("Failed to connect\nto it")

    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_carrier.os, "environ", {"PATH": os.environ["PATH"]})
    return ray


@with_cases
def test_a_ray_that_does_not_start_is_one_line_and_a_cluster_is_tried_once(
    fake_ray, environment, address, message
):
    ray_carrier.os.environ.update(environment)
    message = rf"cannot be used \(RAY_ADDRESS: {address}\): {message}"
    with pytest.raises(EngineError, match=message):
        ray_carrier.RayCarrier({}, gpus_per_engine=1, **OPTIONS)
    once = fake_ray.environment_at_start.get("RAY_gcs_server_port_wait_time_s")
    assert once == ("1" if "RAY_ADDRESS" in environment else None)


def test_a_ray_that_fails_after_its_start_is_stopped(fake_ray):
    fake_ray.init = lambda **_: None
    fake_ray.nodes.side_effect = RuntimeError("no GCS")
    with pytest.raises(RuntimeError, match="no GCS"):
        ray_carrier.RayCarrier({}, gpus_per_engine=1, **OPTIONS)
    fake_ray.shutdown.assert_called_once_with()


@with_cases
def test_an_engine_has_the_number_of_threads_that_the_run_began_with(
    threads, nodes, fake_ray, monkeypatch
):
    thread_counts, environment = [], ray_carrier.os.environ

    def note_threads():
        thread_counts.append(environment.get("OMP_NUM_THREADS"))
        return {}

    engine = SimpleNamespace(facts=note_threads)
    monkeypatch.setattr(ray_carrier, "VLLMEngine", lambda *_, **__: engine)
    monkeypatch.setattr(ray_carrier.os, "dup2", lambda *_: None)
    fake_ray.init = lambda **_: None
    fake_ray.get_runtime_context().get_accelerator_ids.return_value = {"GPU": []}
    fake_ray.nodes.return_value = nodes
    actor = fake_ray.remote().options().remote()
    actor.load.remote = lambda *arguments: ray_carrier.EngineActor().load(*arguments)
    if threads:
        environment["OMP_NUM_THREADS"] = threads
    carrier = ray_carrier.RayCarrier({}, gpus_per_engine=1, **OPTIONS)
    environment["OMP_NUM_THREADS"] = "1"  # Ray's, in the actor
    carrier.start()
    carrier.close()
    assert thread_counts == [threads] and carrier.gpu_counts == [] and carrier.core_count == 500
