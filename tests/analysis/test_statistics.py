import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.analysis import (
    detection_power,
    estimate_difference,
    holm,
    minimal_detectable_effect,
    paired_tests,
    score_interval,
)
from harness.analysis.paired_tests import average_clusters, count_needed_problems, sign_flip_test
from harness.analysis.score_interval import t_interval
from harness.errors import ComparisonError
from tests.make import with_cases

small_differences = st.lists(st.integers(-5, 5), min_size=1, max_size=9)


def paired(gained, lost, alike):
    return np.repeat([1, -1, 0], [gained, lost, alike])


# tests of a paired difference


@given(st.integers(0, 300), st.integers(0, 300))
def test_for_single_samples_the_sign_flip_test_is_mcnemars_test(gained, lost):
    p = sign_flip_test(paired(gained, lost, 3))
    assert p == sign_flip_test(paired(lost, gained, 0))
    if gained + lost:
        assert p == pytest.approx(stats.binomtest(gained, gained + lost).pvalue, rel=1e-9)


@with_cases
def test_sign_flips_give_fishers_p_value(differences):
    assert sign_flip_test(differences) == pytest.approx(1726 / 2**15)


@given(small_differences)
def test_sign_flips_are_all_sign_patterns(differences):
    patterns = np.array(list(itertools.product([1, -1], repeat=len(differences))))
    by_hand = np.mean(abs(patterns @ differences) >= abs(sum(differences)))
    assert sign_flip_test(differences) == pytest.approx(by_hand)
    assert sign_flip_test(np.negative(differences)) == pytest.approx(by_hand)
    assert sign_flip_test(3 * np.array(differences)) == pytest.approx(by_hand)


@with_cases
def test_random_sign_flips_approach_the_exact_ones_and_never_reach_zero(monkeypatch, differences):
    monkeypatch.setattr(paired_tests, "MOST_SAMPLES_FOR_EXACT_P", 0)
    error = math.sqrt(0.05 * 0.95 / 10_000)
    assert sign_flip_test(differences) == pytest.approx(1726 / 2**15, abs=4 * error)
    assert sign_flip_test([5] * 60) == 1 / 10_001


# a second opinion


def test_statsmodels_has_the_same_interval_over_clusters():
    pytest.importorskip("statsmodels", reason="`make .venv` installs statsmodels")
    from statsmodels.regression.linear_model import OLS

    rng = np.random.default_rng(7)
    clusters = np.sort(rng.integers(0, 300, size=1500))
    clusters = np.unique(clusters, return_inverse=True)[1]
    changes = rng.integers(-1, 2, size=1500) + rng.integers(-1, 3, size=300)[clusters]
    fit = OLS(changes, np.ones(1500)).fit(
        cov_type="cluster", cov_kwds={"groups": clusters}, use_t=True
    )
    ((low, high),) = fit.conf_int()
    assert t_interval(*average_clusters(changes, clusters)) == pytest.approx((low, high))
    estimate = estimate_difference(changes, 3, clusters=clusters)
    assert 3 * estimate.difference == pytest.approx(fit.params[0])
    ends = 3 * np.array(estimate.interval())
    assert ends == pytest.approx([low, high], abs=0.05 * (high - low))


# intervals

clustered_changes = st.lists(
    st.tuples(st.integers(-5, 5), st.integers(0, 20)), min_size=1, max_size=60
)


@given(clustered_changes, st.sampled_from([0.9, 0.95]))
def test_zero_is_outside_the_interval_exactly_if_p_is_below_alpha(pairs, level):
    changes, labels = zip(*pairs, strict=True)
    clusters = np.unique(labels, return_inverse=True)[1]
    estimate = estimate_difference(changes, 5, clusters=clusters)
    low, high = estimate.interval(level)
    assert (low > 0 or high < 0) == (estimate.p < 1 - level)
    assert -1 <= low <= estimate.difference <= high <= 1
    assert estimate.difference == pytest.approx(np.mean(changes) / 5)
    mirrored = estimate_difference(np.negative(changes), 5, clusters=clusters)
    assert mirrored.interval(level) == (-high, -low) and mirrored.p == estimate.p


@given(st.lists(st.integers(-5, 5), min_size=8, max_size=11), st.sampled_from([0.8, 0.9]))
def test_the_interval_ends_where_the_test_of_shifted_differences_begins_to_reject(changes, level):
    estimate = estimate_difference(changes, 5)
    if 2.0 ** (1 - np.count_nonzero(changes)) >= 1 - level:
        return
    patterns = np.array(list(itertools.product([1, -1], repeat=len(changes))))

    def p_value(mean):
        shifted = np.array(changes) - 5 * mean
        return np.mean(abs(patterns @ shifted) >= abs(shifted.sum()) - 1e-9)

    low, high = estimate.interval(level)
    slack = 0.02  # of 10,000 random patterns
    for end, outside in ((low, low - 1e-6), (high, high + 1e-6)):
        assert p_value(end) >= 1 - level - slack
        assert p_value(outside) <= 1 - level + slack or abs(end) == 1


def test_the_interval_of_many_problems_is_that_of_the_normal_distribution():
    changes = np.random.default_rng(5).integers(-3, 5, size=2000)
    reach = 1.96 * stats.sem(changes)
    expected = (changes.mean() + np.array([-reach, reach])) / 5
    assert estimate_difference(changes, 5).interval() == pytest.approx(expected, abs=0.01 * reach)


def test_with_few_changes_the_interval_holds_effects_that_so_many_problems_may_miss():
    low, high = estimate_difference(np.zeros(500, dtype=int), 1).interval()
    assert high == -low == pytest.approx(1 - 0.025 ** (1 / 500))
    intervals = [
        estimate_difference(paired(gained, 0, 200 - gained), 1).interval() for gained in range(21)
    ]
    steps = np.diff(intervals, axis=0)
    assert (-1e-9 < steps[:, 0]).all() and (steps[:, 0] < 0.02).all()
    assert (-0.007 < steps[:, 1]).all() and (steps[:, 1] < 0.02).all()


@given(st.integers(0, 200), st.integers(0, 200))
def test_for_right_and_wrong_the_score_interval_is_wilsons(right, wrong):
    if right + wrong:
        wilson = stats.binomtest(right, right + wrong).proportion_ci(method="wilson")
        interval = score_interval(np.repeat([1, 0], [right, wrong]))
        assert interval == pytest.approx((wilson.low, wilson.high), abs=1e-9)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_score_intervals_of_averages_mirror_and_stay_in_range(right):
    shares = np.array(right) / 5
    low, high = score_interval(shares)
    assert 0 <= low <= shares.mean() <= high <= 1 and low < high
    assert score_interval(1 - shares) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_equivalence_needs_enough_problems_to_see_a_rare_effect_of_the_size_of_the_margin():
    assert [*map(count_needed_problems, (0.005, 0.01, 0.02, 0.05))] == [598, 299, 149, 59]
    for n in (298, 299):
        low, high = estimate_difference(np.zeros(n, dtype=int), 1).interval(0.9)
        assert (-0.01 < low and high < 0.01) == (n == 299)  # as the interval says


def outcome_chance(gained, lost, n, *, discordance, effect):
    """The chance of these numbers of gains and losses among n problems."""
    chances = [(discordance + effect) / 2, (discordance - effect) / 2, 1 - discordance]
    return stats.multinomial.pmf([gained, lost, n - gained - lost], n, chances)


@with_cases
def test_intervals_of_few_changes_cover_and_rarely_call_the_margin_equivalent(
    discordance, effect, level
):
    """Over every number of gains and losses of 300 problems."""
    n, margin = 300, 0.01
    covered = equivalent = 0.0
    for gained, lost in itertools.product(range(21), range(8)):
        chance = outcome_chance(gained, lost, n, discordance=discordance, effect=effect)
        if chance > 1e-4:
            changes = paired(gained, lost, n - gained - lost)
            low, high = estimate_difference(changes, 1).interval(level)
            covered += chance * (low <= effect <= high)
            equivalent += chance * (-margin < low and high < margin)
    assert covered > level - 0.015
    assert effect < margin or equivalent < 0.05


# many tests


def test_many_small_losses_against_few_whole_gains_err_in_six_of_a_hundred_runs():
    """The mean is 0 and skewed: 1 problem of 100 gains all samples, the others lose a little."""
    rng = np.random.default_rng(8)
    errors, runs = 0, 1000
    for _ in range(runs):
        new = rng.binomial(20, 0.9 - 0.01 / 0.99, size=200)
        changes = new - rng.binomial(20, 0.9, size=200)
        changes[rng.random(200) < 0.01] = 20
        errors += sign_flip_test(changes) < 0.05
    assert 0.05 < errors / runs < 0.08


@with_cases
def test_holm_adjusts_textbook_examples_in_any_order(p_values, adjusted):
    assert holm(p_values) == pytest.approx(adjusted, nan_ok=True)


# power


def test_power_of_single_samples_is_near_the_sum_over_all_outcomes():
    n, discordance, effect = 100, 0.3, 0.15
    exact = 0
    for gained in range(1, n + 1):
        for lost in range(min(gained, n - gained) + 1):
            if stats.binomtest(gained, gained + lost).pvalue < 0.05:
                exact += outcome_chance(gained, lost, n, discordance=discordance, effect=effect)
    power = detection_power(effect, problem_count=n, discordance=discordance)
    assert power == pytest.approx(exact, abs=0.03)
    assert power == detection_power(-effect, problem_count=n, discordance=discordance)


def test_power_over_new_prompts_is_that_of_the_t_test_where_there_are_problems_enough():
    plan = {"problem_count": 1_000_000, "discordance": 0.1}
    power = detection_power(0.02, **plan, prompts=8, spread=0.02)
    exact = stats.nct.sf(stats.t.ppf(0.975, 7), 7, 0.02 * math.sqrt(8) / 0.02)
    assert power == pytest.approx(exact, abs=0.03)


def test_new_prompts_do_not_remove_the_noise_of_the_problems_that_all_of_them_share():
    least = minimal_detectable_effect(problem_count=500, discordance=0.1)
    among_prompts = minimal_detectable_effect(
        problem_count=500, discordance=0.1, prompts=1000, spread=0.02
    )
    assert least * 0.9 < among_prompts


@with_cases
def test_the_least_effect_has_its_power_and_shrinks_with_problems_and_samples(
    repeats, shrinks, grows
):
    facts = {"problem_count": 500, "repeats": repeats, "discordance": 0.1}
    least = minimal_detectable_effect(**facts)
    assert detection_power(least, **facts) == pytest.approx(0.8, abs=0.01)
    for change in shrinks:
        assert minimal_detectable_effect(**facts | change) < least
    for change in grows:
        assert minimal_detectable_effect(**facts | change) > least
    assert math.isnan(
        minimal_detectable_effect(problem_count=20, repeats=repeats, discordance=0.02)
    )


@with_cases
def test_power_refuses_numbers_out_of_range(values, message):
    with pytest.raises(ComparisonError, match=message):
        detection_power(0.02, problem_count=9, **values)
