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
weight would be infinite."""


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
    pairs = np.column_stack(np.broadcast_arrays(np.asarray(values, dtype=float), weights))
    distinct_pairs, counts = np.unique(pairs, axis=0, return_counts=True)
    distinct_values, pair_weights = distinct_pairs.T.copy()
    mean = float((distinct_values * pair_weights) @ counts / counts.sum())
    critical = float(ndtri(1 - ALPHA / 2))

    def excess(hypothetical_mean: float) -> float:
        statistic = _score_statistic(distinct_values, pair_weights, counts, hypothetical_mean)
        return abs(statistic) - critical

    # at a mean of 0 or 1 one end is exact, and has no root to search for
    low, high = 0.0, 1.0
    if mean - low >= ROOT_GAP:
        low = float(brentq(excess, mean, _towards(low, mean)))
    if high - mean >= ROOT_GAP:
        high = float(brentq(excess, mean, _towards(high, mean)))
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
    mean = float((weights * values).mean())
    standard_error = float((weights * (values - mean)).std(ddof=1)) / math.sqrt(cluster_count)
    reach = float(stdtrit(cluster_count - 1, 1 - ALPHA / 2)) * standard_error
    return mean - reach, mean + reach


def _score_statistic(values: Floats, weights: Floats, counts: Integers, mean: float) -> float:
    """By how many standard errors the observed mean exceeds the hypothetical `mean`."""
    n = int(counts.sum())
    difference = float((values * weights) @ counts) / n - mean
    if difference == 0:
        return 0.0
    variance = _likeliest_variance(weights * (values - mean), counts / n, -mean, 1 - mean)
    if variance <= 0:
        return math.copysign(math.inf, difference)
    return difference / math.sqrt(variance / n)


def _likeliest_variance(centred: Floats, shares: Floats, low: float, high: float) -> float:
    """Variance of the likeliest distribution with mean 0 on the values and the two bounds.

    The weights of the values are shares / (1 + tilt * value), with the tilt that makes the mean 0.
    A tilt above 0 gives low values more weight, and a tilt below 0 high values. If even the lowest
    or highest tilt with positive weights does not make the mean 0, the weights add up to less than
    1. Then the bound on that side has the remaining weight: the low bound for a tilt above 0.

    Args:
        centred: The values less the hypothetical mean.
        shares: The observed shares of the values.
        low: The low bound. Values of large clusters may lie beyond the bounds, which are those of a
            cluster of average size.
        high: The high bound.
    """
    if not low < 0 < high:
        return 0.0

    def tilted_mean(tilt: float) -> float:
        return float((shares * centred / (1 + tilt * centred)).sum())

    # beyond these tilts the weight of a value or of a bound would be negative
    lowest_tilt = _towards(-1 / max(high, centred.max()), 0)
    highest_tilt = _towards(-1 / min(low, centred.min()), 0)
    # the mean falls as the tilt rises
    if tilted_mean(lowest_tilt) <= 0:
        tilt = lowest_tilt
    elif tilted_mean(highest_tilt) >= 0:
        tilt = highest_tilt
    else:
        tilt = brentq(tilted_mean, lowest_tilt, highest_tilt, xtol=1e-13)
    weights = shares / (1 + tilt * centred)
    remaining_weight = max(0.0, 1 - float(weights.sum()))
    weighted_bound = low if tilt > 0 else high
    return float(weights @ centred**2) + remaining_weight * weighted_bound**2


def _towards(end: float, inner: float) -> float:
    """A point just short of `end`, on the side of `inner`."""
    return end + (inner - end) * ROOT_GAP
