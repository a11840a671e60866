"""Run configs: good ones load, bad ones are refused by key."""

from __future__ import annotations

import re

import pytest
import yaml

from attention_probe.figures.config import load_figure_config
from harness import resources
from harness.engines.vllm import fit_to_cpu
from harness.errors import ConfigError
from harness.experiment.conditions import Placement, contrast_name
from harness.experiment.config import load_config

MINIMAL = {"name": "x", "model": {"arguments": {"pretrained": "demo"}}, "conditions": ["wo", "mless"]}


def write(tmp_path, values):
    path = tmp_path / "run.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


def test_a_minimal_config_has_the_studys_defaults(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    assert (config.dataset, config.sampling, config.max_gen_toks) == ("math500", "greedy", 2048)
    assert [condition.name for condition in config.conditions] == ["wo", "mless"]
    assert config.model_arguments()["pretrained"] == str(resources.demo_model())


def test_inline_conditions(tmp_path):
    inline = {"name": "dots", "unit": ".", "count": 10, "separator": " ", "placement": "end"}
    (condition,) = load_config(write(tmp_path, {**MINIMAL, "conditions": [inline]})).conditions
    assert (condition.unit, condition.count) == (".", 10)
    assert condition.placement is Placement.END


def test_set_changes_nested_keys(tmp_path):
    path = write(tmp_path, MINIMAL)
    config = load_config(path, ["max_gen_toks=7", "model.arguments.dtype=float32", "conditions=[wo]"])
    assert config.max_gen_toks == 7
    assert config.model.arguments["dtype"] == "float32"
    assert len(config.conditions) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, r"unknown key 'colour'"),
        ({"model": {"pretrained": "demo"}}, r"unknown key 'model.pretrained'"),
        ({"sampling": {"max_tokens": 1}}, r"unknown key 'sampling.max_tokens'"),
        (
            {"dataset": {"path": "x", "question": "q"}},
            r"unknown key 'dataset.question'",
        ),
        (
            {"dataset": "gsm8k"},
            r"dataset: .*'demo'.* got 'gsm8k'",
        ),
        ({"conditions": ["mles"]}, r"Unknown condition 'mles': expected one of wo, mless"),
        ({"conditions": []}, r"conditions: .*at least 1"),
        ({"conditions": [{"name": "x", "unit": "/", "count": 0}]}, r"count: .* got 0"),
        ({"conditions": [{"name": "x", "unit": "/", "count": -3}]}, r"got -3"),
        ({"conditions": [{"name": "x", "units": "/"}]}, r"condition 'x': unknown key 'units'"),
        (
            {"conditions": [{"name": "x", "unit": "/", "placement": "middle"}]},
            r"condition 'x': placement: .*'before_system'",
        ),
        ({"conditions": ["wo", "wo"]}, r"condition names and layouts must differ.*got wo, wo"),
        ({"layouts": ["cat"]}, r"layouts.0: .*'raw', 'chat'"),
        ({"sampling": {"top_p": 0.5}}, r"sampling.temperature: Field required"),
        ({"sampling": "gredy"}, r"sampling: .*'greedy'.* got 'gredy'"),
        ({"samples_per_problem": 5}, r"samples_per_problem is 5, and the sampling is greedy: every repeat would be"),
        ({"samples_per_problem": 2, "sampling": {"temperature": 0}}, r"every repeat would be the same"),
        ({"model": {"arguments": {}}}, r"model.arguments needs `pretrained`"),
        ({"name": None}, r"name: .* got None"),
        ({"conditions": ["wo", False]}, r"expected a name or a mapping .* got False"),
        ({"conditions": [{"name": "x", "unit": "/", "count": True}]}, r"count: .* got True"),
        ({"conditions": [{"name": "mless", "unit": "?"}]}, r"'mless' is the study's own condition's"),
        ({"instruction": "Hi", "layouts": ["as_published"]}, r"instruction cannot be changed"),
        ({"conditions": [{"name": "edit-01", "unit": "?"}]}, r"the study's own condition's or a yardstick's"),
        (
            {"conditions": [{"name": "x", "sentences": 6}]},
            r"sentences: expected 1 to 5, .* got 6",
        ),
        ({"conditions": [{"name": "x", "sentence": 0}]}, r"sentence: .* got 0"),
        ({"conditions": [{"name": "x", "sentence": 1, "unit": "/"}]}, r"expected one filler, got unit and sentence"),
        ({"primary": "mful - wo"}, r"primary is one of the contrasts, which are mless - wo; got 'mful - wo'"),
        ({"primary": "mless"}, r"Expected a contrast of two conditions, such as 'mless - wo', got 'mless'"),
        (
            {"primary": "mless - wo", "conditions": ["mless"]},
            r"primary is one of the contrasts, which are none; got 'mless - wo'",
        ),
        ({"replicates": 2, "conditions": ["mless"]}, r"replicates needs the baseline wo, which is not among"),
        ({"contrasts": ["mless - mful"]}, r"contrasts: expected pairs of the conditions wo, mless, each once, got"),
        ({"contrasts": ["wo - wo"]}, r"contrasts: expected pairs of the conditions wo, mless, each once, got"),
        ({"contrasts": ["mless"]}, r"Expected a contrast of two conditions, such as 'mless - wo', got 'mless'"),
        (
            {"contrasts": ["mless - wo", "mless - wo"]},
            r"contrasts: .* each once, got 'mless - wo'",
        ),
        ({"contrasts": ["mless - wo", "wo - mless"]}, r"contrasts: .* each once, got 'mless - wo'"),
        ({"contrasts": ["mless - mful"], "conditions": ["mless", "mful"]}, r"contrasts needs the baseline wo"),
        ({"primary": "mless"}, r"run.yaml: primary: .*Expected a contrast of two conditions"),
        ({"contrasts": [], "primary": "mless - wo"}, r"primary is one of the contrasts, which are none; got 'mless"),
        ({"replicates": 3}, r"replicates: .* got 3"),
        ({"replicates": 0}, r"replicates: .* got 0"),
        ({"prompt_null": 25}, r"prompt_null: expected 0 to 24 edits .*got 25"),
        ({"prompt_null": 1, "conditions": ["mless"]}, r"prompt_null needs the baseline wo, which is not among"),
        ({"prompt_null": 1, "layouts": ["as_published"]}, r"prompt_null has edits of the standard instruction only"),
        (
            {"conditions": ["wo", {"name": "wo_chat", "unit": "?"}], "layouts": ["raw", "chat"]},
            r"condition names and layouts must differ.*got wo, wo_chat",
        ),
    ],
)
def test_bad_configs_are_refused_by_key(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, {**MINIMAL, **change}))
    assert "\n" not in str(caught.value)


def test_a_label_never_stands_above_other_weights(tmp_path):
    path = write(tmp_path, {**MINIMAL, "model": {"label": "Known", "arguments": {"pretrained": "a/known"}}})

    def label(*overrides):
        return load_config(path, overrides).model.display_name

    assert label() == label("max_gen_toks=9", "model.arguments.dtype=float32") == "Known"
    assert label("model.arguments.pretrained=b/other") == "other"
    assert label("model.arguments.revision=abc") == "known", "another revision has other weights"
    assert label("model.arguments={pretrained: b/other}") == "other"
    assert label("model={label: New, arguments: {pretrained: b/other}}") == "New"
    assert label("model.arguments.pretrained=b/other", "model.label=Known") == "Known", "said on purpose"
    assert label("model={label: Known, arguments: {pretrained: b/other}}") == "Known", "said on purpose"


@pytest.mark.parametrize(
    "secret",
    [
        {"hf_token": "x"},
        {"header": {"Authorization": "y"}},
        {"base_url": "https://me:secret@host/v1/completions"},
        {"tokenizer_mode": "hf_" + "a" * 34},
        {"openai_api_key": "s3cret"},
        {"header": [{"token": "s3cret"}]},
        {"base_url": "https://host/v1/completions?key=s3cret"},
    ],
)
def test_a_secret_is_refused_and_not_repeated(tmp_path, secret):
    values = {**MINIMAL, "model": {"arguments": {"pretrained": "demo", **secret}}}
    with pytest.raises(ConfigError, match=r"looks like a secret.* HF_TOKEN") as caught:
        load_config(write(tmp_path, values))
    assert not re.search("me:secret|aaaa|s3cret", str(caught.value))


def test_what_only_resembles_a_secret_is_taken(tmp_path):
    taken = {
        "api_key": "EMPTY",
        "download_dir": "/data/hf_converted_weights_of_the_final_model_2026",
        "served_model_name": "sk-8b-instruct",
        "tokenizer": "org/token-counter",
    }
    values = {**MINIMAL, "model": {"arguments": {"pretrained": "demo", **taken}}}
    assert load_config(write(tmp_path, values)).model.arguments == {"pretrained": "demo", **taken}


def test_load_only_arguments_may_change_and_random_weights_may_not(tmp_path):
    def identity(**arguments):
        values = {**MINIMAL, "model": {"arguments": {"pretrained": "demo", **arguments}}}
        return load_config(write(tmp_path, values)).identity()

    free = {"device_ids": [1], "download_dir": "d", "load_format": "safetensors", "distributed_executor_backend": "mp"}
    assert identity(**free) == identity()
    assert identity(load_format="dummy") != identity() != identity(tensor_parallel_size=2)


def test_what_is_written_loads_again(tmp_path):
    inline = {"name": "dots", "unit": ".", "count": 10, "placement": "end"}
    config = load_config(write(tmp_path, {**MINIMAL, "conditions": ["wo", "random", inline]}))
    assert load_config(write(tmp_path, config.as_written())) == config


def test_several_sentences_are_conditions_of_their_own(tmp_path):
    several = {"name": "unrelated", "sentences": 3, "count": 40}
    config = load_config(write(tmp_path, {**MINIMAL, "conditions": ["wo", several, "random"]}))
    names = [condition.name for condition in config.conditions]
    assert names == ["wo", "unrelated-1", "unrelated-2", "unrelated-3", "random"]
    texts = {condition.filler_text() for condition in config.conditions[1:4]}
    assert len(texts) == 3 and all(condition.count == 40 for condition in config.conditions[1:4])
    assert load_config(write(tmp_path, config.as_written())) == config
    assert load_config(write(tmp_path, {**MINIMAL, "conditions": ["wo", several, "random"]})) == config
    named = {**MINIMAL, "conditions": ["wo", several, "random"], "contrasts": ["unrelated - wo", "random - unrelated"]}
    tested = load_config(write(tmp_path, named))
    assert tested.contrasts == (
        *(f"unrelated-{number} - wo" for number in (1, 2, 3)),
        *(f"random - unrelated-{number}" for number in (1, 2, 3)),
    )
    assert load_config(write(tmp_path, tested.as_written())) == tested
    with pytest.raises(ConfigError, match=r"primary is one of the contrasts, which are unrelated-1 - wo, .*; got 'unr"):
        load_config(write(tmp_path, {**named, "primary": "unrelated - wo"}))
    other = load_config(write(tmp_path, {**MINIMAL, "conditions": ["wo", {**several, "seed": 5}]}))
    assert [c.sentence for c in other.conditions[1:4]] != [c.sentence for c in config.conditions[1:4]]


def test_the_identity_holds_what_can_change_a_sample(tmp_path):
    config = load_config(write(tmp_path, MINIMAL))
    identity = config.identity()
    for same in (
        {"name": "x"},
        {"output": "x"},
        {"audit": False},
        {"primary": "mless - wo", "contrasts": ["mless - wo"]},
    ):
        assert load_config(write(tmp_path, {**MINIMAL, **same})).identity() == identity
    for change in ({"replicates": 2}, {"prompt_null": 20}, {"seed": 7}):
        assert load_config(write(tmp_path, {**MINIMAL, **change})).identity() == {**identity, **change}


@pytest.mark.parametrize(
    ("change", "primary", "contrasts"),
    [
        ({}, "mless - wo", ["mless - wo", "mful - wo", "random - wo"]),
        ({"primary": "mful - wo", "replicates": 2}, "mful - wo", ["mless - wo", "mful - wo", "random - wo"]),
        ({"contrasts": ["mless - random", "mless - wo"]}, "mless - wo", ["mless - random", "mless - wo"]),
        ({"contrasts": ["mful - wo"]}, None, ["mful - wo"]),
        ({"contrasts": []}, None, []),
        ({"conditions": ["wo", "mful"]}, None, ["mful - wo"]),
        ({"conditions": ["mless"]}, None, ["mless - wo"]),
    ],
)
def test_the_contrasts_are_of_all_conditions_unless_named(tmp_path, change, primary, contrasts):
    values = {**MINIMAL, "conditions": ["wo", "mless", "mful", "random"], **change}
    config = load_config(write(tmp_path, values))
    assert [contrast_name(*pair) for pair in config.tested] == contrasts
    assert (config.primary_contrast and contrast_name(*config.primary_contrast)) == primary


def test_the_seed_reaches_the_engine(tmp_path):
    assert load_config(write(tmp_path, {**MINIMAL, "seed": 7})).model_arguments()["seed"] == 7


@pytest.mark.parametrize("given", [{}, {"max_num_batched_tokens": 512}])
def test_on_a_cpu_a_step_holds_a_prompt_as_long_as_the_context(given):
    arguments = {"max_model_len": 32768, **given}
    fit_to_cpu(arguments, sampled=True)
    assert arguments["max_num_batched_tokens"] == 32768 and arguments["enable_chunked_prefill"] is False


def test_a_wrong_folder_does_not_fall_back_to_a_shipped_config(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "demo.yaml")


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "no.yaml")
    with pytest.raises(ConfigError, match=rf"Config {tmp_path}: Is a directory. The shipped ones"):
        load_config(tmp_path)
    with pytest.raises(ConfigError, match="is not valid YAML"):
        load_config(write(tmp_path, "a: [1"))
    with pytest.raises(ConfigError, match=r"line 3: the key 'b' stands there a second time"):
        load_config(write(tmp_path, "b: 1\na:\n  {b: 1, b: 2}"))
    with pytest.raises(ConfigError, match="expected YAML with keys such as name and model"):
        load_config(write(tmp_path, "- 1"))


def test_a_key_that_stands_twice_in_an_override_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--set 'sampling=.*: the key 'seed' stands there a second time"):
        load_config(write(tmp_path, MINIMAL), ["sampling={seed: 1, seed: 2}"])


def test_the_example_that_a_bad_override_is_answered_with_works(tmp_path):
    path = write(tmp_path, MINIMAL)
    with pytest.raises(ConfigError, match=r"--set 'nonsense': expected key=value, such as --set \S+=\S+\.$") as caught:
        load_config(path, ["nonsense"])
    example = str(caught.value).rpartition("--set ")[2].removesuffix(".")
    assert load_config(path, [example]) != load_config(path)
    figure = resources.folder("configs") / "figures" / "flipped-demo.yaml"
    assert load_figure_config(figure, [example]) != load_figure_config(figure), "figures have overrides too"


def test_every_shipped_config_loads():
    paths = sorted((resources.folder("configs") / "runs").glob("*.yaml"))
    assert len(paths) == 16
    for path in paths:
        assert load_config(path).name == path.stem
