"""The type and the cores that vLLM computes with on a CPU: chosen once, and kept by a run."""

from __future__ import annotations

from itertools import chain

import pytest
import torch

from harness import load_config, resources
from harness.engines import devices
from harness.engines.backends import REQUESTS_PER_LM_EVAL_CALL, LmEvalBackend, check_backend
from harness.engines.engine_options import engine_arguments
from harness.errors import ConfigError, EngineError
from harness.execution import run_execution
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Request
from harness.runs.versions_and_hashes import describe_sampling
from harness.yaml_settings import parse_overrides
from tests.make import GREEDY_RUN, TOY_CONFIG, TOY_MODEL, right, with_cases, write_run

SERVED = resources.folder("configs") / "runs" / "served.yaml"


def test_a_server_that_gets_no_temperature_samples_by_its_default():
    config = load_config(SERVED, {"gen_kwargs": "greedy", "model.model_args.omit": ["temperature"]})
    sampling = config.resolve_sampling(None)
    receipt = {"greedy": sampling.is_greedy, "sampling": sampling.lm_eval_arguments()}
    assert (sampling.source, sampling.temperature) == ("server_default", None)
    assert describe_sampling(receipt) == "the server's temperature"
    assert config.sampling_description.startswith("the server's temperature instead of greedy, ")


class Model:
    """A model of lm-eval's that answers each prompt with itself, and records its batches."""

    def __init__(self):
        self.batches = []

    def generate_until(self, instances):
        self.batches.append([instance.args for instance in instances])
        if self.batches[-1][0][0] == "break":
            raise ConnectionError("refused\n  twice")
        return [instance.args[0] for instance in instances]

    def apply_chat_template(self, turns):
        return "/".join(turn["content"] for turn in turns)


def request(name, **facts):
    fixed = {
        "prompt_token_ids": None,
        "prompt_sha256": "",
        "prompt_token_sha256": None,
        "sampling": Sampling(),
    }
    return Request(task="t", problem_id=name, prompt=name, **fixed | facts)


def test_requests_go_in_batches_with_turns_and_seeds():
    model = Model()
    turns = ({"role": "system", "content": "a"}, {"role": "user", "content": "b"})
    first, second = request("seeded", seed=7), request("turns", turns=turns)
    requests = [first, second, *[request("more")] * REQUESTS_PER_LM_EVAL_CALL]
    answers = [*chain.from_iterable(LmEvalBackend(model).stream(requests))]
    assert [answered for answered, _ in answers] == requests
    texts = [completion.text for _, completion in answers]
    assert texts == ["seeded", "a/b", *["more"] * REQUESTS_PER_LM_EVAL_CALL]
    assert [len(batch) for batch in model.batches] == [REQUESTS_PER_LM_EVAL_CALL, 2]
    assert model.batches[0][0][1]["seed"] == 7 and "seed" not in model.batches[0][1][1]


def test_sampled_batches_of_a_local_model_are_drawn_from_seeds_of_their_own():
    model = Model()
    model.generate_until = lambda instances: [float(torch.rand(1))]
    sampled = Sampling(source="explicit", temperature=1.0)
    numbers = []
    for index in (0, 1, 0):
        requests = [request("x", sampling=sampled, sample_index=index)]
        (((_, completion),),) = LmEvalBackend(model).stream(requests)
        numbers.append(completion.text)
    assert numbers[0] == numbers[2] != numbers[1]


def test_a_backend_that_fails_ends_in_one_line_that_says_how_to_continue():
    message = (
        r"^The backend stopped: ConnectionError: refused twice\. "
        "Everything finished is in the journal: run the same"
    )
    with pytest.raises(EngineError, match=message):
        list(LmEvalBackend(Model()).stream([request("break")]))


@with_cases
def test_a_config_whose_backend_could_not_be_asked_is_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check_backend(load_config(SERVED, parse_overrides(overrides)))


@with_cases
def test_arguments_have_vllms_names_without_those_that_only_lm_eval_reads(arguments, expected):
    assert engine_arguments(arguments) == expected


@with_cases
def test_the_flags_of_a_processor_say_whether_it_computes_in_bf16(flags, bf16, tmp_path):
    (tmp_path / "cpuinfo").write_text(f"model name : x\nflags : {flags}\n")
    assert devices.computes_bf16(tmp_path / "cpuinfo") == bf16


@with_cases
def test_few_cores_are_all_used_unless_the_user_says_otherwise(
    cores, environment, reserved, monkeypatch
):
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(devices.os, "environ", environment)
    devices.use_all_cores()
    assert environment.get(devices.RESERVED_CORES_VARIABLE) == reserved


def test_a_new_run_is_in_float32_without_bf16_instructions_and_an_old_one_keeps_its_type(
    tmp_path, monkeypatch
):
    def fill(dtype, *, folder=tmp_path / "new", bf16=False, device="cpu"):
        monkeypatch.setattr(run_execution, "computes_bf16", lambda: bf16)
        monkeypatch.setattr(run_execution, "device_type", lambda: device)
        overrides = {"model.model_args.dtype": dtype, "layouts": []}
        return run_execution.fill_open_settings(load_config(TOY_CONFIG, overrides), folder)

    for dtype, expected in ((None, "float32"), ("auto", "float32"), ("bfloat16", "bfloat16")):
        assert fill(dtype).identity()["model"]["model_args"]["dtype"] == expected
        kept = [fill(dtype, device="cuda"), fill(dtype, bf16=True)]
        assert [config.model.model_args["dtype"] for config in kept] == [dtype, dtype]
    model = {"label": "made", "model_args": {"pretrained": TOY_MODEL, "max_model_len": 4096}}
    folder = write_run(tmp_path / "old", right, limit=1, model=model)
    assert fill(None, folder=folder).model.model_args["dtype"] is None  # the model's own type
    continued = fill(None, folder=GREEDY_RUN, bf16=True)
    assert continued.model.model_args["dtype"] == "float32"  # on any machine
    assert continued.layouts == ("raw",)
