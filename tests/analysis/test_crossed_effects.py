import json

import numpy as np
import pytest

from benchmarks.sweep_calibration import EFFECTS, NONE, measure, simulate
from harness.analysis import estimate_difference
from harness.analysis.count_correct import count_outcomes, group_by_setting
from harness.analysis.crossed_effects import (
    crossed_error,
    estimate_over_draws,
    pool_changes,
)
from harness.analysis.sweeps import SWEEP_COLUMNS, estimate_trend, sweep_table
from harness.experiment.expand_conditions import read_conditions
from tests.make import evaluation


def test_the_pooled_difference_is_the_mean_of_models_and_the_test_is_over_problems():
    rng = np.random.default_rng(1)
    single, triple = rng.integers(-1, 2, 120), rng.integers(-3, 4, 120)
    row = pool_changes([(single, 1), (triple, 3)])
    assert row["difference"] == pytest.approx(100 * (single.mean() + triple.mean() / 3) / 2)
    expected = estimate_difference(3 * single + triple, 6)
    assert row["p"] == expected.p
    assert [row["low"], row["high"]] == pytest.approx([100 * end for end in expected.interval()])
    assert row["problems"] == 120
    assert "new_low" not in row, "two models say nothing of new models"
    assert pool_changes([(single, 1)])["p"] == estimate_difference(single, 1).p


def test_the_error_for_new_models_is_that_of_crossed_random_effects():
    """Without variance between problems and no residual it is Student's interval over models."""
    of_models = np.array([[0.01], [0.03], [0.05], [0.02]])
    error = of_models.std(ddof=1) / 2
    assert crossed_error(np.repeat(of_models, 50, axis=1)) == pytest.approx((error, 3))
    of_problems = np.random.default_rng(2).normal(size=(1, 80))
    error = of_problems.std(ddof=1) / np.sqrt(80)
    assert crossed_error(np.repeat(of_problems, 5, axis=0)) == pytest.approx((error, 79))
    assert crossed_error(np.zeros((4, 30))) == (0, 1)


@pytest.mark.parametrize("ratio", [0.6, 0.69, 0.71, 1.5])
def test_prompts_limit_the_degrees_of_freedom_if_their_variance_is_not_small(ratio):
    """Satterthwaite's formula alone would give more."""
    rng = np.random.default_rng(3)
    prompts, problems, noise = rng.normal(size=5), rng.normal(size=12), rng.normal(size=(5, 12))
    noise -= noise.mean(axis=1, keepdims=True) + noise.mean(axis=0) - noise.mean()
    # the variances of the means over prompts and over problems have this ratio
    prompts *= np.sqrt(ratio * problems.var(ddof=1) / 12 / (prompts.var(ddof=1) / 5))
    _, freedom = crossed_error(prompts[:, None] + problems + 0.1 * noise)
    assert freedom == 4 if ratio > 0.7 else freedom > 5


def test_the_variance_components_are_those_of_the_textbook_also_where_cells_are_missing():
    """Henderson's Method I, written out for the components of one table."""
    rng = np.random.default_rng(4)
    effects = rng.normal(size=(6, 1)) + rng.normal(size=20) + rng.normal(size=(6, 20))
    rows, columns = effects.mean(axis=1), effects.mean(axis=0)
    residuals = effects - rows[:, None] - columns + effects.mean()
    variance = rows.var(ddof=1) / 6 + columns.var(ddof=1) / 20
    variance -= (residuals**2).sum() / (5 * 19) / 120
    assert crossed_error(effects)[0] == pytest.approx(np.sqrt(variance))
    variances, means = [], []
    is_missing = (np.arange(20) + np.arange(6)[:, None]) % 6 >= 3
    for _ in range(2000):
        effects = 0.5 * rng.normal(size=(6, 1)) + 0.5 * rng.normal(size=20)
        effects = np.where(is_missing, np.nan, effects + rng.normal(size=(6, 20)))
        means.append(np.nanmean(effects))
        variances.append(crossed_error(effects)[0] ** 2)
    assert np.mean(variances) == pytest.approx(np.var(means), rel=0.15)


@pytest.mark.parametrize("draws_per_problem", [8, 3])
def test_if_draws_shift_the_effect_the_test_over_new_draws_errs_5_times_in_100(draws_per_problem):
    rng, experiments, draws, problems = np.random.default_rng(3), 400, 8, 60
    is_asked = (np.arange(problems) + np.arange(draws)[:, None]) % draws < draws_per_problem
    errors = errors_of_fixed_draws = 0
    for _ in range(experiments):
        gains = 0.5 + 0.15 * rng.normal(size=(draws, 1)) + 0.1 * rng.normal(size=problems)
        signs = np.where(rng.random(is_asked.shape) < gains, 1, -1)
        changes = signs * (rng.random(is_asked.shape) < 0.6) * is_asked
        estimate = estimate_over_draws(changes, is_asked.astype(int), np.arange(problems))
        low, high = estimate.interval()
        assert (low > 0 or high < 0) == (estimate.p < 0.05)
        errors += estimate.p < 0.05
        errors_of_fixed_draws += estimate.fixed.p < 0.05
    assert errors / experiments < 0.07 < errors_of_fixed_draws / experiments


def test_no_interval_for_new_models_is_shorter_than_that_for_these():
    row = pool_changes([(np.zeros(300, dtype=int), 1)] * 4)
    assert (row["new_low"], row["new_high"]) == (row["low"], row["high"]) and row["new_high"] > 0.5
    assert row["new_p"] == row["p"] == 1
    row = pool_changes([(np.repeat([-1, 0], [3, 297]), 1)] * 4)
    assert row["new_low"] <= row["low"] < row["high"] <= row["new_high"]
    assert row["new_p"] >= row["p"]


def test_a_sweep_is_tested_by_its_mean_and_by_its_longest_minus_its_shortest_length():
    changes = simulate(EFFECTS["monotone, 0 to 4 points"], "coins", np.random.default_rng(1)).T
    clusters = np.arange(changes.shape[1])
    samples = np.ones((1, len(clusters)), dtype=int)
    mean, extremes = estimate_trend(changes[:, None], samples, clusters)
    expected = estimate_difference(changes.sum(axis=0), 8)
    assert (mean.difference, mean.p) == (pytest.approx(changes.mean()), expected.p)
    expected = estimate_difference(changes[-1] - changes[0], 1)
    assert (extremes.difference, extremes.p) == (pytest.approx(expected.difference), expected.p)
    unchanged = estimate_trend(0 * changes[:, None], samples, clusters)
    assert [estimate.p for estimate in unchanged] == [1, 1]


def test_in_simulations_a_sweep_errs_rarely():
    """benchmarks/sweep_calibration.py compares its power with that of single lengths."""
    assert measure(NONE, "coins", 150)[0] < 0.1 and measure(NONE, "skewed", 40, 100, 20)[0] < 0.15


SLASHES = [{"name": f"s{n}", "unit": "/", "count": n, "placement": "random"} for n in (40, 10, 25)]
WORDS = [{"name": f"h{n}", "unit": "he", "count": n, "placement": "random"} for n in (10, 25)]
TEXTS = [{"name": f"t{n}", "sentence": n // 10, "count": n} for n in (10, 25, 40)]


@pytest.fixture
def lengths():
    """Conditions of several lengths."""
    single = {"name": "own", "text": "a b"}
    return read_conditions({"conditions": ["wo", single, *SLASHES, *WORDS, *TEXTS]})


def test_the_table_has_a_row_for_each_filler_and_placement(lengths):
    rng = np.random.default_rng(1)
    verdicts = {
        name: np.where(rng.random((200, 1)) < 0.5 + 0.4 * (name == "s25"), "correct", "incorrect")
        for name in lengths
    }
    frame = evaluation(verdicts).samples
    by_setting = group_by_setting(count_outcomes(frame))
    table = sweep_table(by_setting, lengths, baseline="wo")
    assert list(table.columns) == list(SWEEP_COLUMNS)
    (row,) = table.to_dict("records")  # two lengths are no sweep
    names = ("filler", "placement", "lengths", "problems")
    assert [row[name] for name in names] == ["/", "random", "10 25 40", 200]
    accuracy = 100 * frame.groupby("condition")["correct"].mean()
    mean = accuracy[["s10", "s25", "s40"]].mean()
    assert row["difference"] == pytest.approx(mean - accuracy["wo"])
    assert row["low"] < row["difference"] < row["high"] and row["p"] == row["p_adjusted"] < 0.05
    extremes = row["longest_less_shortest"]
    assert extremes == pytest.approx(accuracy["s40"] - accuracy["s10"])
    assert row["longest_low"] < extremes < row["longest_high"]
    json.dumps(row)
    assert sweep_table({}, lengths, baseline="wo").empty
    assert sweep_table(by_setting, lengths, baseline="s40").empty, "a length itself"
