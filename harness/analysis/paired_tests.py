"""The test and interval of a paired difference, score intervals of accuracies, p-values adjusted for several tests.

All of them take one number for each problem, or p-values. They know of no model, condition or frame. Where problems
stand in clusters, which count as one, the number is a cluster's mean, and `weights` say what part of the problems the
cluster holds: see `by_cluster`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import bdtr, betaincinv, ndtri

from harness.constants import ALPHA, DEFAULT_SEED

EXACT_SIGN_FLIPS = 20_000
"""Differences that add up to at most this many samples have the exact distribution: it takes a second at most."""
SIGN_PATTERNS = 10_000
"""Random sign patterns of an interval: its ends are then right to 2 percent of a standard error."""
ROOT_GAP = 1e-12
"""How far from an end, relatively, a root is looked for: at the end itself a weight would be infinite."""

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def by_cluster(values: npt.ArrayLike, clusters: Integers) -> tuple[Floats, Floats]:
    """The mean [cluster] of `values` [problem], and the weight [cluster] of each: its size over the mean size.

    Args:
        values: Each problem's value.
        clusters: The number of its cluster, from 0 without gaps.
    """
    sizes = np.bincount(clusters)
    return np.bincount(clusters, values) / sizes, np.asarray(
        sizes * (len(sizes) / len(clusters)), dtype=np.float64
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The mean difference between two conditions, its sign-flip test, and intervals that invert this test.

    Attributes:
        difference: The mean over problems, as a share.
        p: Two-sided p-value of the true mean being 0.
        clusters: The number of clusters.
        gains: The number of clusters that changed in the direction of the difference.
        losses: The number that changed in the other direction.
        subset_means: [2, pattern] For each random sign pattern, the smaller and the larger of two means: over the
            clusters with a plus, and over those with a minus. Signs are such that the difference is not below 0.
    """

    difference: float
    p: float
    clusters: int
    gains: int
    losses: int
    subset_means: Floats

    def interval(self, level: float = 1 - ALPHA) -> tuple[float, float]:
        """Every mean that the sign-flip test does not reject at 1 - `level`, so 0 is outside exactly if p is below it.

        The test of a mean subtracts it from each difference and flips the signs of the rest. A flipped sum is as far
        out as the observed one exactly if the mean lies between the pattern's two subset means, or at one of them. So
        each end is a quantile of these means.

        Sign flips do not know of changes that no problem showed. With up to five changes nothing is significant at 5
        percent. There the interval also holds what so many clusters may miss: the exact limits of the shares of
        clusters that gain and that lose, as if each change that was missed were a whole problem.

        Source:
            Intervals from subset means: Hartigan (1969), doi:10.1080/01621459.1969.10501057. Exact limits: Clopper and
            Pearson (1934), doi:10.1093/biomet/26.4.404.
        """
        alpha = 1 - level
        smaller, larger = self.subset_means
        below = smaller <= 0
        weights = np.ones(len(smaller))
        if 0 < below.mean() < 1:
            # the random patterns only estimate p: with these weights they agree with the exact test at 0
            weights = np.where(below, self.p / below.mean(), (1 - self.p) / (1 - below.mean()))
        low = float(np.quantile(smaller, alpha, weights=weights, method="inverted_cdf"))
        high = -float(np.quantile(-larger, alpha, method="inverted_cdf"))
        if 2.0 ** (1 - self.gains - self.losses) >= alpha:
            low = min(low, abs(self.difference) - self._missed(self.losses, alpha))
            high = max(high, abs(self.difference) + self._missed(self.gains, alpha))
        low, high = max(low, -1.0), min(high, 1.0)
        return (low, high) if self.difference >= 0 else (-high, -low)

    def _missed(self, changes: int, alpha: float) -> float:
        """By how much the exact upper limit of a share of clusters exceeds the observed one."""
        if changes == self.clusters:
            return 0.0
        return (
            float(betaincinv(changes + 1, self.clusters - changes, 1 - alpha / 2))
            - changes / self.clusters
        )


def estimate_difference(
    changes: npt.ArrayLike, k: int, *, clusters: Integers | None = None
) -> PairedDifference:
    """The difference between two conditions with its test and interval: those of every table.

    The test takes a gain and a loss of one size for equally likely. Where few problems gain much and many lose a
    little, it errs in 6 instead of 5 of 100 (1 % of 200 problems, k = 20).

    Args:
        changes: [problem] Right samples under a condition less those under the baseline.
        k: Samples a problem under either.
        clusters: As of `by_cluster`; by default each problem is one.
    """
    numbers = np.asarray(changes, dtype=np.int64)
    clusters = np.arange(len(numbers)) if clusters is None else clusters
    sums = np.bincount(clusters, numbers).astype(np.int64)
    # a loss is measured as the gain that it mirrors, so that exchanging the conditions mirrors the interval
    sized_sums = np.column_stack([-sums if sums.sum() < 0 else sums, np.bincount(clusters)])
    kinds, counts = np.unique(sized_sums, axis=0, return_counts=True)
    plus = (
        np.random.default_rng(DEFAULT_SEED).binomial(counts, 0.5, size=(SIGN_PATTERNS, len(counts)))
        @ kinds
    )
    minus = counts @ kinds - plus
    with np.errstate(divide="ignore", invalid="ignore"):
        means = np.stack([plus[:, 0] / plus[:, 1], minus[:, 0] / minus[:, 1]]) / k
    # where all signs are alike, one subset is empty, and no mean is rejected
    alike = np.isnan(means).any(axis=0)
    smaller, larger = (
        np.where(alike, -np.inf, means.min(axis=0)),
        np.where(alike, np.inf, means.max(axis=0)),
    )
    return PairedDifference(
        difference=float(numbers.mean()) / k,
        p=sign_flip_test(sums),
        clusters=len(sums),
        gains=int((sized_sums[:, 0] > 0).sum()),
        losses=int((sized_sums[:, 0] < 0).sum()),
        subset_means=np.stack([smaller, larger]),
    )


def sign_flip_test(differences: npt.ArrayLike) -> float:
    """Two-sided p-value that whole numbers `differences` [problem] are as likely with either sign.

    The sum of randomly signed whole numbers has a distribution that convolution gives without listing all sign
    patterns. Where the differences add up to more than `EXACT_SIGN_FLIPS`, seeded random patterns take its place, with
    p = (1 + as far out) / (1 + patterns). For differences of -1, 0 and 1 this is McNemar's exact test.

    Source:
        Fisher (1935), The Design of Experiments, section 21; distribution by convolution: Pagano and Tritchler
        (1983), doi:10.1080/01621459.1983.10477990; p of random patterns: Phipson and Smyth (2010),
        doi:10.2202/1544-6115.1585; McNemar (1947), doi:10.1007/BF02295996.
    """
    numbers = np.asarray(differences, dtype=np.int64)
    sizes, counts = np.unique(np.abs(numbers[numbers != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    common = math.gcd(*sizes.tolist())
    sizes //= common
    observed = abs(int(numbers.sum())) // common
    total = int(sizes @ counts)
    if total > EXACT_SIGN_FLIPS:
        plus = (
            np.random.default_rng(DEFAULT_SEED).binomial(
                counts, 0.5, size=(SIGN_PATTERNS, len(counts))
            )
            @ sizes
        )
        return (1 + int((np.abs(2 * plus - total) >= observed).sum())) / (1 + SIGN_PATTERNS)
    chances: Floats = np.ones(1)  # of each sum of the sizes with a plus
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        spread = np.zeros(size * count + 1)
        # scipy.stats.binom.pmf, but loading scipy.stats takes longer than making a table
        spread[::size] = np.diff(bdtr(np.arange(count + 1), count, 0.5), prepend=0)
        chances = np.convolve(chances, spread).astype(np.float64, copy=False)
    return min(1.0, 2 * float(chances[: (total - observed) // 2 + 1].sum()))


def score_interval(values: npt.ArrayLike, *, weights: npt.ArrayLike = 1.0) -> tuple[float, float]:
    """The interval of a mean of `values` [problem] between 0 and 1: every mean that the score test does not reject.

    The test divides by the standard error under its hypothesis, that of the likeliest distribution on the values, 0
    and 1 that has the mean. For right or wrong this is Wilson's interval; for averages over k samples it is the same
    construction on more possible values, which is ours. It needs no draws, has positive length even if all problems
    are alike, and never leaves 0 to 1.

    Args:
        values: Each problem's value.
        weights: Of clusters; by default all are alike.

    Source:
        Wilson (1927), doi:10.1080/01621459.1927.10502953; the likeliest distribution with a given mean: Owen (1988),
        doi:10.1093/biomet/75.2.237, here with 0 and 1 as further possible values.
    """
    distinct = _distinct(values, weights)
    critical = float(ndtri(1 - ALPHA / 2))
    mean = float((distinct[0] * distinct[1]) @ distinct[2] / distinct[2].sum())
    ends = [
        outer
        if abs(mean - outer) < ROOT_GAP
        else brentq(
            lambda at: abs(_statistic(*distinct, at)) - critical, mean, _towards(outer, mean)
        )
        for outer in (0.0, 1.0)
    ]
    return float(ends[0]), float(ends[1])


def _distinct(values: npt.ArrayLike, weights: npt.ArrayLike) -> tuple[Floats, Floats, Integers]:
    """The values that there are, each with the weight that it has, and how often they occur."""
    pairs = np.column_stack(np.broadcast_arrays(np.asarray(values, dtype=float), weights))
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    return found[:, 0].copy(), found[:, 1].copy(), counts


def _statistic(distinct: Floats, weights: Floats, counts: Integers, mean: float) -> float:
    """How many standard errors the observed mean lies above `mean`, if `mean` were the true one."""
    n = int(counts.sum())
    difference = float((distinct * weights) @ counts) / n - mean
    if difference == 0:
        return 0.0
    variance = _variance(weights * (distinct - mean), counts / n, -mean, 1 - mean)
    return (
        math.copysign(math.inf, difference)
        if variance <= 0
        else difference / math.sqrt(variance / n)
    )


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

    weakest, strongest = (
        _towards(-1 / max(high, centred.max()), 0),
        _towards(-1 / min(low, centred.min()), 0),
    )
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


def fewest_problems(margin: float) -> int:
    """How many problems equivalence within the margin needs: so many that (1 - margin)^n is at most 5 percent.

    This is for what no interval sees: a share `margin` of all problems changes wholly, and no other does. The number is
    about 3 / margin, the rule of three.

    Source:
        Hanley and Lippman-Hand (1983), doi:10.1001/jama.1983.03330370053031.
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
