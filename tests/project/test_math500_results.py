"""The committed runs of MATH-500: their journals, counted here, give the numbers of the pages."""

import json
import re

import numpy as np
import pytest

from harness.grading import grade
from harness.runs.stored_files import open_stored
from tests.make import ROOT

CONDITIONS = ("wo", "mless", "mful", "random")


def count_logprobs(layout):
    """The log-probability of each gold answer [condition, problem], from the journal alone."""
    values = {}
    with open_stored(ROOT / "results/math500-smollm2-logprob/journal.jsonl") as file:
        for line in file:
            sample = json.loads(line)
            if "answer_score" in sample:
                tokens = sample["answer_score"]["tokens"]
                key = sample["task"], sample["problem_id"]
                values[key] = sum(logprob for logprob, _ in tokens)
    suffix = "_chat" if layout == "chat" else ""
    tasks = [f"math500_{condition}{suffix}" for condition in CONDITIONS]
    problems = sorted({problem for _, problem in values})
    assert len(problems) == 500
    return np.array([[values[task, problem] for problem in problems] for task in tasks])


@pytest.mark.parametrize("layout", ["raw", "chat"])
def test_the_pages_have_the_log_probabilities_of_the_journal(layout):
    values = count_logprobs(layout)
    means = [f"{mean:.1f}" for mean in values.mean(axis=1)]
    for page, row in (
        ("README.md", rf"SmolLM2, {layout}, nats"),
        ("docs/reproduce.md", rf"its log-probability, {layout} \(nats\)"),
    ):
        (cells,) = re.findall(rf"^\| {row} \|(.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert [cell.strip(" *") for cell in cells.split("|")[:4]] == means
    changes = values[1:] - values[0]
    errors = changes.std(axis=1, ddof=1) / np.sqrt(500)
    (cells,) = re.findall(
        rf"^\| {layout} \|(.+)\|$", (ROOT / "results/README.md").read_text(), re.MULTILINE
    )
    for cell, change, error in zip(cells.split("|"), changes.mean(axis=1), errors, strict=True):
        numbers = [float(number) for number in re.findall(r"[+-]\d\.\d\d", cell)]
        assert numbers[0] == pytest.approx(change, abs=0.005)
        # the interval inverts a sign-flip test, which is close to Student's here
        expected = [change - 1.965 * error, change + 1.965 * error]
        assert numbers[1:] == pytest.approx(expected, abs=0.01)


def test_two_completions_of_the_committed_run_have_an_answer_and_none_is_right():
    rows = json.loads((ROOT / "results/math500-smollm2/table.json").read_text())["rows"]
    assert len(rows) == 10 and all(row["accuracy"] == 0 for row in rows)
    assert "| SmolLM2, raw and chat | 0.0 | 0.0 | 0.0 | 0.0 |" in (ROOT / "README.md").read_text()
    with open_stored(ROOT / "results/math500-smollm2/journal.jsonl") as file:
        samples = [json.loads(line) for line in file]
    samples = [sample for sample in samples if "completion" in sample]
    assert len(samples) == 4000
    boxed = [sample for sample in samples if re.search(r"\\boxed\{.+\}", sample["completion"])]
    golds = {"test/algebra/1082.json": "23", "test/algebra/1553.json": "3"}
    assert {sample["problem_id"] for sample in boxed} == golds.keys() and len(boxed) == 2
    for sample in boxed:
        assert grade(sample["completion"], golds[sample["problem_id"]]).verdict == "incorrect"
