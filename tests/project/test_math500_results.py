"""The committed runs of MATH-500: their journals, counted here, give the numbers of the pages."""

import json
import re

import numpy as np
import pytest

from harness import grade
from harness.runs.stored_files import open_stored
from tests.make import ROOT

CONDITIONS = ("wo", "mless", "mful", "random")


def read_scores(layout):
    """Gold first, log share and log-probability of each gold answer: [value, condition, problem].

    They are counted from the journal alone.
    """
    values = {}
    with open_stored(ROOT / "results/math500-smollm2-logprob/journal.jsonl") as file:
        for line in file:
            sample = json.loads(line)
            if "answer_score" in sample:
                score = sample["answer_score"]
                total = sum(logprob for logprob, _ in score["tokens"])
                share = total - np.logaddexp.reduce([total, *score["others"]])
                key = sample["task"], sample["problem_id"]
                values[key] = 100 * (total > max(score["others"])), share, total
    suffix = "_chat" if layout == "chat" else ""
    tasks = [f"math500_{condition}{suffix}" for condition in CONDITIONS]
    problems = sorted({problem for _, problem in values})
    assert len(problems) == 200
    table = [[values[task, problem] for problem in problems] for task in tasks]
    return np.moveaxis(np.array(table), 2, 0)


@pytest.mark.parametrize("layout", ["raw", "chat"])
def test_the_pages_have_the_scores_of_the_journal(layout):
    values = read_scores(layout)
    page = (ROOT / "results/README.md").read_text()
    reproduced = (ROOT / "docs/reproduce.md").read_text()
    rows = {}
    for title, text in (
        (rf"{layout}, gold first", page),
        (rf"{layout}, log share", page),
        (rf"{layout}, log-probability", page),
        (rf"its gold answers that come first, {layout}", reproduced),
    ):
        (cells,) = re.findall(rf"^\| {title} \|(.+)\|$", text, re.MULTILINE)
        rows[title] = [re.findall(r"[+-]?\d+\.\d+", cell) for cell in cells.split("|")]
    *pages, (_, percentages) = rows.items()
    means = values.mean(axis=2)
    assert [float(cell[0]) for cell in percentages] == pytest.approx(means[0], abs=0.05)
    for (_, cells), condition_means, digits in zip(pages, means, (1, 2, 2), strict=True):
        expected = [condition_means[0], *(condition_means[1:] - condition_means[0])]
        numbers = [float(cell[0]) for cell in cells]
        assert numbers == pytest.approx(expected, abs=0.5001 * 10**-digits)
    # the interval inverts a sign-flip test, which is close to Student's here
    changes = values[1, 1:] - values[1, 0]
    errors = changes.std(axis=1, ddof=1) / np.sqrt(200)
    for cell, change, error in zip(pages[1][1][1:], changes.mean(axis=1), errors, strict=True):
        expected = [change - 1.972 * error, change + 1.972 * error]
        assert [float(number) for number in cell[1:]] == pytest.approx(expected, abs=0.03)


def test_two_completions_of_the_committed_run_have_an_answer_and_none_is_right():
    rows = json.loads((ROOT / "results/math500-smollm2/table.json").read_text())["rows"]
    assert len(rows) == 10 and all(row["accuracy"] == 0 for row in rows)
    with open_stored(ROOT / "results/math500-smollm2/journal.jsonl") as file:
        samples = [json.loads(line) for line in file]
    samples = [sample for sample in samples if "completion" in sample]
    assert len(samples) == 4000
    boxed = [sample for sample in samples if re.search(r"\\boxed\{.+\}", sample["completion"])]
    golds = {"test/algebra/1082.json": "23", "test/algebra/1553.json": "3"}
    assert {sample["problem_id"] for sample in boxed} == golds.keys() and len(boxed) == 2
    for sample in boxed:
        assert grade(sample["completion"], golds[sample["problem_id"]]).verdict == "incorrect"
