"""Tests of a paired difference, score intervals, equivalence within a margin, p-values adjusted for several tests.

All of them take one number for each problem, or p-values. They know of no model, condition or frame. Where problems
stand in clusters, which count as one, the number is a cluster's mean, and `weights` say what part of the problems the
cluster holds: see `by_cluster`.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import bdtr, gammaln, ndtr, ndtri, xlog1py, xlogy

from harness.constants import ALPHA, EXACT_SIGN_FLIPS, ROOT_GAP, SIGN_FLIP_DRAWS

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bounds = tuple[float, float]


def by_cluster(values: npt.ArrayLike, clusters: Integers) -> tuple[Floats, Floats]:
    """The mean [cluster] of `values` [problem], and the weight [cluster] of each: its size over the mean size.

    Args:
        values: Each problem's value.
        clusters: The number of its cluster, from 0 without gaps.
    """
    sizes = np.bincount(clusters)
    return np.bincount(clusters, values) / sizes, np.asarray(sizes * (len(sizes) / len(clusters)), dtype=np.float64)


def cluster_terms(values: npt.ArrayLike, clusters: Integers) -> Floats:
    """Numbers [cluster] with the mean of `values` [problem], whose standard error is that of the mean over clusters.

    Source:
        The linearised ratio of two means, as clusters differ in size: Cochran (1977), Sampling Techniques, section 6.
    """
    means, weights = by_cluster(values, clusters)
    return weights * means + (1 - weights) * float(np.asarray(values).mean())


def count_flips(before: npt.ArrayLike, after: npt.ArrayLike, *, k: int = 1) -> tuple[float, float]:
    """Problems from wrong to right and from right to wrong, between counts of right samples out of k, [problem] each.

    With several samples these are averages over the k * k ways of taking one sample of either side, so that they mean
    the same. The first less the second is always n times the difference in accuracy.

    Source:
        The off-diagonal cells of McNemar (1947), doi:10.1007/BF02295996, averaged over the choice of samples.
    """
    old, new = np.asarray(before) / k, np.asarray(after) / k
    return float(((1 - old) * new).sum()), float((old * (1 - new)).sum())


def paired_test(changes: npt.ArrayLike, k: int, *, rng: np.random.Generator, clusters: Integers | None = None) -> float:
    """Two-sided p-value of a difference between two conditions: the test of every table.

    With one sample a problem it is `mcnemar_test`. With several, or where problems stand in clusters, it is the larger
    of two p-values, because each errs where the other holds: `sign_flip_test` takes a gain and a loss of one size for
    equally likely, and errs in 6 of 100 where few problems gain much and many lose a little (1 % of 200 problems,
    k = 20; the larger p: 5 of 100); the score test, which `score_interval` inverts, needs more than a handful of
    changes.

    Args:
        changes: Right samples under a condition less those under the baseline, one number a problem.
        k: Samples a problem under either.
        rng: Where random sign patterns come from, if they are needed.
        clusters: As of `by_cluster`; by default each problem is one.
    """
    numbers = np.asarray(changes, dtype=np.int64)
    clusters = np.arange(len(numbers)) if clusters is None else clusters
    sums = np.bincount(clusters, numbers).astype(np.int64)
    if k == 1 and len(sums) == len(numbers):
        return mcnemar_test(int((numbers > 0).sum()), int((numbers < 0).sum()))
    means, weights = by_cluster(numbers / k, clusters)
    score = score_statistic(means, 0, weights=weights)
    return max(sign_flip_test(sums, rng=rng), 2 * float(ndtr(-abs(score))))


def mcnemar_test(wrong_to_right: int, right_to_wrong: int) -> float:
    """Two-sided exact p-value that flips go either way equally often; 1 without flips.

    Source:
        McNemar (1947), doi:10.1007/BF02295996, in its exact binomial form: Fagerland, Lydersen and Laake (2013),
        doi:10.1186/1471-2288-13-91, who also show that it is conservative.
    """
    flips = wrong_to_right + right_to_wrong
    return min(1.0, 2 * float(bdtr(min(wrong_to_right, right_to_wrong), flips, 0.5))) if flips else 1.0


def sign_flip_test(
    differences: npt.ArrayLike,
    *,
    rng: np.random.Generator,
    draws: int = SIGN_FLIP_DRAWS,
    exact_up_to: int = EXACT_SIGN_FLIPS,
) -> float:
    """Two-sided p-value that whole numbers `differences` [problem] are as likely with either sign.

    Exact while the differences add up to at most `exact_up_to` in size: the sum of randomly signed whole numbers has
    a distribution that convolution gives without listing all sign patterns. Beyond, `draws` seeded random patterns,
    with p = (1 + as far out) / (1 + draws). For differences of -1, 0 and 1 this is `mcnemar_test`.

    Args:
        differences: Right samples under a condition less those under the baseline, one number a problem.
        rng: Where random patterns come from, if they are needed.
        draws: How many.
        exact_up_to: Largest sum of absolute differences, after dividing out a common factor, that is done exactly.

    Source:
        Fisher (1935), The Design of Experiments, section 21; distribution by convolution: Pagano and Tritchler
        (1983), doi:10.1080/01621459.1983.10477990; p of random patterns: Phipson and Smyth (2010),
        doi:10.2202/1544-6115.1585.
    """
    numbers = np.asarray(differences, dtype=np.int64)
    sizes, counts = np.unique(np.abs(numbers[numbers != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    common = math.gcd(*sizes.tolist())
    sizes //= common
    observed = abs(int(numbers.sum())) // common
    total = int(sizes @ counts)
    if total <= exact_up_to:
        sums = 2 * np.arange(total + 1) - total
        return min(1.0, float(_positive_sum(sizes, counts)[np.abs(sums) >= observed].sum()))
    sums = 2 * (rng.binomial(counts, 0.5, size=(draws, len(counts))) @ sizes) - total
    return (1 + int((np.abs(sums) >= observed).sum())) / (1 + draws)


def binomial_chances(draws: int, chance: float) -> Floats:
    """Chance of each number 0 ... draws of successes; scipy.stats has it too, but takes longer to load than a table."""
    hits = np.arange(draws + 1)
    log_ways = gammaln(draws + 1) - gammaln(hits + 1) - gammaln(draws - hits + 1)
    return np.asarray(np.exp(log_ways + xlogy(hits, chance) + xlog1py(draws - hits, -chance)))


def _positive_sum(sizes: Integers, counts: Integers) -> Floats:
    """Probability of each sum [0 ... total] of the sizes that get a plus, each by a fair coin."""
    chances: Floats = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        spread = np.zeros(size * count + 1)
        spread[::size] = binomial_chances(count, 0.5)
        chances = np.convolve(chances, spread).astype(np.float64, copy=False)
    return chances


def score_interval(
    values: npt.ArrayLike, *, bounds: Bounds | None = None, level: float = 1 - ALPHA, weights: npt.ArrayLike = 1.0
) -> tuple[float, float]:
    """Every mean that the score test of `score_statistic` does not reject, for `values` [problem] within `bounds`.

    For right or wrong (bounds 0 and 1) this is Wilson's interval, for differences of right or wrong (bounds -1 and 1)
    Tango's; for averages over k samples it is their construction on more possible values, which is ours. It needs no
    draws, has positive length even if no two problems differ, and never leaves the bounds.

    Args:
        values: Each problem's value.
        bounds: Least and greatest value that a problem can have; by default those of differences, `difference_bounds`.
        level: Confidence level in (0, 1).
        weights: Of clusters; by default all are alike.

    Returns:
        Low and high end, in the unit of the values.

    Source:
        Wilson (1927), doi:10.1080/01621459.1927.10502953; Tango (1998), Statistics in Medicine 17:891-908,
        doi:10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B; recommended for paired proportions by
        Fagerland, Lydersen and Laake (2014), doi:10.1002/sim.6148.
    """
    bounds = bounds or difference_bounds(values, 1)
    distinct = _distinct(values, weights)
    critical = float(ndtri((1 + level) / 2))
    mean = float((distinct[0] * distinct[1]) @ distinct[2] / distinct[2].sum())
    ends = [
        outer
        if abs(mean - outer) < ROOT_GAP
        else brentq(lambda at: abs(_statistic(*distinct, at, bounds)) - critical, mean, _towards(outer, mean))
        for outer in bounds
    ]
    return float(ends[0]), float(ends[1])


def difference_bounds(changes: npt.ArrayLike, k: int) -> tuple[float, float]:
    """Bounds for `score_interval` of differences: `changes` [problem] in right samples, out of k samples a problem.

    How far problems may move that were not seen: between the greatest change seen, if many problems changed, and a
    whole problem, -1 and 1, if none did. A kind of change that makes up a third of all is missed among m changes with
    probability (2/3)^m, and by this share of the way the bounds lie beyond what was seen. So no single problem makes
    the interval jump. With k = 1 they are -1 and 1, which is Tango's interval.

    With -1 and 1 for any k, intervals for large k would be far too long: a chance of unseen whole changes would be held
    against averages that hardly move (500 problems, k = 20, 2 percent discordance: all of 2,500 simulated intervals
    covered, instead of 95 percent).
    """
    sizes = np.abs(np.asarray(changes))
    seen = float(sizes.max()) / k
    reach = seen + (1 - seen) * (2 / 3) ** np.count_nonzero(sizes)
    return -reach, reach


def hold_zero(ends: tuple[float, float], difference: float, *, passed: bool) -> tuple[float, float]:
    """The interval `ends` of a difference, made to hold 0 exactly where its test was not passed.

    An interval beside a verdict must not contradict it. A test adjusted for several, or behind another one, may fail
    where the interval alone leaves 0 out: the interval is then extended to 0. Where the test is passed and the interval
    alone would reach 0, the interval ends there, without 0. Each still holds its true difference as often as before
    the tests were adjusted; that all hold theirs at once is not promised.

    Source:
        Intervals of stepwise tests: Strassburger and Bretz (2008), doi:10.1002/sim.3338, whose promise is stronger.
    """
    low, high = ends
    if not passed:
        return min(low, 0.0), max(high, 0.0)
    least = math.nextafter(0, 1)  # an end that is not 0, though it is printed so
    return (max(low, least), high) if difference > 0 else (low, min(high, -least))


def score_statistic(
    values: npt.ArrayLike, mean: float, *, bounds: Bounds | None = None, weights: npt.ArrayLike = 1.0
) -> float:
    """How many standard errors the mean of `values` [problem] lies above `mean`, if `mean` were the true one.

    The standard error is the one under that hypothesis: the variance of the likeliest distribution on the values
    within `bounds` that has this mean. Under it the statistic is about standard normal.

    Source:
        As `score_interval`; the likeliest distribution with a given mean: Owen (1988), doi:10.1093/biomet/75.2.237,
        here with the bounds as further possible values.
    """
    return _statistic(*_distinct(values, weights), mean, bounds or difference_bounds(values, 1))


def _distinct(values: npt.ArrayLike, weights: npt.ArrayLike) -> tuple[Floats, Floats, Integers]:
    """The values that there are, each with the weight that it has, and how often they occur."""
    pairs = np.column_stack(np.broadcast_arrays(np.asarray(values, dtype=float), weights))
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    return found[:, 0].copy(), found[:, 1].copy(), counts


def _statistic(distinct: Floats, weights: Floats, counts: Integers, mean: float, bounds: Bounds) -> float:
    n = int(counts.sum())
    difference = float((distinct * weights) @ counts) / n - mean
    if difference == 0:
        return 0.0
    variance = _variance(weights * (distinct - mean), counts / n, bounds[0] - mean, bounds[1] - mean)
    return math.copysign(math.inf, difference) if variance <= 0 else difference / math.sqrt(variance / n)


def _variance(centred: Floats, shares: Floats, low: float, high: float) -> float:
    """Variance of the likeliest distribution with mean 0 on the values and the bounds.

    Its weights are shares / (1 + tilt * value); the tilt is where their mean is right. A bound that no problem reached
    takes what weight is left if even the strongest tilt does not get there. Values of large clusters lie beyond the
    bounds, which are those of a cluster of average size.
    """
    if not low < 0 < high:
        return 0.0

    def excess(tilt: float) -> float:
        return float((shares * centred / (1 + tilt * centred)).sum())

    weakest, strongest = _towards(-1 / max(high, centred.max()), 0), _towards(-1 / min(low, centred.min()), 0)
    if excess(weakest) <= 0:
        tilt = weakest
    elif excess(strongest) >= 0:
        tilt = strongest
    else:
        tilt = brentq(excess, weakest, strongest, xtol=1e-13)
    weights = shares / (1 + tilt * centred)
    left = max(0.0, 1 - float(weights.sum()))
    bound = low if tilt > 0 else high
    return float(weights @ centred**2) + left * bound**2


def _towards(end: float, inner: float) -> float:
    """A point just short of `end`, seen from `inner`."""
    return end + (inner - end) * ROOT_GAP


def equivalence_p(values: npt.ArrayLike, margin: float, *, weights: npt.ArrayLike = 1.0) -> float:
    """P-value of two one-sided tests: small where the true mean of `values` [problem] is surely within the margin.

    It is below alpha exactly if the score interval of level 1 - 2 alpha lies inside (-margin, margin) and there are
    `fewest_problems`. The latter is for what no interval sees: if a share `margin` of all problems changes wholly and
    no other does, n problems hold none of these with probability (1 - margin)^n, and p is never below that.

    Args:
        values: Each problem's difference.
        margin: Difference that would matter, in the same unit.
        weights: As for `score_interval`.

    Source:
        Schuirmann (1987), doi:10.1007/BF01068419; with the score statistic: Tango (1998), as in `score_interval`;
        what n problems may miss: the rule of three, Hanley and Lippman-Hand (1983),
        doi:10.1001/jama.1983.03330370053031.
    """
    above = ndtr(-score_statistic(values, -margin, weights=weights))
    below = ndtr(score_statistic(values, margin, weights=weights))
    missed = (1 - margin) ** np.size(values)
    return float(max(above, below, missed))


def fewest_problems(margin: float) -> int:
    """How many problems equivalence within the margin needs: so many that (1 - margin)^n is at most 5 percent.

    About 3 / margin, the rule of three: see `equivalence_p`.
    """
    return math.ceil(math.log(ALPHA) / math.log1p(-margin))


def holm(p_values: npt.ArrayLike) -> Floats:
    """Adjusted p-values [test]: calling those below alpha real errs anywhere with probability at most alpha.

    Holds however the tests depend on each other, as they do where all compare with one baseline. NaN stays NaN and
    does not count as a test.

    Source:
        Holm (1979), Scandinavian Journal of Statistics 6:65-70, https://www.jstor.org/stable/4615733.
    """
    p = np.asarray(p_values, dtype=float)
    adjusted = np.full(p.shape, np.nan)
    order = np.argsort(p, kind="stable")  # NaN goes last
    order = order[: len(p) - int(np.isnan(p).sum())]
    steps = np.arange(len(order), 0, -1) * p[order]
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted


def verdict(p_adjusted: float, difference: float, *, within_margin: bool) -> str:
    """Better or worse if the test is significant, else equivalent if within the margin, else inconclusive.

    A difference that is both significant and within the margin is called better or worse.
    """
    if p_adjusted < ALPHA:
        return "better" if difference > 0 else "worse"
    return "equivalent" if within_margin else "inconclusive"
