"""Intervals of one condition: score intervals of accuracies, t intervals of log-probabilities.

A score interval is Wilson's interval, also for averages over several samples.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

from harness.array_types import Floats, Integers
from harness.constants import ALPHA

ROOT_GAP = 1e-12
"""Relative distance from the end of a range at which a root search begins, because at the end a
probability would be infinite."""


def score_interval(values: npt.ArrayLike, *, weights: npt.ArrayLike = 1.0) -> tuple[float, float]:
    """The score interval of a mean of numbers from 0 to 1: all means that the test does not reject.

    The test divides by the standard error under its hypothesis: that of the likeliest distribution
    with the hypothetical mean on the observed values, 0 and 1. For right or wrong this is Wilson's
    interval; for averages over k samples it is the same construction on more possible values, which
    is ours. It needs no random draws, has positive length even if all problems are alike, and never
    leaves 0 to 1.

    Args:
        values: [problem] or [cluster] Numbers from 0 to 1.
        weights: [cluster] See `average_clusters`; by default all are equal.

    Source:
        Wilson (1927), doi:10.1080/01621459.1927.10502953; the likeliest distribution with a fixed
        mean: Owen (1988), doi:10.1093/biomet/75.2.237, here with 0 and 1 as further possible
        values.
    """
    values_with_weights = np.column_stack(
        np.broadcast_arrays(np.asarray(values, dtype=float), weights)
    )
    distinct_rows, counts = np.unique(values_with_weights, axis=0, return_counts=True)
    distinct_values, distinct_weights = distinct_rows.T.copy()
    mean = (distinct_values * distinct_weights) @ counts / counts.sum()
    critical_value = float(ndtri(1 - ALPHA / 2))

    def statistic_excess(hypothetical_mean: float) -> float:
        statistic = _score_statistic(distinct_values, distinct_weights, counts, hypothetical_mean)
        return abs(statistic) - critical_value

    # a mean of 0 or 1 is itself an end of the interval, so only the other end is searched for
    low = 0.0
    high = 1.0
    if mean - low >= ROOT_GAP:
        low = brentq(statistic_excess, mean, _point_before_end(low, mean))
    if high - mean >= ROOT_GAP:
        high = brentq(statistic_excess, mean, _point_before_end(high, mean))
    return low, high


def t_interval(values: Floats, weights: Floats) -> tuple[float, float]:
    """Student's interval of a mean of any numbers; NaN for a single cluster.

    Args:
        values: [cluster] Any numbers.
        weights: [cluster] See `average_clusters`.

    Source:
        The linearised ratio of two means, as clusters differ in size: Cochran (1977), Sampling
        Techniques, section 6.
    """
    cluster_count = len(values)
    if cluster_count < 2:
        return math.nan, math.nan
    mean = (weights * values).mean()
    standard_error = (weights * (values - mean)).std(ddof=1) / math.sqrt(cluster_count)
    half_length = stdtrit(cluster_count - 1, 1 - ALPHA / 2) * standard_error
    return mean - half_length, mean + half_length


def _score_statistic(values: Floats, weights: Floats, counts: Integers, mean: float) -> float:
    """By how many standard errors the observed mean exceeds the hypothetical `mean`."""
    total_count = counts.sum()
    difference: float = (values * weights) @ counts / total_count - mean
    if difference == 0:
        return 0.0
    variance = _likeliest_variance(weights * (values - mean), counts / total_count, -mean, 1 - mean)
    if variance <= 0:
        return math.copysign(math.inf, difference)
    return difference / math.sqrt(variance / total_count)


def _likeliest_variance(
    centred_values: Floats, shares: Floats, low_bound: float, high_bound: float
) -> float:
    """Variance of the likeliest distribution with mean 0 on the values and the two bounds.

    The distribution gives a value the probability share / (1 + tilt * value). Its mean falls as the
    tilt rises. With the tilt of mean 0, these probabilities add up to 1. If the mean is negative at
    all possible tilts, the lowest tilt is taken, and the high bound gets the probability that then
    remains. If it is positive at all of them, these are the highest tilt and the low bound.

    Args:
        centred_values: The values less the hypothetical mean.
        shares: The observed shares of the values.
        low_bound: Values of large clusters may lie beyond the bounds, which are those of a cluster
            of average size.
        high_bound: See `low_bound`.
    """
    if not low_bound < 0 < high_bound:
        return 0.0

    def tilted_mean(tilt: float) -> float:
        return float((shares * centred_values / (1 + tilt * centred_values)).sum())

    # beyond these tilts the probability of a value or of a bound would be negative
    lowest_tilt = _point_before_end(-1 / max(high_bound, centred_values.max()), 0)
    highest_tilt = _point_before_end(-1 / min(low_bound, centred_values.min()), 0)
    if tilted_mean(lowest_tilt) <= 0:
        tilt = lowest_tilt
    elif tilted_mean(highest_tilt) >= 0:
        tilt = highest_tilt
    else:
        tilt = brentq(tilted_mean, lowest_tilt, highest_tilt, xtol=1e-13)
    probabilities = shares / (1 + tilt * centred_values)
    remaining_probability = max(0.0, 1 - float(probabilities.sum()))
    # the lowest tilt is below 0 and leaves the mean too low, so the high bound must raise it
    bound = low_bound if tilt > 0 else high_bound
    return float(probabilities @ centred_values**2) + remaining_probability * bound**2


def _point_before_end(range_end: float, inner_point: float) -> float:
    """A point just short of `range_end`, on the side of `inner_point`."""
    return range_end + (inner_point - range_end) * ROOT_GAP
