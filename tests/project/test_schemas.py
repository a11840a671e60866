"""The JSON schemas of configs accept what mless accepts, and refuse faults that they can see."""

import json
import re

import pytest
import yaml
from jsonschema import Draft202012Validator

from attention_probe.figures.figure_config import load_figure_config
from harness import load_config
from harness.errors import ConfigError
from harness.yaml_settings import read_values
from tests.make import ROOT, with_cases

CONFIGS = sorted([*ROOT.glob("configs/*/*.yaml"), *ROOT.glob("tests/data/papers/*.yaml")])


def find_faults(kind, values):
    """The messages of the schema about the values of a config."""
    schema = json.loads((ROOT / f"configs/{kind}.schema.json").read_text())
    return [fault.message for fault in Draft202012Validator(schema).iter_errors(values)]


@pytest.mark.parametrize("path", CONFIGS)
def test_a_committed_config_fits_its_schema(path):
    kind = "figure" if path.parent.name == "figures" else "run"
    text = path.read_text()
    assert find_faults(kind, yaml.safe_load(text)) == []
    header = re.search(r"^# yaml-language-server: \$schema=(.*)$", text, re.MULTILINE)
    assert header is None or header[1] == f"../{kind}.schema.json"


@with_cases
def test_a_fault_is_found_by_the_schema_and_by_mless(config, key, value):
    kind, name, load = "run", "products.yaml", load_config
    if config == "figure":
        kind, name, load = "figure", "qwen-heads-12-13-14.yaml", load_figure_config
    path = ROOT / f"configs/{kind}s" / name
    assert find_faults(kind, read_values(path, f"{kind}s", {key: value}))
    with pytest.raises(ConfigError):
        load(path, {key: value})


@with_cases
def test_every_form_of_a_value_fits(key, value):
    path = ROOT / "configs/runs/products.yaml"
    changes = {"contrasts": None, "primary": None, "repeats": 1, key: value}
    assert find_faults("run", read_values(path, "runs", changes)) == []
    load_config(path, changes)
