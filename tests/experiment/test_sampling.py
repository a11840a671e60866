import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.vllm import read_outputs, sampling_parameters
from harness.errors import ModelError
from harness.experiment.sampling import ExplicitSampling, resolve_sampling, sample_seed
from tests.conftest import needs_vllm
from tests.engines.test_backends import request

SAMPLING_MODEL = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05, "eos_token_id": 3}


def resolve(choice, own=None):
    chosen = choice if isinstance(choice, str) else ExplicitSampling(**choice)
    return resolve_sampling(chosen, 9, ("x",), own)


def test_greedy_passes_over_what_the_model_sets_and_says_so():
    sampling = resolve("greedy", own=SAMPLING_MODEL)
    assert sampling.greedy and sampling.vllm() == {
        **{"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
        **{"max_tokens": 9, "stop": ["x"]},
    }
    assert sampling.switched_off == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}
    assert sampling.from_model == {}
    assert resolve("greedy").switched_off is None, "nothing was read, so nothing is known to be off"


def test_model_default_takes_the_models_values_and_fills_gaps_as_generate_does():
    sampling = resolve("model_default", own=SAMPLING_MODEL)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (0.6, 0.9, 50, 1.05)
    assert sampling.from_model == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}


def test_model_default_of_a_greedy_model_is_greedy_with_its_penalty():
    sampling = resolve("model_default", own={**SAMPLING_MODEL, "do_sample": False})
    assert sampling.greedy and sampling.repetition_penalty == 1.05
    assert sampling.switched_off == {"temperature": 0.6, "top_p": 0.9}


def test_model_default_refuses_what_vllm_cannot_do():
    with pytest.raises(ModelError, match=r"sets num_beams, suppress_tokens, unknown to vLLM"):
        resolve("model_default", own={**SAMPLING_MODEL, "num_beams": 4, "suppress_tokens": [1], "typical_p": 1.0})


@given(st.integers(0, 2**40), st.text(max_size=20), st.integers(0, 1000), st.integers(0, 5))
def test_a_seed_is_one_that_every_generator_takes_and_always_the_same(run_seed, problem, index, replicate):
    seed = sample_seed(run_seed, problem, index, replicate)
    assert 0 <= seed < 2**31 and seed == sample_seed(run_seed, problem, index, replicate)


@needs_vllm
def test_vllm_is_given_the_seed_and_the_parameters_of_a_sample():
    sampling = resolve({"temperature": 0.5, "top_p": 0.95, "top_k": 20, "min_p": 0.1})
    with warnings.catch_warnings(action="ignore"):  # those of vLLM are not ours
        given = [sampling_parameters(request("p", sampling=sampling, seed=seed)) for seed in (7, 8)]
    assert [one.seed for one in given] == [7, 8]
    for one in given:
        assert {name: getattr(one, name) for name in sampling.vllm()} == sampling.vllm()


@needs_vllm
def test_an_aborted_request_is_no_sample():
    with warnings.catch_warnings(action="ignore"):  # those of vLLM are not ours
        from vllm.outputs import CompletionOutput, RequestOutput

    def output(reason):
        completion = CompletionOutput(0, "half", [5, 6], None, None, finish_reason=reason)
        return RequestOutput(reason or "running", "prompt", [1], None, [completion], reason is not None)

    finished, aborted = read_outputs([output(reason) for reason in ("stop", "abort", None, "length", "error")])
    assert [one.request_id for one in finished] == ["stop", "length"] and aborted
    assert read_outputs([output("stop"), output(None)])[1] is False
