import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engines.completions import read_outputs, sampling_parameters
from harness.engines.engine_options import fit_to_cpu
from harness.errors import ConfigError, ModelError
from harness.experiment.conditions import contrast_name
from harness.experiment.generation_settings import ExplicitSampling, resolve_sampling, sample_seed
from harness.experiment.run_config import load_config
from tests.conftest import needs_vllm
from tests.engines.test_backends import request
from tests.experiment.test_refusals import MINIMAL, write
from tests.make import TOY_MODEL, read_data


def test_a_minimal_config_has_the_studys_defaults(tmp_path):
    config = load_config(write(tmp_path, MINIMAL), ["seed=7", "model.model_args.dtype=float32"])
    assert (config.model_arguments()["seed"], config.model.model_args["dtype"]) == (7, "float32")
    assert (config.dataset, config.gen_kwargs, config.max_gen_toks) == ("math500", "greedy", 2048)
    assert [condition.name for condition in config.conditions] == ["wo", "mless"]
    assert config.model_arguments()["pretrained"] == TOY_MODEL


def test_where_a_line_is_read_no_instruction_asks_for_a_box(tmp_path):
    path = write(tmp_path, MINIMAL)
    assert "answer" not in load_config(path).identity(), (
        "`box` is the default, which the identity leaves out"
    )
    config = load_config(path, ["answer=line"])
    assert (config.instruction, config.identity()["answer"]) == ("Answer the question.", "line")
    assert load_config(path, ["answer=line", "instruction=Hi"]).instruction == "Hi"
    assert load_config(path, ["answer=line", "until=[Q]"]).resolve_sampling(None).stop == (
        "Q",
        "\n",
    )


def test_a_label_never_stands_above_other_weights(tmp_path):
    path = write(
        tmp_path, {**MINIMAL, "model": {"label": "Known", "model_args": {"pretrained": "a/known"}}}
    )

    def label(*overrides):
        return load_config(path, overrides).model.display_name

    assert label() == label("max_gen_toks=9", "model.model_args.dtype=float32") == "Known"
    assert label("model.model_args.pretrained=b/other") == "other"
    assert label("model.model_args.revision=abc") == "known", "another revision has other weights"
    assert (
        label("model.model_args={pretrained: b/other}")
        == label("model={model_args: {pretrained: b/other}}")
        == "other"
    )
    for override in (
        "model.model_args.pretrained=b/other",
        "model={model_args: {pretrained: b/other}}",
    ):
        assert label(override, "model.label=Known") == "Known", "said on purpose"


def test_what_only_resembles_a_secret_is_taken(tmp_path):
    arguments = {
        "api_key": "EMPTY",
        "download_dir": "/data/hf_converted_weights_of_the_final_model_2026",
        "served_model_name": "sk-8b-instruct",
        "tokenizer": "org/token-counter",
    }
    values = {**MINIMAL, "model": {"model_args": {"pretrained": TOY_MODEL, **arguments}}}
    assert load_config(write(tmp_path, values)).model.model_args == {
        "pretrained": TOY_MODEL,
        **arguments,
    }


def test_load_only_arguments_may_change_and_random_weights_may_not(tmp_path):
    def identity(**arguments):
        values = {**MINIMAL, "model": {"model_args": {"pretrained": TOY_MODEL, **arguments}}}
        return load_config(write(tmp_path, values)).identity()

    free = {
        "device_ids": [1],
        "download_dir": "d",
        "load_format": "safetensors",
        "distributed_executor_backend": "mp",
    }
    assert identity(**free) == identity()
    assert identity(load_format="dummy") != identity() != identity(tensor_parallel_size=2)


def test_the_identity_holds_what_can_change_a_sample(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    identity = config.identity()
    for same in (
        {"name": "x"},
        {"output": "x"},
        {"audit": False},
        {"primary": "mless - wo", "contrasts": ["mless - wo"]},
        {"baseline": None},
    ):
        assert load_config(write(tmp_path, {**MINIMAL, **same})).identity() == identity
    for change in ({"replicates": 2}, {"across": {"instructions": ["One."]}}, {"seed": 7}):
        assert load_config(write(tmp_path, {**MINIMAL, **change})).identity() == {
            **identity,
            **change,
        }


@pytest.mark.parametrize("case", read_data("contrasts"), ids=str)
def test_the_contrasts_are_of_all_conditions_unless_named(tmp_path, case):
    values = {**MINIMAL, "conditions": ["wo", "mless", "mful", "random"], **case["change"]}
    config = load_config(write(tmp_path, values))
    assert [contrast_name(*pair) for pair in config.tested] == case["contrasts"]
    assert (config.primary_contrast and contrast_name(*config.primary_contrast)) == case["primary"]


def test_contrasts_of_a_file_whose_conditions_the_user_did_not_ask_are_left_out(tmp_path):
    second = "mless - random"
    contrasts = {
        "conditions": ["wo", "mless", "random"],
        "contrasts": ["mless - wo", second],
        "primary": second,
    }
    path = write(tmp_path, {**MINIMAL, **contrasts})
    for conditions, *expected in (
        ("wo, mless", ("mless - wo",), None),
        ("wo, mful", None, None),
        ("mless, random", (second,), second),
    ):
        config = load_config(path, [f"conditions=[{conditions}]"])
        assert [config.contrasts, config.primary] == expected
    for override in ("contrasts=[mless - random]", "primary=mless - random"):
        with pytest.raises(ConfigError, match="mless - random"):
            load_config(path, ["conditions=[wo, mless]", override])
    path.write_text(
        path.read_text()
        .replace("- random\n", "- {name: mine, unit: x}\n", 1)
        .replace(second, "mless - mine")
    )
    config = load_config(path, ["conditions=[wo, mine]"])
    assert [condition.unit for condition in config.conditions] == [None, "x"], (
        "a condition of the file, by its name"
    )


@pytest.mark.parametrize("limits", [{}, {"max_num_batched_tokens": 512}])
def test_on_a_cpu_a_step_holds_a_prompt_as_long_as_the_context(limits):
    arguments = {"max_model_len": 32768, **limits}
    fit_to_cpu(arguments, sampled=True)
    assert (
        arguments["max_num_batched_tokens"] == 32768
        and arguments["enable_chunked_prefill"] is False
    )


SAMPLING_MODEL = {
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "repetition_penalty": 1.05,
    "eos_token_id": 3,
}


def resolve(choice, generation_config=None):
    chosen = choice if isinstance(choice, str) else ExplicitSampling(**choice)
    return resolve_sampling(chosen, 9, ("x",), generation_config)


def test_greedy_passes_over_what_the_model_sets_and_says_so():
    sampling = resolve("greedy", generation_config=SAMPLING_MODEL)
    assert sampling.greedy and sampling.vllm() == {
        **{"temperature": 0.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0},
        **{"max_tokens": 9, "stop": ["x"]},
    }
    assert sampling.switched_off == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}
    assert sampling.from_model == {}
    assert resolve("greedy").switched_off is None, "nothing was read, so nothing is known to be off"


def test_model_default_takes_the_models_values_and_fills_gaps_as_generate_does():
    sampling = resolve("model_default", generation_config=SAMPLING_MODEL)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.repetition_penalty) == (
        0.6,
        0.9,
        50,
        1.05,
    )
    assert sampling.from_model == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}


def test_model_default_of_a_greedy_model_is_greedy_with_its_penalty():
    sampling = resolve("model_default", generation_config={**SAMPLING_MODEL, "do_sample": False})
    assert sampling.greedy and sampling.repetition_penalty == 1.05
    assert sampling.switched_off == {"temperature": 0.6, "top_p": 0.9}


def test_model_default_refuses_what_vllm_cannot_do():
    with pytest.raises(ModelError, match=r"sets num_beams, suppress_tokens, unknown to vLLM"):
        resolve(
            "model_default",
            generation_config={
                **SAMPLING_MODEL,
                "num_beams": 4,
                "suppress_tokens": [1],
                "typical_p": 1.0,
            },
        )


@given(st.integers(0, 2**40), st.text(max_size=20), st.integers(0, 1000), st.integers(0, 5))
def test_a_seed_is_one_that_every_generator_takes_and_always_the_same(
    run_seed, problem, index, replicate
):
    seed = sample_seed(run_seed, problem, index, replicate)
    assert 0 <= seed < 2**31 and seed == sample_seed(run_seed, problem, index, replicate)


@needs_vllm
def test_vllm_is_given_the_seed_and_the_parameters_of_a_sample():
    sampling = resolve({"temperature": 0.5, "top_p": 0.95, "top_k": 20, "min_p": 0.1})
    with warnings.catch_warnings(action="ignore"):  # those of vLLM are not ours
        parameters = [
            sampling_parameters(request("p", sampling=sampling, seed=seed)) for seed in (7, 8)
        ]
    assert [parameter.seed for parameter in parameters] == [7, 8]
    for parameter in parameters:
        assert {name: getattr(parameter, name) for name in sampling.vllm()} == sampling.vllm()


@needs_vllm
def test_an_aborted_request_is_no_sample():
    with warnings.catch_warnings(action="ignore"):  # those of vLLM are not ours
        from vllm.outputs import CompletionOutput, RequestOutput

    def output(reason):
        completion = CompletionOutput(0, "half", [5, 6], None, None, finish_reason=reason)
        return RequestOutput(
            reason or "running", "prompt", [1], None, [completion], reason is not None
        )

    finished, aborted = read_outputs(
        [output(reason) for reason in ("stop", "abort", None, "length", "error")]
    )
    assert [output.request_id for output in finished] == ["stop", "length"] and aborted
    assert read_outputs([output("stop"), output(None)])[1] is False
