"""Paired differences with test and interval, and adjusted p-values.

Every function takes one number for each problem, or p-values. None knows of models, conditions or
data frames. Problems in one cluster count as one: then the number is the cluster's mean, and
`weights` has the size of each cluster, see `average_clusters`.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, betaincinv

from harness.array_types import Floats, Integers
from harness.constants import ALPHA, DEFAULT_SEED

MOST_SAMPLES_FOR_EXACT_P = 20_000
"""If the absolute differences add up to at most this many samples, p is exact. This takes at most a
second."""
SIGN_PATTERN_COUNT = 10_000
"""Random sign patterns of an interval, whose ends are then accurate to 2 percent of a standard
error. If the mean change is exactly 0, there are this many patterns for each direction."""


def average_clusters(values: Floats, clusters: Integers) -> tuple[Floats, Floats]:
    """The means [cluster] of `values` [problem], and weights [cluster]: size over mean size.

    Args:
        values: [problem] Any numbers.
        clusters: [problem] The number of the problem's cluster, from 0 without gaps.
    """
    cluster_sizes = np.bincount(clusters)
    weights = np.asarray(cluster_sizes * (len(cluster_sizes) / len(clusters)), dtype=np.float64)
    return np.bincount(clusters, values) / cluster_sizes, weights


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The mean difference between two conditions, its sign-flip test, and the inverted test.

    Attributes:
        difference: The mean over problems, as a share.
        p: Two-sided p-value of the true mean being 0.
        cluster_count: The number of clusters.
        gains: The number of clusters that changed in the direction of the difference.
        losses: The number that changed in the other direction.
        subset_means: [2, pattern] For each random sign pattern, the smaller and the larger of two
            means: over the clusters with a plus, and over those with a minus. If the difference is
            negative, all changes have the other sign here, so that their mean is not below 0.
    """

    difference: float
    p: float
    cluster_count: int
    gains: int
    losses: int
    subset_means: Floats

    def interval(self, level: float = 1 - ALPHA) -> tuple[float, float]:
        """All means that the sign-flip test does not reject at 1 - `level`.

        So 0 is outside exactly if p is below 1 - `level`. The test of a mean subtracts it from each
        difference and flips the signs of the results. A flipped sum is as extreme as the observed
        sum exactly if the mean lies between the pattern's two subset means, or at one of them. So
        each end is a quantile of these means.

        Sign flips cannot account for changes that no sampled problem shows. With up to five changes
        nothing is significant at 5 percent. In this case the interval is extended by the changes
        that this number of clusters may miss: by the exact limits of the shares of clusters that
        gain and that lose. Each missed change counts as a full problem.

        Source:
            Intervals from subset means: Hartigan (1969), doi:10.1080/01621459.1969.10501057. Exact
            limits: Clopper and Pearson (1934), doi:10.1093/biomet/26.4.404.
        """
        alpha = 1 - level
        # the subset means, and so these ends, are those of a difference that is not negative: hence
        # `abs` below. The last line mirrors the interval of a negative difference.
        low, high = self._invert_test(alpha)
        # p if all changes had the same sign: no p of as many changes is smaller
        least_p = 2.0 ** (1 - self.gains - self.losses)
        if least_p >= alpha:
            low = min(low, abs(self.difference) - self._limit_above_observed(self.losses, alpha))
            high = max(high, abs(self.difference) + self._limit_above_observed(self.gains, alpha))
        low = max(low, -1.0)
        high = min(high, 1.0)
        return (low, high) if self.difference >= 0 else (-high, -low)

    def _invert_test(self, alpha: float) -> tuple[float, float]:
        """The quantile `alpha` of the smaller subset means, and 1 - `alpha` of the larger ones.

        A mean below the first, or above the second, lies between the two subset means of a share of
        patterns below `alpha`, so the test rejects it.
        """
        smaller_means, larger_means = self.subset_means
        reaches_zero = smaller_means <= 0
        zero_share = reaches_zero.mean()
        weights = np.ones(len(smaller_means))
        if 0 < zero_share < 1:
            # Random patterns only estimate p. With these weights, the patterns that reach 0 have
            # the share p, so the interval still excludes 0 exactly if p is below alpha.
            weights = np.where(reaches_zero, self.p / zero_share, (1 - self.p) / (1 - zero_share))
        low = float(np.quantile(smaller_means, alpha, weights=weights, method="inverted_cdf"))
        # mirrored, because `inverted_cdf` always takes the lower of two neighbours
        high = -float(np.quantile(-larger_means, alpha, method="inverted_cdf"))
        return low, high

    def _limit_above_observed(self, change_count: int, alpha: float) -> float:
        """The exact upper limit of a share of clusters, less the observed share."""
        if change_count == self.cluster_count:
            return 0.0
        limit = betaincinv(change_count + 1, self.cluster_count - change_count, 1 - alpha / 2)
        return float(limit) - change_count / self.cluster_count


def estimate_difference(
    changes: npt.ArrayLike, repeats: int, *, clusters: Integers | None = None
) -> PairedDifference:
    """The difference between two conditions with its test and interval, as all tables have them.

    The test assumes that a gain and a loss of the same size are equally likely. Where few problems
    gain much and many lose a little, the test errs in 6 instead of 5 of 100 runs (1 % of 200
    problems, 20 samples of each).

    Args:
        changes: [problem] Right samples under a condition less those under the baseline.
        repeats: Samples of a problem under each of the two.
        clusters: See `average_clusters`; by default each problem is a cluster.
    """
    problem_changes = np.asarray(changes, dtype=np.int64)
    clusters = np.arange(len(problem_changes)) if clusters is None else clusters
    cluster_sums = np.bincount(clusters, problem_changes).astype(np.int64)
    cluster_sizes = np.bincount(clusters)
    total_change = cluster_sums.sum()
    # a negative difference is measured as its mirror image, so exchanging the conditions mirrors
    # the interval
    directed_sums = -cluster_sums if total_change < 0 else cluster_sums
    subset_means = _draw_subset_means(directed_sums, cluster_sizes)
    if total_change == 0:
        # A difference of 0 has no direction. With patterns of both directions, exchanging the
        # conditions mirrors the interval in this case too.
        smaller_means, larger_means = _draw_subset_means(-directed_sums, cluster_sizes)
        subset_means = np.hstack([subset_means, [-larger_means, -smaller_means]])
    return PairedDifference(
        difference=float(problem_changes.mean()) / repeats,
        p=sign_flip_test(cluster_sums),
        cluster_count=len(cluster_sums),
        gains=int((directed_sums > 0).sum()),
        losses=int((directed_sums < 0).sum()),
        subset_means=subset_means / repeats,
    )


def _draw_subset_means(cluster_sums: Integers, cluster_sizes: Integers) -> Floats:
    """As `PairedDifference.subset_means`, in samples per problem."""
    # Clusters of equal change and size are exchangeable, so the number of each kind suffices. A
    # kind is a row (change, size).
    kinds, kind_counts = np.unique(
        np.column_stack([cluster_sums, cluster_sizes]), axis=0, return_counts=True
    )
    # plus_totals[pattern]: the sum of the changes with a plus, and the sum of their sizes, which
    # have the mean of this subset as their ratio
    plus_totals = _draw_plus_counts(kind_counts) @ kinds
    minus_totals = kind_counts @ kinds - plus_totals
    with np.errstate(divide="ignore", invalid="ignore"):
        plus_means = plus_totals[:, 0] / plus_totals[:, 1]
        minus_means = minus_totals[:, 0] / minus_totals[:, 1]
    # [smaller or larger, pattern]
    subset_means = np.sort([plus_means, minus_means], axis=0)
    # where all signs are alike, one subset is empty, and no mean is rejected
    return np.where(np.isnan(subset_means).any(axis=0), [[-np.inf], [np.inf]], subset_means)


def _draw_plus_counts(counts: Integers) -> Integers:
    """In random sign patterns, how many of `counts` [kind] have a plus: [pattern, kind]."""
    return np.random.default_rng(DEFAULT_SEED).binomial(
        counts, 0.5, (SIGN_PATTERN_COUNT, len(counts))
    )


def sign_flip_test(differences: npt.ArrayLike) -> float:
    """Two-sided p-value of integers `differences` [problem], if both signs are equally likely.

    Convolution gives the exact distribution of the sum of randomly signed integers without a list
    of all patterns. If the absolute differences add up to more than `MOST_SAMPLES_FOR_EXACT_P`,
    seeded random patterns replace it: then p = (1 + patterns at least as extreme) / (1 + patterns).
    For differences of -1, 0 and 1 this is McNemar's exact test.

    Source:
        Fisher (1935), The Design of Experiments, section 21; distribution by convolution: Pagano
        and Tritchler (1983), doi:10.1080/01621459.1983.10477990; p of random patterns: Phipson and
        Smyth (2010), doi:10.2202/1544-6115.1585; McNemar (1947), doi:10.1007/BF02295996.
    """
    changes = np.asarray(differences, dtype=np.int64)
    magnitudes, counts = np.unique(np.abs(changes[changes != 0]), return_counts=True)
    if not len(magnitudes):
        return 1.0
    # smaller magnitudes make the table of sums shorter and change no probability
    common_divisor = math.gcd(*magnitudes.tolist())
    magnitudes //= common_divisor
    observed_sum = abs(int(changes.sum())) // common_divisor
    greatest_sum = int(magnitudes @ counts)
    if greatest_sum > MOST_SAMPLES_FOR_EXACT_P:
        # a pattern's sum: the magnitudes with a plus less the others = 2 * plus sum - greatest sum
        plus_sums = _draw_plus_counts(counts) @ magnitudes
        extreme_pattern_count = int((np.abs(2 * plus_sums - greatest_sum) >= observed_sum).sum())
        return (1 + extreme_pattern_count) / (1 + SIGN_PATTERN_COUNT)
    # chances[s]: the chance that the magnitudes with a plus add up to s; 0 before the first of them
    chances: Floats = np.ones(1)
    for magnitude, count in zip(magnitudes.tolist(), counts.tolist(), strict=True):
        # the same for the differences of this magnitude alone, whose sums are its multiples
        magnitude_chances = np.zeros(magnitude * count + 1)
        # scipy.stats.binom.pmf does the same, but importing scipy.stats takes longer than computing
        # a table
        magnitude_chances[::magnitude] = np.diff(bdtr(np.arange(count + 1), count, 0.5), prepend=0)
        chances = np.convolve(chances, magnitude_chances).astype(np.float64, copy=False)
    # A sum of at most -observed_sum has a plus sum of at most (greatest_sum - observed_sum) / 2.
    # The distribution is symmetric, so this lower tail counts twice.
    return min(1.0, 2 * float(chances[: (greatest_sum - observed_sum) // 2 + 1].sum()))


def count_needed_problems(margin: float) -> int:
    """The number n of problems that equivalence needs: (1 - margin)^n is at most 0.05.

    It guards against an effect that no interval can show: only a share `margin` of all problems
    changes, from right to wrong or back, and none of them is in the sample. The number is about 3 /
    margin, the rule of three.

    Source:
        Hanley and Lippman-Hand (1983), doi:10.1001/jama.1983.03330370053031.
    """
    return math.ceil(math.log(ALPHA) / math.log1p(-margin))


def holm(p_values: npt.ArrayLike) -> Floats:
    """Adjusted p-values [test]. With probability 1 - alpha no true hypothesis has one below alpha.

    This holds for dependent tests too, such as comparisons with one common baseline. NaN stays NaN
    and does not count as a test.

    Source:
        Holm (1979), Scandinavian Journal of Statistics 6:65-70,
        https://www.jstor.org/stable/4615733.
    """
    raw_p_values = np.asarray(p_values, dtype=float)
    adjusted_p_values = np.full(raw_p_values.shape, np.nan)
    test_count = np.count_nonzero(~np.isnan(raw_p_values))
    order = np.argsort(raw_p_values, kind="stable")[:test_count]  # NaN goes last, so it is cut off
    stepwise_p_values = np.arange(test_count, 0, -1) * raw_p_values[order]
    adjusted_p_values[order] = np.minimum(1, np.maximum.accumulate(stepwise_p_values))
    return adjusted_p_values
