"""The numbers of the main table again, from the raw journal.

Only the p-value and its interval are the package's: test_statistics compares them with definitions.
"""

import json
import random

import pandas
import pytest

from harness.analysis import estimate_difference
from tests.make import GREEDY_RUN, REGISTERED, table_page, write_run


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_correct(folder):
    """The samples with whether they are correct, and the first line of the journal."""
    header, *records = read_lines(folder / "journal.jsonl")
    verdicts = {score["key"]: score["verdict"] for score in read_lines(folder / "scores.jsonl")[1:]}
    samples = pandas.DataFrame([record for record in records if "task" in record])
    samples["correct"] = samples["key"].map(verdicts) == "correct"
    samples["condition"] = samples["task"].str.removeprefix("demo_")
    return samples, header


def compare_counts(old, new, k):
    """What the table says of two conditions, from the number of correct samples by problem."""
    estimate = estimate_difference(new - old, k)
    low, high = estimate.interval()
    return {
        "difference": 100 * (new - old).mean() / k,
        "wrong_to_right": ((k - old) * new).sum() / k**2,
        "right_to_wrong": (old * (k - new)).sum() / k**2,
        "p": estimate.p,
        "low": 100 * low,
        "high": 100 * high,
    }


def adjust(p_values, primary):
    """Holm's method for all contrasts but the primary; none is below the primary contrast's p."""
    adjusted = {primary: p_values[primary]}
    least = p_values[primary]
    names = sorted(p_values.keys() - {primary}, key=p_values.get)
    for index, name in enumerate(names):
        least = max(least, min(1, (len(names) - index) * p_values[name]))
        adjusted[name] = least
    return adjusted


@pytest.fixture(params=[1, 5])
def folder(request, tmp_path):
    """A greedy run of the toy model, and one of five samples a problem, right by chance."""
    if request.param == 1:
        return GREEDY_RUN
    rng = random.Random(3)

    def answer(_, target):
        return f"\\boxed{{{target if rng.random() < 0.8 else -1234}}}", "stop"

    conditions = ["wo", "mless", "mful", "random"]
    sampling = {"repeats": 5, "gen_kwargs": {"temperature": 0.5}, "replicates": 2, **REGISTERED}
    return write_run(tmp_path / "run", answer, limit=200, conditions=conditions, **sampling)


def test_the_table_follows_from_the_raw_files(folder):
    samples, header = read_correct(folder)
    table = json.loads(table_page(folder, form="json"))
    rows = {row["condition"]: row for row in table["rows"]}
    k = samples["sample_index"].max() + 1
    first = samples[samples["replicate"] == 0]
    correct = first.groupby(["condition", "problem_id"])["correct"].sum()
    contrasts = {}
    for new, base in header["contrasts"]:
        name = new if base == "wo" else f"{new} - {base}"
        contrasts[name] = compare_counts(correct[base], correct[new], k)
    p_values = {name: numbers["p"] for name, numbers in contrasts.items()}
    adjusted = adjust(p_values, header["primary"][0])
    for name, numbers in contrasts.items():
        expected = {**numbers, "p_adjusted": adjusted[name]}
        row = {key: rows[name][key] for key in expected}
        assert row == pytest.approx(expected, rel=1e-7, abs=1e-7)
    for name, row in rows.items():
        shares = 100 * correct[name.partition(" - ")[0]] / k
        assert (row["problems"], row["repeats"]) == (len(shares), k)
        expected = shares.mean(), shares.sem()
        assert (row["accuracy"], row["standard_error"]) == pytest.approx(expected)
