import re

import pytest
import yaml

from harness.errors import ConfigError, DataError
from harness.experiment.problems import DatasetConfig, load_jsonl, open_dataset
from harness.experiment.run_config import load_config
from tests.experiment.test_problems import GOOD, write_lines
from tests.make import TOY_MODEL, with_cases

NAMED = {"label": "toy", "model_args": {"pretrained": TOY_MODEL}}
MINIMAL = {"name": "x", "model": NAMED, "conditions": ["wo", "mless"]}


def write(tmp_path, values):
    path = tmp_path / "run.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values))
    return path


def check_refusal(path, message, **changes):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        load_config(write(path, MINIMAL | changes))
    assert "\n" not in str(error.value)


@with_cases
def test_a_faulty_config_is_refused(tmp_path, change, message):
    check_refusal(tmp_path, message, **change)


@with_cases
def test_a_faulty_condition_is_refused(tmp_path, change, message):
    check_refusal(tmp_path, message, conditions=["wo", {"name": "x", **change}])


@with_cases
def test_a_secret_is_refused_and_not_repeated(tmp_path, secret):
    values = {**MINIMAL, "model": {"model_args": {"pretrained": TOY_MODEL, **secret}}}
    with pytest.raises(ConfigError, match=r"looks like a secret.* HF_TOKEN") as error:
        load_config(write(tmp_path, values))
    assert not re.search("me:secret|aaaa|s3cret", str(error.value))


@with_cases
def test_a_file_that_is_no_config_is_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(write(tmp_path, text))


def test_an_absent_config_is_refused_and_not_replaced_by_a_shipped_config(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "demo.yaml")
    with pytest.raises(ConfigError, match=rf"Config {tmp_path}: Is a directory. Shipped in"):
        load_config(tmp_path)


@with_cases
def test_a_faulty_override_is_refused(tmp_path, override, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(write(tmp_path, MINIMAL), [override])


@with_cases
def test_a_faulty_data_file_is_refused_with_line_and_field(tmp_path, lines, message):
    lines = [GOOD | line if isinstance(line, dict) else line for line in lines]
    path = write_lines(tmp_path, *lines)
    with pytest.raises(DataError, match=re.escape(message)) as error:
        load_jsonl(path)
    assert str(path) in str(error.value)
    assert str(error.value).isascii()


def test_unreadable_data_are_refused(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    for name, message in (
        ("no", "No such file"),
        ("", "Is a directory"),
        ("x.jsonl", "codec can't decode"),
    ):
        with pytest.raises(DataError, match=message):
            open_dataset(DatasetConfig(path=tmp_path / name))
    monkeypatch.delenv("MATH500_PATH")
    with pytest.raises(DataError, match=r"Or set MATH500_PATH=FILE\.jsonl, with the keys problem"):
        open_dataset("math500")
