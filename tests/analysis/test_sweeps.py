"""All lengths of a filler asked as one question, and the best of them measured on problems that did not choose it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy import stats

from benchmarks.sweep_calibration import EFFECTS, measure, simulate
from harness.analysis.intervals import difference_bounds, score_statistic
from harness.analysis.sample_counts import count_outcomes
from harness.analysis.sweeps import COLUMNS, best_arm, group_lengths, sweep_table, trend

ROOT = Path(__file__).resolve().parents[2]


def differences(effect, number):
    return simulate(effect, "coins", np.random.default_rng(number))[0]


def test_the_shape_is_the_likelier_one_and_p_is_that_of_the_larger_of_two():
    flat, peaked = differences([0.05] * 8, 1), differences([0, 0, 0.02, 0.06, 0.06, 0.02, 0, 0], 2)
    assert trend(flat)[0] == "plateau" and trend(peaked)[0] == "peak"
    weights = np.array([1, 2, 3, 4, 4, 3, 2, 1]) / 20
    both = [
        score_statistic(values, 0, bounds=difference_bounds(values, 1))
        for values in (peaked.mean(axis=1), peaked @ weights)
    ]
    single = 2 * stats.norm.sf(max(map(abs, both)))
    assert single < trend(peaked)[1] < 2 * single, "dearer than one test, cheaper than two"
    draws = np.random.default_rng(1).multivariate_normal(
        [0, 0], np.corrcoef(peaked.mean(axis=1), peaked @ weights), size=1_000_000
    )
    largest = np.abs(draws).max(axis=1)
    assert trend(peaked)[1] == pytest.approx((largest > max(map(abs, both))).mean(), rel=0.1)
    assert trend(-flat)[1] == pytest.approx(trend(flat)[1])
    assert trend(np.zeros((20, 3)))[1] == 1.0, "nothing moved"


def test_a_best_arm_is_measured_on_problems_that_did_not_choose_it():
    rng = np.random.default_rng(3)
    noise = rng.choice([-1, 0, 1], size=(400, 12))
    found = best_arm(noise, seed=1)
    assert found["naive"] == pytest.approx(noise.mean(axis=0).max()) and found["naive"] > 0.03
    assert abs(found["honest"]) < 0.75 * found["naive"] and found["honest_low"] < 0 < found["honest_high"]
    assert best_arm(noise, seed=1) == found != best_arm(noise, seed=2)
    sure = np.column_stack([noise[:, 0], np.ones(400)])
    assert best_arm(sure, seed=1)["honest"] == best_arm(sure, seed=1)["naive"] == 1.0


def test_in_simulation_it_errs_and_covers_as_promised():
    """A sample of benchmarks/SWEEPS.md."""
    wrong, _, covered, naive, honest, true = measure(EFFECTS["none"], "coins", 150)
    assert wrong < 0.1 and covered > 0.9 and naive > 0.01 > abs(honest - true)
    found, singly, *_ = measure(EFFECTS["2 points at all lengths"], "coins", 100)
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
    table = sweep_table(count_outcomes(frame), factors, baseline="wo", seed=1)
    assert list(table.columns) == list(COLUMNS) and len(table) == 1, "two lengths have no shape"
    (row,) = table.to_dict("records")
    assert (row["filler"], row["placement"], row["lengths"], row["n"]) == ("/", "end", "10 25 40", 200)
    accuracy = frame.groupby("condition")["correct"].mean()
    assert row["difference"] == pytest.approx(100 * (accuracy[["s10", "s25", "s40"]].mean() - accuracy["wo"]))
    assert row["best"] == 25 and row["naive"] == pytest.approx(100 * (accuracy["s25"] - accuracy["wo"]))
    assert (
        row["shape"] == "peak" and row["p"] == row["p_adjusted"] < 0.05 and row["low"] < row["difference"] < row["high"]
    )
    json.dumps(table.to_dict("records"))
    documented = (ROOT / "docs/tables.md").read_text().partition("`sweeps`, one row")[2].partition("\n`mediators`")[0]
    assert [name for name in COLUMNS if f"`{name}`" not in documented] == []
    assert sweep_table([], factors, baseline="wo", seed=1).empty
    assert sweep_table(count_outcomes(frame), factors, baseline="s40", seed=1).empty, (
        "the baseline is no length of its own"
    )
