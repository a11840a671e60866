import re

import pytest
import yaml

from harness.errors import ConfigError, DataError
from harness.experiment.config import load_config
from harness.experiment.problems import DatasetConfig, load_jsonl, open_dataset
from tests.experiment.test_problems import GOOD, write_lines
from tests.make import TOY_MODEL

NAMED = {"label": "toy", "arguments": {"pretrained": TOY_MODEL}}
MINIMAL = {"name": "x", "model": NAMED, "conditions": ["wo", "mless"]}
CHAT_API = {"backend": "local-chat-completions", "arguments": {"model": "m", "base_url": "http://x"}}


def write(tmp_path, values):
    path = tmp_path / "run.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


CONFIGS = [
    ({"model": {"pretrained": TOY_MODEL}}, "unknown key 'model.pretrained'"),
    ({"conditions": ["mles"]}, "got 'mles'"),
    ({"conditions": ["wo", False]}, "got False"),
    ({"conditions": ["wo", "wo"]}, "got wo, wo"),
    ({"conditions": ["wo", {"name": "wo_chat", "unit": "?"}], "layouts": ["raw", "chat"]}, "got wo, wo_chat"),
    ({"layouts": ["as_published"], "instruction": "Hi"}, "instruction, prompt_null: the layout as_published"),
    ({"samples_per_problem": 5}, "samples_per_problem is 5, and the sampling is greedy"),
    ({"model": {"arguments": {}}}, "model.arguments: expected `pretrained`"),
    ({"primary": "mful - wo"}, "mless - wo, got 'mful - wo'"),
    ({"primary": "mless - wo", "conditions": ["mless"]}, "conditions: mless lack the baseline wo"),
    ({"contrasts": ["mless"]}, "got 'mless'"),
    ({"contrasts": ["mless - mful"]}, "contrasts: expected pairs of wo, mless, each once, got mless - mful"),
    ({"baseline": "mful"}, "conditions: wo, mless lack the baseline mful"),
    ({"prompt_null": 1, "layouts": ["as_published"]}, "the layout as_published"),
    ({"prompt_null": 1, "baseline": "mless"}, "prompt_null rewords wo: the baseline is mless"),
    ({"prompt_null": 1, "instruction": "Hi"}, "prompt_null rewords the standard instruction"),
    ({"filler_null": 3, "conditions": ["wo"]}, "filler_null: expected a filler with a count, got none"),
    ({"filler_null": 3, "conditions": ["wo", {"name": "x", "text": "a"}]}, "with a count, got x"),
    ({"positive_control": True, "model": CHAT_API}, "control begins the answer, which a chat API forbids"),
    (
        {"conditions": ["wo", {"name": "x", "unit": "/", "placement": "answer"}], "model": CHAT_API},
        "x begins the answer",
    ),
    ({"dataset": "product"}, "dataset: Input should be 'math500', got 'product'"),
    ({"dataset": {"make": "product"}}, "dataset.make: Input should be 'products', "),
    ({"dataset": {"make": "sums", "cuont": 5}}, "unknown key 'dataset.cuont'"),
    ({"dataset": {"make": "sums", "operands": [9, 2]}}, "the least number first, got 9 and 2"),
    ({"dataset": {"make": "quotients", "operands": [0, 2]}}, "dataset.operands.0: "),
    ({"dataset": {"make": "products", "count": 122}}, "count: 2 to 12 give 121 products, got 122"),
    ({"answer": "line", "layouts": ["as_published"]}, "the layout as_published has the authors' own"),
    ({"sweep": {"lenght": [1]}}, "unknown key 'lenght'"),
    ({"demonstrations": {"format": "{answer}, {problem}"}}, "expected {problem} before {answer}, each once"),
    ({"demonstrations": {"path": "x.jsonl", "draws": 2}}, "demonstrations.draws: the examples of a file are one draw"),
    ({"demonstrations": {}, "layouts": ["as_published"]}, "demonstrations: as_published has none"),
    ({"demonstrations": {"draws": 3}, "samples_per_problem": 4}, "samples_per_problem: expected a multiple of 3 draws"),
    ({"sweep": {"unit": ["/", "/"], "count": 5}}, "names must differ"),
    ({"sweep": {"count": [10]}}, "condition '10': count goes with unit, token_ids, sentence, text, got none"),
]
CONDITIONS = [
    ({}, "condition 'x' changes nothing: expected one of unit, token_ids, "),
    ({"units": "/"}, "condition 'x': unknown key 'units'"),
    ({"name": "mless", "unit": "?"}, "condition 'mless' has the name"),
    ({"name": "edit-01", "unit": "?"}, "condition 'edit-01' has the name"),
    ({"unit": "/", "text": "a"}, "expected one filler, got unit and text."),
    ({"unit": "/", "count": True}, "got True"),
    ({"unit": "/", "count": 10**9}, "got 1000000000"),
    ({"unit": "/", "fresh": True}, "fresh goes with random_ids, got unit."),
    ({"token_ids": [-1]}, "got -1"),
    ({"random_ids": 5, "count": 3}, "count goes with unit, token_ids, sentence, text, got random_ids."),
    ({"count_to": 5, "separator": ","}, "separator goes with unit, token_ids, got text."),
    ({"cue": "A:", "label": "F:"}, "label goes with unit, token_ids, "),
]


@pytest.mark.parametrize(
    ("change", "said"), [*CONFIGS, *(({"conditions": ["wo", {"name": "x", **one}]}, said) for one, said in CONDITIONS)]
)
def test_a_config_that_cannot_be_is_refused(tmp_path, change, said):
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        load_config(write(tmp_path, {**MINIMAL, **change}))
    assert "\n" not in str(caught.value)


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
    values = {**MINIMAL, "model": {"arguments": {"pretrained": TOY_MODEL, **secret}}}
    with pytest.raises(ConfigError, match=r"looks like a secret.* HF_TOKEN") as caught:
        load_config(write(tmp_path, values))
    assert not re.search("me:secret|aaaa|s3cret", str(caught.value))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [1", "is not valid YAML"),
        ("b: 1\na:\n  {b: 1, b: 2}", "the key 'b' stands twice in a mapping, again in line 3"),
        ("- 1", "Input should be a valid dictionary or instance of RunConfig, got [1]."),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path, text, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config(write(tmp_path, text))


def test_a_config_that_is_not_there_is_refused_and_no_shipped_one_taken(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "demo.yaml")
    with pytest.raises(ConfigError, match=rf"Config {tmp_path}: Is a directory. The shipped ones"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("nonsense", "unknown key 'nonsense'"),
        ("name.first=a", "--set 'name.first=a': the config has no such key"),
        ("sampling={seed: 1, seed: 2}", "--set sampling '{seed: 1, seed: 2}': the key 'seed' stands twice"),
    ],
)
def test_an_override_that_cannot_be_is_refused(tmp_path, override, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_config(write(tmp_path, MINIMAL), [override])


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([GOOD, {"problem": "2+2?", "unique_id": "b"}], "line 2 (problem, unique_id): answer: "),
        ([{**GOOD, "problem": ["x"]}], "problem: Input should be a valid string, got ['x']"),
        ([{**GOOD, "answer": " "}], "got ' '"),
        ([{**GOOD, "answer": float("nan")}], "got nan"),
        ([{**GOOD, "answer": True}], "got True"),
        ([GOOD, GOOD], "line 2: the id 'a' stands in an earlier line too"),
        ([GOOD, '{"problem": "x", "ans', "", " "], "line 2: expected a JSON object"),
        (["[1, 2]"], "line 1: expected a JSON object, got '[1, 2]'"),
        ([""], "no problems in it"),
        *(([{**GOOD, field: "\ud800"}], r"got '\ud800'") for field in ("unique_id", "problem", "answer", "solution")),
    ],
)
def test_a_broken_data_file_is_refused_by_line_and_field(tmp_path, lines, said):
    path = write_lines(tmp_path, *lines)
    with pytest.raises(DataError, match=re.escape(said)) as caught:
        load_jsonl(path)
    assert str(path) in str(caught.value) and str(caught.value).isascii()


def test_data_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    for path, said in (("no", "No such file"), ("", "Is a directory"), ("x.jsonl", "codec can't decode")):
        with pytest.raises(DataError, match=said):
            open_dataset(DatasetConfig(path=tmp_path / path))
    monkeypatch.delenv("MATH500_PATH")
    with pytest.raises(DataError, match=r"Or set MATH500_PATH=FILE\.jsonl\."):
        open_dataset("math500")
