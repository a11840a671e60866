import json

import numpy as np
import pandas
import pytest
from scipy import stats

from benchmarks.sweep_calibration import EFFECTS, measure, simulate
from harness.analysis.outcomes import count_outcomes
from harness.analysis.sweeps import COLUMNS, group_lengths, sweep_table, trend
from harness.analysis.tests import score_statistic


def differences(effect, number):
    return simulate(effect, "coins", np.random.default_rng(number))


def test_the_shape_is_the_likelier_one_and_p_is_that_of_the_larger_of_two():
    flat, peaked = differences([0.05] * 8, 1), differences([0, 0, 0.02, 0.06, 0.06, 0.02, 0, 0], 2)
    assert trend(flat)[0] == "plateau" and trend(peaked)[0] == "peak"
    weights = np.array([1, 2, 3, 4, 4, 3, 2, 1]) / 20
    both = [score_statistic(values, 0) for values in (peaked.mean(axis=1), peaked @ weights)]
    single = 2 * stats.norm.sf(max(map(abs, both)))
    assert single < trend(peaked)[1] < 2 * single, "dearer than one test, cheaper than two"
    draws = np.random.default_rng(1).multivariate_normal(
        [0, 0], np.corrcoef(peaked.mean(axis=1), peaked @ weights), size=1_000_000
    )
    largest = np.abs(draws).max(axis=1)
    assert trend(peaked)[1] == pytest.approx((largest > max(map(abs, both))).mean(), rel=0.1)
    assert trend(-flat)[1] == pytest.approx(trend(flat)[1])
    assert trend(np.zeros((20, 3)))[1] == 1.0, "nothing moved"


def test_in_simulation_it_errs_as_promised():
    wrong, _ = measure(EFFECTS["none"], "coins", 150)
    assert wrong < 0.1
    found, singly = measure(EFFECTS["2 points at all lengths"], "coins", 100)
    assert found > singly


def test_the_table_has_a_row_for_each_filler_and_place():
    factors = {
        "wo": {"filler": None, "filler_tokens": 0, "placement": None, "words": ""},
        "own": {"filler": "own text", "filler_tokens": None, "placement": "between", "words": ""},
        **{f"s{n}": {"filler": "/", "filler_tokens": n, "placement": "end", "words": ""} for n in (40, 10, 25)},
        **{f"h{n}": {"filler": "he", "filler_tokens": n, "placement": "end", "words": ""} for n in (10, 25)},
    }
    assert list(group_lengths(factors)[("/", "end", "")].items()) == [(0, "wo"), (10, "s10"), (25, "s25"), (40, "s40")]
    rng = np.random.default_rng(1)
    frame = pandas.DataFrame(
        {
            "model": "m",
            "layout": "raw",
            "condition": condition,
            "problem_id": str(problem),
            "sample_index": 0,
            "correct": rng.random() < (0.9 if condition == "s25" else 0.5),
        }
        for condition in factors
        for problem in range(200)
    )
    table = sweep_table(count_outcomes(frame), factors, baseline="wo")
    assert list(table.columns) == list(COLUMNS) and len(table) == 1, "two lengths have no shape"
    (row,) = table.to_dict("records")
    assert (row["filler"], row["placement"], row["lengths"], row["n"]) == ("/", "end", "10 25 40", 200)
    accuracy = frame.groupby("condition")["correct"].mean()
    assert row["difference"] == pytest.approx(100 * (accuracy[["s10", "s25", "s40"]].mean() - accuracy["wo"]))
    assert row["best"] == 25
    assert (
        row["shape"] == "peak" and row["p"] == row["p_adjusted"] < 0.05 and row["low"] < row["difference"] < row["high"]
    )
    json.dumps(table.to_dict("records"))
    assert sweep_table([], factors, baseline="wo").empty
    assert sweep_table(count_outcomes(frame), factors, baseline="s40").empty, "the baseline is no length of its own"
