"""The documentation's numbers are those that the functions give, and its notebook runs."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest

from harness.config import load_config
from harness.parquet import COLUMNS
from harness.reference import read_reference

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("page", ["statistics", "reproduce"])
def test_the_python_of_a_page_prints_what_the_page_says(page):
    failed, tried = doctest.testfile(str(ROOT / f"docs/{page}.md"), module_relative=False)
    assert tried > 0 and failed == 0


def test_what_the_page_on_the_study_tells_to_run_can_be_run():
    text = (ROOT / "docs/reproduce.md").read_text()
    paths = set(re.findall(r"configs/\w+/[\w.-]+\.yaml", text))
    assert len(paths) == 9 and all((ROOT / path).is_file() for path in paths)
    for name in set(re.findall(r"--reference ([\w-]+)", text)):
        assert read_reference(name).accuracies
    blocks = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    commands = re.findall(r"^(?:\$run|mless run)(?:'[^']*'|[^'\n])*", blocks, re.MULTILINE)
    assert len(commands) == 4
    start = re.search(r'^run="(.*)"$', blocks, re.MULTILINE)[1]
    for command in commands:
        _, _, config, *rest = shlex.split(command.replace("$run", start))
        overrides = [word for word in rest if word != "--set"]
        assert len(load_config(ROOT / config, overrides).conditions) >= 3


def test_the_table_of_columns_is_that_of_the_file():
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.+) \|$", (ROOT / "docs/samples.md").read_text(), re.MULTILINE)
    assert {name: (kind, meaning) for name, kind, meaning in rows} == COLUMNS
