"""Configs of published experiments: each is planned with the columns that its header names."""

import re

import pytest

from harness import load_config
from harness.errors import DataError
from harness.experiment.plan import make_plan
from tests.make import ROOT, TOY_MODEL, one_line, with_cases, write_records

COMMITTED = sorted((ROOT / "configs/papers").glob("*.yaml"))
OTHERS = sorted((ROOT / "tests/data/papers").glob("*.yaml"))


def read_columns(path):
    """The columns that the header of a config names."""
    return re.search(r"Columns: (.*)\.$", path.read_text(), re.MULTILINE)[1].split(", ")


def plan_paper(path, rows, first_row=()):
    """The plan of a paper's config with three made rows, in a file that this writes."""
    config = load_config(path)
    changes = {"model.model_args.pretrained": TOY_MODEL, "max_gen_toks": 8}
    if config.dataset != "math500":
        changes["dataset.path"] = rows
    if config.fewshot:
        changes["fewshot.num_fewshot"] = 1
    if getattr(config.dataset, "url", None):
        with pytest.raises(DataError) as error:
            make_plan(load_config(path, changes))
        assert str(config.dataset.url) in str(error.value)
        assert {*read_columns(path)} <= {*re.findall(r"\w+", str(error.value))}
    records = [
        {column: f"{column} {number}" for column in read_columns(path)} for number in range(3)
    ]
    for number, record in enumerate(records):
        answers = {column: number for column in record if re.match("answer|output|final", column)}
        record |= answers | ({"choices": [*"abcd"]} if "choices" in record else {})
    records[0] |= dict(first_row)
    write_records(rows, records)
    return make_plan(load_config(path, changes), limit=3)


@pytest.mark.parametrize("path", [*COMMITTED, *OTHERS])
def test_a_paper_is_planned_with_the_columns_of_its_header(tmp_path, path):
    plan = plan_paper(path, tmp_path / "rows.jsonl")
    requests = {
        task.condition.name: (task.prompts[0].text, task.condition.intervention)
        for task in plan.tasks.values()
    }
    assert len({*requests.values()}) == len(plan.config.conditions) > 1


def test_a_committed_config_is_short_and_shipped_and_its_header_is_complete(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "configs/papers/README.md").read_text()
    assert len(COMMITTED) == 12 and len(COMMITTED + OTHERS) >= 18
    for path in COMMITTED:
        assert load_config(f"configs/papers/{path.name}") == load_config(path)
        header, config = path.read_text().split("\nname: ")
        titles = re.findall(r"^# (\w+): ", header, re.MULTILINE)
        titles = [title for title in titles if title != "Columns"]
        assert titles == "Claim Model Data Measure Source Differs".split(), path.name
        assert re.search("Differs: (reduced|same but model)", header), path.name
        assert len(config.splitlines()) <= 15 and f"({path.name})" in page, path.name


@with_cases
def test_our_prompt_of_a_printed_item_is_that_of_the_paper(tmp_path, paper, row, prompts):
    (path,) = [path for path in COMMITTED + OTHERS if path.stem.startswith(paper)]
    plan = plan_paper(path, tmp_path / "rows.jsonl", row)
    for condition, printed in prompts.items():
        texts = [
            one_line(prompt.text)
            for task in plan.tasks.values()
            if task.condition.name == condition
            for prompt in task.prompts
        ]
        # our fillers have blanks and line breaks on both sides
        assert any(one_line(printed) in text for text in texts), texts
