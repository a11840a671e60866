import numpy as np
import pytest

from harness.analysis.crossed_effects import (
    estimate_over_draws,
    measure_crossed_error,
)
from tests.make import with_cases


def test_the_error_for_new_prompts_is_that_of_crossed_random_effects():
    """Without variance between problems and no residual it is Student's interval over prompts."""
    of_prompts = np.array([[0.01], [0.03], [0.05], [0.02]])
    error = of_prompts.std(ddof=1) / 2
    assert measure_crossed_error(np.repeat(of_prompts, 50, axis=1)) == pytest.approx((error, 3))
    of_problems = np.random.default_rng(2).normal(size=(1, 80))
    error = of_problems.std(ddof=1) / np.sqrt(80)
    assert measure_crossed_error(np.repeat(of_problems, 5, axis=0)) == pytest.approx((error, 79))
    assert measure_crossed_error(np.zeros((4, 30))) == (0, 1)


@with_cases
def test_prompts_limit_the_degrees_of_freedom_if_their_variance_is_not_small(ratio):
    """Satterthwaite's formula alone would give more."""
    rng = np.random.default_rng(3)
    prompts, problems, noise = rng.normal(size=5), rng.normal(size=12), rng.normal(size=(5, 12))
    noise -= noise.mean(axis=1, keepdims=True) + noise.mean(axis=0) - noise.mean()
    # the variances of the means over prompts and over problems have this ratio
    prompts *= np.sqrt(ratio * problems.var(ddof=1) / 12 / (prompts.var(ddof=1) / 5))
    _, freedom = measure_crossed_error(prompts[:, None] + problems + 0.1 * noise)
    assert freedom == 4 if ratio > 0.7 else freedom > 5


def test_the_variance_components_are_those_of_the_textbook_also_where_cells_are_missing():
    """Henderson's Method I, written out for the components of one table."""
    rng = np.random.default_rng(4)
    effects = rng.normal(size=(6, 1)) + rng.normal(size=20) + rng.normal(size=(6, 20))
    rows, columns = effects.mean(axis=1), effects.mean(axis=0)
    residuals = effects - rows[:, None] - columns + effects.mean()
    variance = rows.var(ddof=1) / 6 + columns.var(ddof=1) / 20
    variance -= (residuals**2).sum() / (5 * 19) / 120
    assert measure_crossed_error(effects)[0] == pytest.approx(np.sqrt(variance))
    variances, means = [], []
    is_missing = (np.arange(20) + np.arange(6)[:, None]) % 6 >= 3
    for _ in range(2000):
        effects = 0.5 * rng.normal(size=(6, 1)) + 0.5 * rng.normal(size=20)
        effects = np.where(is_missing, np.nan, effects + rng.normal(size=(6, 20)))
        means.append(np.nanmean(effects))
        variances.append(measure_crossed_error(effects)[0] ** 2)
    assert np.mean(variances) == pytest.approx(np.var(means), rel=0.15)


@with_cases
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
        errors_of_fixed_draws += estimate.paired_difference.p < 0.05
    assert errors / experiments < 0.07 < errors_of_fixed_draws / experiments


@with_cases
def test_no_interval_for_new_prompts_is_shorter_than_that_for_these(losses):
    changes = np.tile(np.repeat([-1, 0], [losses, 300 - losses]), (4, 1))
    new = estimate_over_draws(changes, np.ones_like(changes), np.arange(300))
    (low, high), (new_low, new_high) = new.paired_difference.interval(), new.interval()
    assert new.difference == -losses / 300 and new.p >= new.paired_difference.p
    assert new_low <= low < high <= new_high
    if not losses:
        assert (new_low, new_high, new.p) == (low, high, 1) and high > 0.005
