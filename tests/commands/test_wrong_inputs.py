import re
import shlex

import pytest
import yaml

from tests.commands.test_cli import refused
from tests.make import EXAMPLE, GREEDY_RUN, RIGHT, TOY_DATA, TOY_MODEL, find_log, with_cases

NAMES = {
    "run": GREEDY_RUN,
    "log": find_log("wo"),
    "example": EXAMPLE,
    "model": TOY_MODEL,
    "data": TOY_DATA["path"],
}
QUOTED = {name: shlex.quote(str(path)) for name, path in NAMES.items()}
"""What the commands of the cases name."""


@pytest.fixture
def refuse(command, monkeypatch, tmp_path):
    """Runs a command in a folder of files, and checks its message and that it makes no file."""
    monkeypatch.chdir(tmp_path)

    def check(arguments, message, **files):
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text)
        before = sorted(tmp_path.iterdir())
        process = command(*shlex.split(arguments.format(**QUOTED)))
        for part in message:
            refused(process, part)
        assert process.stderr.replace("\n", "").isprintable()
        assert not re.search("me:secret|aaaa|s3cret", process.stderr)  # a secret is not repeated
        assert sorted(tmp_path.iterdir()) == before

    return check


@with_cases
def test_a_wrong_config_is_refused_with_file_key_and_value(refuse, change, message):
    config = change if isinstance(change, str) else yaml.safe_dump({**RIGHT, **change})
    refuse("run wrong.yaml --dry-run", ["wrong.yaml", *message], wrong_yaml=config)


@with_cases
def test_a_wrong_option_is_refused_by_a_dry_run(refuse, options, message):
    options = options.replace("{", "{{").replace("}", "}}")
    refuse(f"run right.yaml {options} --dry-run", message, right_yaml=yaml.safe_dump(RIGHT))


@with_cases
def test_a_wrong_data_file_is_refused_with_file_and_line(refuse, name, text, message):
    arguments = f"run --model {{model}} --dataset {name} --dry-run"
    name, *_ = name.split()
    refuse(arguments, [name, *message], **{name: text})


@with_cases
def test_a_wrong_command_is_refused(refuse, arguments, message):
    refuse(arguments, message, file="")
