import importlib.util
import os
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from harness.engines import engine_pool, ray_carrier
from harness.engines.completions import Completion
from harness.engines.engine_pool import FRUITLESS_STARTS, EnginePool
from harness.engines.open_engines import check_engines, open_engines
from harness.errors import (
    ConfigError,
    EngineError,
    MissingDependencyError,
    ModelError,
    StartEndedError,
)
from harness.experiment.generation_settings import Sampling
from tests.engines.test_backends import request


def make_requests(count, *, size=3):
    facts = {"prompt_token_ids": (1,) * size, "sampling": Sampling(max_tokens=8)}
    return [request(str(number), **facts) for number in range(count)]


@dataclass(eq=False)
class FakeEngine:
    number: int
    holds: list = field(default_factory=list)
    killed: bool = False


@dataclass
class FakeCarrier:
    """Engines that finish everything they hold at once, unless they are told otherwise.

    Attributes:
        sequences: How many requests an engine says that it can run at once.
        at_once: How many of the requests that it holds an engine finishes in one exchange.
        load: The answers to loading, by the engine's number: None for silence, an error, or nothing for its facts.
        fail: What happens to the exchange with this ordinal number: None for silence, or an error.
        poison: A request that no engine survives.
        slow: No call is answered for now.
    """

    sequences: int = 10
    at_once: int = 1000
    load: dict = field(default_factory=dict)
    fail: dict = field(default_factory=dict)
    poison: int | None = None
    engines: list = field(default_factory=list)
    calls: dict = field(default_factory=dict)
    exchanges: list = field(default_factory=list)
    closed: bool = False
    slow: bool = False

    def start(self):
        engine = FakeEngine(len(self.engines))
        self.engines.append(engine)
        facts = {"max_num_seqs": self.sequences, "max_model_len": 100, "device_names": ["fake"]}
        return engine, self._call(engine, self.load.get(engine.number, facts))

    def exchange(self, engine, new):
        assert not engine.killed
        engine.holds += [number for number, _ in new]
        self.exchanges.append((engine.number, [number for number, _ in new]))
        if self.poison in engine.holds:
            return self._call(engine, EngineError("poisoned"))
        if len(self.exchanges) - 1 in self.fail:
            return self._call(engine, self.fail[len(self.exchanges) - 1])
        finished, engine.holds = engine.holds[: self.at_once], engine.holds[self.at_once :]
        counts = [(number, 7) for number in engine.holds]
        return self._call(
            engine, [*((number, Completion(text=str(number))) for number in finished), *counts]
        )

    def _call(self, engine, answer):
        assert engine not in [busy for busy, _ in self.calls.values()], (
            "one call in flight for each engine"
        )
        call = object()
        self.calls[call] = (engine, answer)
        return call

    def wait(self, calls, seconds):
        return [call for call in calls if self.calls[call][1] is not None and not self.slow]

    def answer(self, call):
        _, answer = self.calls.pop(call)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, engine):
        engine.killed = True
        self.calls = {
            call: (holder, answer)
            for call, (holder, answer) in self.calls.items()
            if holder is not engine
        }

    def close(self):
        self.closed = True


def generate(carrier, count, size, *, stall=1e9, load=1e9, turns=1000, requests=None):
    """All that the stream yields, in order, by number; every completion belongs to its request."""
    pool = EnginePool(carrier, size, stall, load)
    finished = []
    for turn, some in enumerate(pool.stream(requests or make_requests(count))):
        assert turn < turns, "the stream must end"
        assert all(request.problem_id == completion.text for request, completion in some)
        finished += [int(completion.text) for _, completion in some]
        assert all(
            any(n in engine.holds for engine in carrier.engines if not engine.killed)
            for n in pool.token_counts
        )
    pool.close()
    assert not pool.token_counts
    assert carrier.closed and all(engine.killed for engine in carrier.engines)
    return finished


@pytest.fixture
def ticking(monkeypatch):
    """A clock that goes on by a second whenever it is read."""
    clock = iter(range(10**6))
    monkeypatch.setattr(engine_pool.time, "monotonic", lambda: next(clock))


def test_two_engines_make_every_sample_once_and_begin_them_in_order():
    carrier = FakeCarrier(at_once=3)
    assert sorted(generate(carrier, 100, 2)) == list(range(100))
    assert [number for _, new in carrier.exchanges for number in new] == list(range(100))
    assert {engine for engine, _ in carrier.exchanges} == {0, 1}


def test_an_engine_holds_twice_what_it_runs_at_once():
    carrier = FakeCarrier(sequences=20, at_once=5)
    generate(carrier, 200, 2)
    assert len(carrier.exchanges[0][1]) == 40
    assert all(len(new) <= 40 for _, new in carrier.exchanges)


def test_where_engines_compile_the_first_starts_alone_and_leaves_the_others_their_share():
    carrier = FakeCarrier(sequences=1000)
    pool = EnginePool(carrier, 4, 1e9, 1e9, compiles=True)
    stream = pool.stream(make_requests(100))
    next(stream)
    assert len(carrier.engines) == 1
    next(stream)
    assert len(carrier.engines) == 4 and carrier.exchanges == [(0, list(range(25)))]


def test_a_first_engine_that_does_not_start_keeps_no_other_back(capsys):
    carrier = FakeCarrier(load={0: ModelError("the first GPU is full")})
    pool = EnginePool(carrier, 4, 1e9, 1e9, compiles=True)
    stream = pool.stream(make_requests(100))
    next(stream)
    next(stream)
    assert (
        len(carrier.engines) == 5
        and sorted(int(completion.text) for some in stream for _, completion in some)[-1] == 99
    )
    pool.close()


def test_two_engines_on_one_gpu_stop_the_run():
    facts = {"max_num_seqs": 10, "max_model_len": 100, "device_uuids": ["GPU-aa11"]}
    carrier = FakeCarrier(load={0: facts, 1: facts})
    pool = EnginePool(carrier, 2, 1e9, 1e9)
    with pytest.raises(EngineError, match="Two engines run on one GPU, GPU-aa11"):
        list(pool.stream(make_requests(100)))
    pool.close()


def test_the_requests_of_a_lost_engine_come_next_and_another_is_started(capsys):
    carrier = FakeCarrier(sequences=10, at_once=2, fail={3: EngineError("killed")})
    assert sorted(generate(carrier, 60, 2)) == list(range(60))
    lost, _ = carrier.exchanges[3]
    assert carrier.engines[lost].killed and len(carrier.engines) == 3
    numbers = [number for engine, new in carrier.exchanges[:4] for number in new if engine == lost]
    finished_before = [number for number in numbers if number not in carrier.engines[lost].holds]
    again = [number for _, new in carrier.exchanges[4:] for number in new]
    assert again[: len(carrier.engines[lost].holds)] == carrier.engines[lost].holds, (
        "they are at the head again"
    )
    assert not set(finished_before) & set(again), "what was finished is not made again"
    assert (
        "mless: an engine is lost; another is started in its place. killed"
        in capsys.readouterr().err
    )


def test_where_one_gpu_is_bad_and_the_good_engine_is_lost_later_engines_are_started_again(capsys):
    bad = {number: ModelError("no memory on GPU 1") for number in range(1, 5)}
    carrier = FakeCarrier(sequences=2, at_once=1, load=bad, fail={20: EngineError("killed")})
    assert sorted(generate(carrier, 40, 2)) == list(range(40))
    assert carrier.engines[0].killed and 4 < len(carrier.engines) <= 1 + 2 * FRUITLESS_STARTS
    stderr = capsys.readouterr().err
    assert (
        "an engine is lost; 1 left. no memory" in stderr
        and "another is started in its place. killed" in stderr
    )


def test_a_process_that_was_stopped_for_an_hour_loses_no_engine(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(engine_pool.time, "monotonic", lambda: clock[0])
    carrier = FakeCarrier(at_once=1)
    pool = EnginePool(carrier, 2, 30, 30)
    for turn, _ in enumerate(pool.stream(make_requests(40))):
        carrier.slow = turn == 5  # nobody has answered when we look again
        clock[0] += 3600 if turn == 5 else 1
    assert len(carrier.engines) == 2


def test_one_pool_serves_one_stream_after_the_other():
    carrier = FakeCarrier(at_once=3)
    pool = EnginePool(carrier, 2, 1e9, 1e9)
    for _ in range(2):
        finished = [
            request.problem_id for some in pool.stream(make_requests(30)) for request, _ in some
        ]
        assert sorted(finished, key=int) == [str(number) for number in range(30)]
    assert len(carrier.engines) == 2


def test_an_engine_that_says_nothing_is_given_up(ticking, capsys):
    carrier = FakeCarrier(at_once=2, fail={2: None})
    assert sorted(generate(carrier, 40, 2, stall=30)) == list(range(40))
    assert "An engine has not answered for 30 seconds" in capsys.readouterr().err


def test_loading_may_take_longer_than_an_answer(ticking):
    carrier = FakeCarrier(at_once=1, load={1: None})
    assert sorted(generate(carrier, 40, 2, stall=30)) == list(range(40))
    assert len(carrier.engines) == 2, (
        "the silent one was loading all the time, and was not replaced"
    )


def test_three_starts_without_a_sample_end_the_run_with_their_cause():
    carrier = FakeCarrier(load={number: ModelError(f"no memory {number}") for number in range(9)})
    with pytest.raises(ModelError, match="no memory 2"):
        generate(carrier, 10, 1)
    assert len(carrier.engines) == 3
    carrier = FakeCarrier(load={number: ModelError("no memory") for number in range(9)})
    with pytest.raises(ModelError, match="no memory"):
        EnginePool(carrier, 2, 1e9, 1e9).facts()


def test_a_start_that_a_signal_ends_is_not_repeated_before_an_engine_has_loaded():
    carrier = FakeCarrier(load={0: None, 1: StartEndedError("got SIGTERM")})
    with pytest.raises(StartEndedError, match="got SIGTERM"):
        EnginePool(carrier, 2, 1e9, 1e9).facts()
    assert len(carrier.engines) == 2


def test_a_start_that_a_signal_ends_costs_nothing_where_another_engine_has_loaded(capsys):
    carrier = FakeCarrier(at_once=2, load={1: StartEndedError("got SIGTERM")})
    assert sorted(generate(carrier, 40, 2)) == list(range(40))
    message = "an engine is lost; another is started in its place. got SIGTERM"
    assert message in capsys.readouterr().err


def test_three_failed_starts_end_the_run_though_other_engines_load_for_ever(capsys, ticking):
    bad = {number: ModelError(f"no memory {number}") for number in range(3)}
    carrier = FakeCarrier(load={**bad, 3: None, 4: None, 5: None})
    with pytest.raises(EngineError, match="An engine has not loaded for 300 seconds"):
        generate(carrier, 10, 4, load=300)
    assert all(engine.killed for engine in carrier.engines) and len(carrier.engines) == 4
    assert "an engine is lost; 1 left. no memory 2" in capsys.readouterr().err


def test_a_request_that_kills_every_engine_ends_the_run_with_its_cause():
    carrier = FakeCarrier(sequences=4, at_once=2, poison=13)
    pool = EnginePool(carrier, 2, 1e9, 1e9)
    finished = []
    with pytest.raises(EngineError, match="poisoned"):
        for some in pool.stream(make_requests(30)):
            finished += [int(completion.text) for _, completion in some]
    assert len(finished) == len(set(finished)) > 5, "what was finished before is there, once"
    assert len(carrier.engines) <= 2 * (1 + FRUITLESS_STARTS)


def test_nobody_waits_for_an_engine_that_is_not_needed_any_more():
    carrier = FakeCarrier(sequences=100, load={1: None})
    pool = EnginePool(carrier, 2, 1e9, 1e9)
    assert len([completion for some in pool.stream(make_requests(1)) for completion in some]) == 1
    assert len(carrier.engines) == 1, "one request needs one engine"
    carrier = FakeCarrier(sequences=100, at_once=10, load={1: None})
    finished = generate(carrier, 20, 2, turns=50)
    assert sorted(finished) == list(range(20)) and carrier.engines[1].killed


def test_facts_are_those_of_the_first_engine_that_has_loaded():
    carrier = FakeCarrier(load={0: None})
    assert EnginePool(carrier, 2, 1e9, 1e9).facts() == {
        "max_num_seqs": 10,
        "max_model_len": 100,
        "device_names": ["fake"],
        "engines": 2,
    }


def test_a_request_over_the_context_is_refused_before_any_engine_gets_it():
    carrier = FakeCarrier()
    with pytest.raises(
        EngineError, match="Problem 0 of t has 93 prompt tokens: with max_gen_toks 8"
    ):
        generate(carrier, 1, 1, requests=make_requests(1, size=93))
    assert carrier.exchanges == []


@pytest.mark.parametrize(
    ("option", "arguments", "message"),
    [
        *(
            (text, {}, r"--engines is .{0,42}\. Expected auto, or a number from 1")
            for text in ("0", "two", "", "1.5")
        ),
        ("9" * 5000, {}, r"--engines is .{0,42}\. Expected auto"),
        (None, {"data_parallel_size": -1}, "data_parallel_size is '-1'"),
        (
            "2",
            {"tensor_parallel_size": "two"},
            "tensor_parallel_size is 'two'. Expected a number from 1",
        ),
        ("2", {"pipeline_parallel_size": 0}, "pipeline_parallel_size is '0'"),
    ],
)
def test_a_number_that_is_none_is_refused(option, arguments, message):
    with pytest.raises(ConfigError, match=message):
        check_engines(option, arguments)


def test_the_command_is_asked_first_and_then_the_arguments(monkeypatch):
    assert check_engines(None, {}) == 1
    assert check_engines(None, {"data_parallel_size": 4}) == 4
    assert check_engines("2", {"data_parallel_size": 4}) == 2
    assert check_engines("auto", {}) == "auto"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert check_engines("1", {"data_parallel_size": 4}) == 1, "one engine needs no Ray"
    with pytest.raises(MissingDependencyError, match=r"--engines is 2, .* Install `mless\[ray\]`"):
        check_engines("2", {})


@pytest.mark.parametrize(
    ("gpus", "cores", "arguments", "fit", "too_many"),
    [
        ([], 3, {}, (12, "auto"), 13),
        ([], 1, {}, (8, "auto"), 9),
        ([4, 3], 64, {"tensor_parallel_size": 2}, (3, "auto"), 4),
        ([1, 1], 64, {"tensor_parallel_size": 2}, (), "auto"),
    ],
)
def test_gpus_of_one_machine_or_cores_bound_the_engines(
    monkeypatch, gpus, cores, arguments, fit, too_many
):
    carrier = FakeCarrier()
    carrier.gpus, carrier.cores = gpus, cores
    monkeypatch.setattr(ray_carrier, "RayCarrier", lambda *_, **__: carrier)
    for engines in fit:
        open_engines(arguments, engines, sampled=False)
    assert not carrier.closed
    with pytest.raises(
        ConfigError, match=f"number of engines is {too_many}, and there is room for "
    ):
        open_engines(arguments, too_many, sampled=False)
    assert carrier.closed


@pytest.fixture
def fake_ray(monkeypatch):
    """What `RayCarrier` needs of Ray until it connects; its connection fails as Ray's does."""
    ray = SimpleNamespace(
        shutdown=lambda: None, is_initialized=lambda: False, environment_at_start={}
    )

    def init(**options):
        ray.environment_at_start = {**os.environ}
        raise RuntimeError("Failed to connect\nto it")

    ray.init = init
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(ray_carrier.os, "environ", {"PATH": os.environ["PATH"]})
    return ray


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"RAY_TMPDIR": "/nowhere"},
            r"cannot be used \(RAY_ADDRESS: local\): .* No such file .* '/nowhere/",
        ),
        (
            {"RAY_ADDRESS": "host:6379"},
            r"cannot be used \(RAY_ADDRESS: host:6379\): Failed to connect to it$",
        ),
        ({}, r"cannot be used \(RAY_ADDRESS: local\): Failed to connect to it$"),
    ],
)
def test_a_ray_that_does_not_start_is_one_line_and_a_cluster_is_tried_once(
    fake_ray, environment, message
):
    ray_carrier.os.environ.update(environment)
    with pytest.raises(EngineError, match=message):
        ray_carrier.RayCarrier({}, sampled=False)
    once = fake_ray.environment_at_start.get("RAY_gcs_server_port_wait_time_s")
    assert once == ("1" if "RAY_ADDRESS" in environment else None)


@pytest.mark.parametrize("threads", ["4", None])
def test_an_engine_has_the_number_of_threads_that_the_run_began_with(
    threads, fake_ray, monkeypatch
):
    thread_counts, environment = [], ray_carrier.os.environ
    engine = SimpleNamespace(
        facts=lambda: thread_counts.append(environment.get("OMP_NUM_THREADS")) or {}
    )
    monkeypatch.setattr(ray_carrier, "VLLMEngine", lambda *_, **__: engine)
    monkeypatch.setattr(ray_carrier.os, "dup2", lambda *_: None)
    load = SimpleNamespace(remote=lambda *arguments: ray_carrier.EngineActor().load(*arguments))
    actor = SimpleNamespace(remote=lambda: SimpleNamespace(load=load))
    fake_ray.init = lambda **_: None
    fake_ray.get_runtime_context = lambda: SimpleNamespace(get_accelerator_ids=lambda: {"GPU": []})
    fake_ray.nodes = lambda: [
        {"Alive": True, "Resources": {"CPU": 500.0}},
        {"Alive": False, "Resources": {"GPU": 1.0}},
    ]
    fake_ray.remote = lambda _: SimpleNamespace(options=lambda **_: actor)
    environment.update({"OMP_NUM_THREADS": threads} if threads else {})
    carrier = ray_carrier.RayCarrier({}, sampled=False)
    environment["OMP_NUM_THREADS"] = "1"  # Ray's, in the actor
    carrier.start()
    carrier.close()
    assert thread_counts == [threads] and carrier.gpus == [] and carrier.cores == 500


@pytest.mark.slow  # it starts Ray
def test_each_engine_in_ray_sees_the_gpus_that_ray_gave_it_and_no_others(monkeypatch):
    import ray

    monkeypatch.setenv(
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1"
    )  # as launchers of clusters set it
    ray.init(address="local", num_cpus=1, num_gpus=3, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote(num_cpus=0)
        class Engine:
            def see(self):
                ray_carrier.take_gpus()
                return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HIP_VISIBLE_DEVICES"]

        engines = [Engine.options(num_gpus=count).remote() for count in (1, 2)]
        (first_gpu, _), (two_gpus, two_hip_gpus) = ray.get(
            [engine.see.remote() for engine in engines]
        )
        assert sorted([first_gpu, *two_gpus.split(",")]) == [
            "0",
            "1",
            "2",
        ] and two_gpus == two_hip_gpus == ",".join(sorted(two_gpus.split(",")))
    finally:
        ray.shutdown()
