import shlex

import pytest
import yaml

from tests.commands.test_cli import refused
from tests.experiment.test_refusals import MINIMAL
from tests.make import GREEDY_RUN, TOY_DATA, TOY_MODEL, with_cases

MODEL = {"model_args": {"pretrained": TOY_MODEL, "dtype": "float32"}}
RIGHT = {**MINIMAL, "model": MODEL, "dataset": TOY_DATA, "layouts": ["raw"], "max_gen_toks": 9}


@pytest.fixture
def refuse(command, monkeypatch, tmp_path):
    """Runs a command in a folder of files, and checks its message and that it makes no file."""
    monkeypatch.chdir(tmp_path)

    def check(arguments, message, **files):
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        before = sorted(tmp_path.iterdir())
        process = command(*shlex.split(arguments))
        for part in message:
            refused(process, part)
        assert sorted(tmp_path.iterdir()) == before

    return check


@with_cases
def test_a_wrong_config_is_refused_with_file_key_and_value(refuse, change, message):
    config = yaml.safe_dump({**RIGHT, **change})
    refuse("run wrong.yaml --dry-run", ["wrong.yaml: ", *message], wrong_yaml=config)


@with_cases
def test_a_wrong_option_is_refused_by_a_dry_run(refuse, options, message):
    refuse(f"run right.yaml {options} --dry-run", message, right_yaml=yaml.safe_dump(RIGHT))


@with_cases
def test_a_wrong_data_file_is_refused_with_file_and_line(refuse, line, message):
    arguments = f"run --model {shlex.quote(TOY_MODEL)} --dataset data.jsonl --dry-run"
    refuse(arguments, ["data.jsonl, ", *message], data_jsonl=line)


@with_cases
def test_a_wrong_command_is_refused(refuse, arguments, message):
    tab = "name: x\n\tmodel: y\n"
    refuse(arguments.format(run=shlex.quote(str(GREEDY_RUN))), message, tab_yaml=tab)
