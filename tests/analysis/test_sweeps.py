import json

import numpy as np
import pandas
import pytest

from benchmarks.sweep_calibration import EFFECTS, NONE, measure, simulate
from harness.analysis.outcomes import count_outcomes
from harness.analysis.sweeps import COLUMNS, group_lengths, sweep_table, trend
from harness.analysis.tests import paired_test


def test_p_is_twice_the_smaller_of_those_of_mean_and_slope():
    changes = simulate(EFFECTS["monotone, 0 to 4 points"], "coins", np.random.default_rng(1))
    ranks = np.array([-7, -5, -3, -1, 1, 3, 5, 7])
    singles = [
        paired_test(values, most, rng=np.random.default_rng(0))
        for values, most in ((changes.sum(axis=1), 8), (changes @ ranks, 32))
    ]
    assert trend(changes, 1) == 2 * min(singles) and singles[1] < singles[0]
    for turned in (-changes, changes[:, ::-1]):
        assert trend(turned, 1) == pytest.approx(trend(changes, 1))
    assert trend(np.zeros((20, 3)), 1) == 1.0, "nothing moved"


def test_in_simulation_it_errs_as_promised():
    assert measure(NONE, "coins", 150)[0] < 0.1 and measure(NONE, "skewed", 40, 100, 20)[0] < 0.15
    for name in ("2 points at all lengths", "monotone, 0 to 4 points", "harm of the longest, to -6 points"):
        found, singly = measure(EFFECTS[name], "coins", 100)
        assert found > singly, name


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
    assert list(table.columns) == list(COLUMNS) and len(table) == 1, "two lengths are no sweep"
    (row,) = table.to_dict("records")
    assert (row["filler"], row["placement"], row["lengths"], row["n"]) == ("/", "end", "10 25 40", 200)
    accuracy = frame.groupby("condition")["correct"].mean()
    assert row["difference"] == pytest.approx(100 * (accuracy[["s10", "s25", "s40"]].mean() - accuracy["wo"]))
    line = np.polyfit([0, 1, 2], 100 * accuracy[["s10", "s25", "s40"]].to_numpy(), 1)
    assert row["slope"] == pytest.approx(2 * line[0]) and row["slope_low"] < row["slope"] < row["slope_high"]
    assert row["best"] == 25 and row["p"] == row["p_adjusted"] < 0.05 and row["low"] < row["difference"] < row["high"]
    json.dumps(table.to_dict("records"))
    assert sweep_table([], factors, baseline="wo").empty
    assert sweep_table(count_outcomes(frame), factors, baseline="s40").empty, "the baseline is no length of its own"
