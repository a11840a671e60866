import warnings

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness import RunConfig, load_config
from harness.engines.completions import sampling_parameters
from harness.engines.engine_options import engine_arguments, fit_to_cpu
from harness.errors import ModelError
from harness.experiment.conditions import contrast_name
from harness.experiment.generation_settings import ExplicitSampling, sample_seed
from harness.experiment.model_settings import ModelConfig
from harness.experiment.run_config import config_of_model
from harness.yaml_settings import parse_overrides
from tests.conftest import needs_vllm
from tests.engines.test_backends import request
from tests.make import MINIMAL, TOY_MODEL, with_cases


@pytest.fixture
def load(tmp_path):
    """A function that writes the minimal config with changes and loads it with overrides."""

    def write_and_load(*overrides, **changes):
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(MINIMAL | changes))
        return load_config(str(path), parse_overrides(overrides))

    return write_and_load


@pytest.fixture
def load_arguments(load):
    """The same for the arguments of the model."""

    def load_model(**arguments):
        return load(model={"model_args": {"pretrained": TOY_MODEL, **arguments}})

    return load_model


def test_a_minimal_config_has_the_defaults_of_the_study(load):
    config = load("seed=7", "model.model_args.dtype=float32")
    arguments = {"pretrained": TOY_MODEL, "dtype": "float32", "seed": 7}
    assert config.model_arguments() | arguments == config.model_arguments()
    assert (config.dataset, config.gen_kwargs, config.max_gen_toks) == ("math500", "greedy", 2048)
    assert [condition.name for condition in config.conditions] == ["wo", "mless"]


def test_if_a_line_is_read_no_instruction_requests_a_box(load):
    assert "answer" not in load().identity()  # the identity leaves out the default, `box`
    config = load("answer=line")
    assert (config.instruction, config.identity()["answer"]) == ("Answer the question.", "line")
    assert load("answer=line", "instruction=Hi").instruction == "Hi"
    assert load("answer=line", "until=[Q]").resolve_sampling(None).stop == ("Q", "\n")


@with_cases
def test_a_label_is_used_only_for_its_weights(load, override, name):
    model = {"label": "Known", "model_args": {"pretrained": "a/known"}}
    assert load(override, model=model).model.display_name == name
    # a label that is set on purpose is used for any weights
    assert load(override, "model.label=Known", model=model).model.display_name == "Known"


def test_arguments_that_only_resemble_a_secret_are_accepted(load_arguments):
    arguments = {
        "api_key": "EMPTY",
        "download_dir": "/data/hf_converted_weights_of_the_final_model_2026",
        "served_model_name": "sk-8b-instruct",
        "tokenizer": "org/token-counter",
    }
    loaded = load_arguments(**arguments).model.model_args
    assert loaded == {"pretrained": TOY_MODEL, **arguments}


@with_cases
def test_the_identity_has_the_arguments_that_can_change_a_sample(
    load_arguments, arguments, is_contained
):
    is_changed = load_arguments(**arguments).identity() != load_arguments().identity()
    assert is_changed == is_contained


@with_cases
def test_the_identity_contains_what_can_change_a_sample(load, change, is_contained):
    added = change if is_contained else {}
    assert load(**change).identity() == load().identity() | added


@with_cases
def test_the_contrasts_are_of_all_conditions_unless_they_are_named(
    load, change, contrasts, primary
):
    config = load(**{"conditions": "wo mless mful random".split(), **change})
    assert [contrast_name(*pair) for pair in config.tested] == contrasts
    pair = config.primary_contrast
    assert (pair and contrast_name(*pair)) == primary


CONTRASTED = {
    "conditions": ["wo", "mless", "random"],
    "contrasts": ["mless - wo", "mless - random"],
    "primary": "mless - random",
}


@with_cases
def test_contrasts_of_a_file_with_conditions_that_are_not_requested_are_dropped(
    load, conditions, contrasts, primary
):
    config = load(f"conditions=[{conditions}]", **CONTRASTED)
    assert (config.contrasts and [*config.contrasts], config.primary) == (contrasts, primary)


def test_a_condition_of_the_file_is_requested_by_its_name(load):
    config = load(
        "conditions=[wo, mine]", conditions=["wo", "mless", {"name": "mine", "unit": "x"}]
    )
    assert [condition.describe()["filler"] for condition in config.conditions] == [None, "x"]


@with_cases
def test_on_a_cpu_a_step_holds_a_prompt_as_long_as_the_context(limits):
    arguments = fit_to_cpu({"max_model_len": 32768, **limits}, has_sampled_requests=True)
    assert arguments["max_num_batched_tokens"] == 32768
    assert arguments["enable_chunked_prefill"] is False


def resolve(choice, generation_config=None):
    config = RunConfig(**MINIMAL, gen_kwargs=choice, max_gen_toks=9, until=["x"])
    return config.resolve_sampling(generation_config)


@with_cases
def test_sampling_follows_from_the_choice_and_the_values_of_the_model(
    choice, model, greedy, values
):
    sampling = resolve(choice, model)
    assert sampling.is_greedy == greedy
    assert sampling.vllm_arguments() | values == sampling.vllm_arguments()


def test_model_default_refuses_settings_that_vllm_does_not_have():
    unsupported = {"num_beams": 4, "suppress_tokens": [1], "typical_p": 1.0}
    with pytest.raises(ModelError, match="sets num_beams, suppress_tokens, unknown to vLLM"):
        resolve("model_default", {"do_sample": True, "top_p": 0.9, **unsupported})


@given(st.integers(0, 2**40), st.text(max_size=20), st.integers(0, 1000), st.integers(0, 5))
def test_a_seed_is_valid_for_every_generator_and_reproducible(run_seed, problem, index, replicate):
    seed = sample_seed(run_seed, problem, index, replicate)
    assert 0 <= seed < 2**31
    assert seed == sample_seed(run_seed, problem, index, replicate)


@needs_vllm
def test_vllm_receives_the_seed_and_the_parameters_of_a_sample():
    choice = ExplicitSampling(temperature=0.5, top_p=0.95, top_k=20, min_p=0.1)
    expected = resolve(choice).vllm_arguments() | {"seed": 7}
    with warnings.catch_warnings(action="ignore"):  # those of vLLM are not ours
        parameters = sampling_parameters(request("p", sampling=resolve(choice), seed=7))
    assert {name: getattr(parameters, name) for name in expected} == expected


@with_cases
def test_a_number_type_has_one_name(name, dtype):
    assert ModelConfig(model_args={"dtype": name}).model_args["dtype"] == dtype
    assert engine_arguments({"pretrained": "m", "dtype": name})["dtype"] == dtype


def test_a_folder_of_results_is_named_after_the_model_also_where_its_path_is_a_dot(
    tmp_path, monkeypatch
):
    (tmp_path / "Qwen" / "lora").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "Qwen" / "lora")
    names = [config_of_model(model).name for model in ("org/Q7", "..", "./", "../lora")]
    assert names == "Q7 Qwen lora lora".split()
    options = {"dataset": {"path": "p.jsonl"}}
    assert config_of_model("org/Q7").name == config_of_model("org/Q7", dataset="math500").name
    assert config_of_model("org/Q7", options, dataset="p.jsonl").name == "Q7-p"
