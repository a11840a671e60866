import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.analysis import (
    clustered_error,
    detection_power,
    difference_bounds,
    equivalence_p,
    holm,
    minimal_detectable_effect,
    paired_test,
    score_interval,
)
from harness.analysis.power import difference_chances
from harness.analysis.tests import (
    count_flips,
    fewest_problems,
    hold_zero,
    mcnemar_test,
    score_statistic,
    sign_flip_test,
)
from harness.errors import ComparisonError

BOTH_WAYS = (-1.0, 1.0)
DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""Cross- less self-fertilised maize, eighths of an inch; Fisher (1935), section 21, flips all their signs."""

small_differences = st.lists(st.integers(-5, 5), min_size=1, max_size=9)
flips = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(0, 400)).filter(lambda cells: sum(cells) > 0)


def rng(seed=0):
    return np.random.default_rng(seed)


def paired(gained, lost, alike):
    return np.repeat([1, -1, 0], [gained, lost, alike])


# accuracy


def test_the_error_of_a_mean_is_over_problems_however_often_each_is_asked():
    assert clustered_error([1, 1, 1, 0, 0]) == pytest.approx(math.sqrt(0.3 / 5))
    assert clustered_error([1, 0.5, 0]) == pytest.approx(stats.sem([1, 0.5, 0]))
    assert math.isnan(clustered_error([1]))


# tests of a paired difference


def test_mcnemar_gives_published_p_values():
    assert mcnemar_test(1, 7) == pytest.approx(0.0703, abs=5e-5)  # Fagerland et al. (2013), airway hyper-responsiveness
    assert mcnemar_test(12, 2) == pytest.approx(0.0129, abs=5e-5)  # Armitage and Berry (1994), sputum cultures
    assert mcnemar_test(0, 0) == 1


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_the_binomial_test_and_the_sign_flip_test_of_single_samples(gained, lost):
    p = mcnemar_test(gained, lost)
    if gained + lost:
        assert p == pytest.approx(stats.binomtest(gained, gained + lost).pvalue, rel=1e-9)
    assert p == mcnemar_test(lost, gained)
    assert sign_flip_test(paired(gained, lost, 3), rng=rng()) == pytest.approx(p, rel=1e-9)


def test_sign_flips_give_fishers_p_value():
    assert sign_flip_test(DARWIN, rng=rng()) == pytest.approx(1726 / 2**15)


@given(small_differences)
def test_sign_flips_are_all_sign_patterns(differences):
    patterns = np.array(list(itertools.product([1, -1], repeat=len(differences))))
    by_hand = np.mean(abs(patterns @ differences) >= abs(sum(differences)))
    assert sign_flip_test(differences, rng=rng()) == pytest.approx(by_hand)
    assert sign_flip_test(np.negative(differences), rng=rng()) == pytest.approx(by_hand)
    assert sign_flip_test(3 * np.array(differences), rng=rng()) == pytest.approx(by_hand)


def test_random_sign_flips_approach_the_exact_ones_and_never_reach_zero():
    drawn = sign_flip_test(DARWIN, rng=rng(), draws=200_000, exact_up_to=0)
    assert drawn == pytest.approx(1726 / 2**15, abs=4 * math.sqrt(0.05 * 0.95 / 200_000))
    assert sign_flip_test([5] * 60, rng=rng(), draws=999, exact_up_to=0) == 1 / 1000


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6))
def test_flips_are_the_mean_over_pairs_of_samples(counts):
    before, after = np.array(counts).T
    gained, lost = count_flips(before, after, k=3)
    pairs = [(old, new) for b, a in counts for old in [1] * b + [0] * (3 - b) for new in [1] * a + [0] * (3 - a)]
    assert gained == pytest.approx(sum(new > old for old, new in pairs) / 9)
    assert lost == pytest.approx(sum(new < old for old, new in pairs) / 9)
    assert gained - lost == pytest.approx((after - before).sum() / 3)


# intervals


def test_tangos_interval_gives_published_limits():
    found = score_interval(paired(1, 7, 13), bounds=BOTH_WAYS)  # Fagerland et al. (2014), airway hyper-responsiveness
    assert found == pytest.approx((-0.517, -0.026), abs=5e-4)
    found = score_interval(paired(28, 25, 565), bounds=BOTH_WAYS, level=0.9)  # R's PropCIs::scoreci.mp(25, 28, 618)
    assert found == pytest.approx((-0.0148, 0.0247), abs=5e-5)


@given(flips)
def test_for_single_samples_the_score_interval_is_tangos(cells):
    gained, lost, _ = cells
    n, change, g = sum(cells), gained - lost, stats.norm.ppf(0.975) ** 2
    quartic = [  # Yang, Sun and Hardin (2013), doi:10.1002/sim.5561: the limits are its outer real roots
        n**2 * (n / g + 1) ** 2,
        -n * change * (n / g + 1) * (4 * n / g + 1),
        2 * n * change**2 * (3 * n / g + 2) / g - n**2 * ((gained + lost) / g + 1),
        n * change * (2 * (gained + lost) / g + 1) - change**3 * (4 * n / g + 1) / g,
        change**2 * (change**2 / g - gained - lost) / g,
    ]
    roots = np.roots(quartic)
    real = roots[abs(roots.imag) < 1e-4].real
    found = score_interval(paired(*cells), bounds=BOTH_WAYS)
    assert found == pytest.approx((real.min(), real.max()), abs=2e-6)


@given(st.integers(0, 200), st.integers(0, 200))
def test_for_right_and_wrong_the_score_interval_is_wilsons(right, wrong):
    if right + wrong:
        theirs = stats.binomtest(right, right + wrong).proportion_ci(method="wilson")
        found = score_interval(np.repeat([1, 0], [right, wrong]), bounds=(0, 1))
        assert found == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=40), st.sampled_from([0.9, 0.95]))
def test_the_score_interval_holds_what_its_test_keeps_and_mirrors(changes, level):
    means, bounds = np.array(changes) / 5, difference_bounds(changes, 5)
    low, high = score_interval(means, bounds=bounds, level=level)
    mirrored = score_interval(-means, bounds=bounds, level=level)
    assert mirrored == pytest.approx((-high, -low), abs=1e-9)
    assert bounds[0] <= low <= means.mean() <= high <= bounds[1]
    critical = stats.norm.ppf((1 + level) / 2)
    for end in {low, high} - set(bounds):
        assert abs(score_statistic(means, end, bounds=bounds)) == pytest.approx(critical, rel=1e-3)


def test_bounds_go_from_a_whole_problem_to_the_greatest_change_seen():
    assert difference_bounds([0, 0], 5) == difference_bounds([1, 0, -1], 1) == BOTH_WAYS
    assert difference_bounds([1, -2, 1, 0], 5)[1] == pytest.approx(0.4 + 0.6 * 8 / 27)
    assert difference_bounds([1, -2] * 50, 5) == pytest.approx((-0.4, 0.4))


def test_no_single_problem_makes_the_interval_jump_or_contradict_its_test():
    """Of 200 problems, 0 to 20 gain one sample of five: ends move by little, and leave 0 out where p is below 0.05."""
    before = None
    for gained in range(21):
        changes = np.repeat([1, 0], [gained, 200 - gained])
        low, high = score_interval(changes / 5)
        assert before is None or (0 < low - before[0] < 0.009 and abs(high - before[1]) < 0.009)
        assert (low > 0) == (paired_test(changes, 5, rng=rng()) < 0.05) == (gained > 5)
        before = low, high


@pytest.mark.parametrize(
    ("difference", "passed", "ends"),
    [(0.2, True, (0.1, 0.3)), (0.2, False, (0, 0.3)), (-0.2, False, (-0.3, 0)), (-0.2, True, (-0.3, -0.1))],
)
def test_an_interval_holds_0_exactly_where_its_test_was_not_passed(difference, passed, ends):
    sign = math.copysign(1, difference)
    assert hold_zero(tuple(sorted((sign * 0.1, sign * 0.3))), difference, passed=passed) == pytest.approx(ends)
    wide = hold_zero((-0.1, 0.1), difference, passed=True)
    assert wide == pytest.approx((0, 0.1) if difference > 0 else (-0.1, 0)) and 0 not in wide, "beside it"


def test_many_small_losses_against_few_whole_gains_are_no_effect():
    """Mean 0, and skewed: 1 problem of 100 gains wholly, the others lose a little. Sign flips alone err too often."""
    draw = np.random.default_rng(8)
    alone, both, experiments = 0, 0, 1000
    for _ in range(experiments):
        changes = draw.binomial(20, 0.9 - 0.01 / 0.99, size=200) - draw.binomial(20, 0.9, size=200)
        changes[draw.random(200) < 0.01] = 20
        alone += sign_flip_test(changes, rng=rng()) < 0.05
        both += paired_test(changes, 20, rng=rng()) < 0.05
    assert both / experiments < 0.06 < alone / experiments


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=60), st.sampled_from([0.01, 0.1, 0.4]))
def test_equivalence_is_the_shorter_interval_inside_the_margin_and_enough_problems(changes, margin):
    means = np.array(changes) / 5
    low, high = score_interval(means, level=0.9)
    if min(abs(low + margin), abs(high - margin)) > 1e-6:
        shown = -margin < low and high < margin and len(changes) >= fewest_problems(margin)
        assert (equivalence_p(means, margin) < 0.05) == shown


def test_equivalence_needs_so_many_problems_that_a_rare_effect_of_the_margins_size_would_show():
    assert [fewest_problems(margin) for margin in (0.005, 0.01, 0.02, 0.05)] == [598, 299, 149, 59]
    for n in (298, 299, 500):
        # with k = 1 the score test alone would do with a few problems less: it is an approximation to this very chance
        assert score_interval(np.zeros(n), bounds=BOTH_WAYS, level=0.9)[1] < 0.01
        assert (equivalence_p(np.zeros(n), 0.01) < 0.05) == (n >= 299)
    assert score_interval(np.zeros(267), bounds=BOTH_WAYS, level=0.9)[1] > 0.01


# many tests


def test_holm_adjusts_a_textbook_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.04, math.nan, 0.03]) == pytest.approx([0.06, math.nan, 0.06], nan_ok=True)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_holm_is_between_the_p_value_and_bonferroni_in_any_order(p_values, random):
    adjusted = holm(p_values)
    assert (adjusted >= p_values).all()
    assert (adjusted <= np.minimum(1, len(p_values) * np.array(p_values))).all() or len(set(p_values)) > 1
    order = list(range(len(p_values)))
    random.shuffle(order)
    assert holm(np.array(p_values)[order]).tolist() == adjusted[order].tolist()
    smallest = int(np.argmin(p_values))
    assert adjusted[smallest] == min(1, len(p_values) * p_values[smallest])


# power


def test_power_of_single_samples_is_the_sum_over_all_outcomes():
    n, discordance, effect = 40, 0.3, 0.15
    gain, lose = (discordance + effect) / 2, (discordance - effect) / 2
    by_hand = sum(
        stats.multinomial.pmf([gained, lost, n - gained - lost], n, [gain, lose, 1 - discordance])
        for gained in range(n + 1)
        for lost in range(min(gained, n - gained) + 1)
        if stats.binomtest(gained, max(1, gained + lost)).pvalue < 0.05
    )
    assert detection_power(effect, n=n, discordance=discordance) == pytest.approx(by_hand, abs=1e-9)
    assert detection_power(-effect, n=n, discordance=discordance) == pytest.approx(by_hand, abs=1e-9)


@given(st.integers(1, 8), st.floats(0.01, 0.5), st.floats(0, 1))
def test_the_formulas_population_has_the_discordance_and_effect_asked_for(k, discordance, share):
    effect = share * discordance
    chances = difference_chances(effect, k=k, discordance=discordance)
    assert chances.sum() == pytest.approx(1)
    assert chances @ np.arange(-k, k + 1) == pytest.approx(k * effect, abs=1e-9)
    single = difference_chances(effect, k=1, discordance=discordance)
    assert single[0] + single[2] == pytest.approx(discordance)


@pytest.mark.parametrize("k", [1, 5])
def test_the_least_effect_is_found_with_its_power_and_shrinks_with_problems_and_samples(k):
    least = minimal_detectable_effect(n=500, k=k, discordance=0.1)
    assert detection_power(least, n=500, k=k, discordance=0.1) == pytest.approx(0.8, abs=1e-6)
    assert minimal_detectable_effect(n=2000, k=k, discordance=0.1) < least
    assert minimal_detectable_effect(n=500, k=k, discordance=0.05) < least
    assert minimal_detectable_effect(n=500, k=k, discordance=0.1, alpha=0.05 / 3) > least
    assert minimal_detectable_effect(n=500, k=20, discordance=0.1) < least
    assert math.isnan(minimal_detectable_effect(n=20, k=k, discordance=0.02))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"discordance": 0}, "up to 1 with k = 1, got 0"),
        ({"k": 5, "discordance": 0.6}, "up to 0.5 with k = 5, got 0.6"),
        ({"discordance": 0.01}, "at least the effect, 0.02, .* got 0.01"),
    ],
)
def test_power_refuses_numbers_out_of_range(values, message):
    with pytest.raises(ComparisonError, match=message):
        detection_power(0.02, n=9, **values)
