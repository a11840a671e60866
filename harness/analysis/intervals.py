"""The score interval of a mean over problems, which keeps its level with few flips; and equivalence within a margin."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtri

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_INSIDE = 1e-12
"""How far from an end, relatively, a root is looked for: at the end itself a weight would be infinite."""


def score_interval(values: npt.ArrayLike, *, bounds: tuple[float, float], level: float = 0.95) -> tuple[float, float]:
    """Every mean that the score test of `score_statistic` does not reject, for `values` [problem] within `bounds`.

    For right or wrong (bounds 0 and 1) this is Wilson's interval, for differences of right or wrong (bounds -1 and 1)
    Tango's; for averages over k samples it is their construction on more possible values, which is ours. It needs no
    draws, has positive length even if no two problems differ, and never leaves the bounds.

    Args:
        values: Each problem's value.
        bounds: Least and greatest value that a problem can have.
        level: Confidence level in (0, 1).

    Returns:
        Low and high end, in the unit of the values.

    Source:
        Wilson (1927), doi:10.1080/01621459.1927.10502953; Tango (1998), Statistics in Medicine 17:891-908,
        doi:10.1002/(SICI)1097-0258(19980430)17:8<891::AID-SIM780>3.0.CO;2-B; recommended for paired proportions by
        Fagerland, Lydersen and Laake (2014), doi:10.1002/sim.6148.
    """
    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    critical = float(ndtri((1 + level) / 2))
    mean = float(distinct @ counts / counts.sum())
    ends = [
        outer
        if abs(mean - outer) < _INSIDE
        else brentq(lambda at: abs(_statistic(distinct, counts, at, bounds)) - critical, mean, _towards(outer, mean))
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
    where the interval alone leaves 0 out: it is then drawn out to 0. Where the test is passed and the interval alone
    would reach 0, it ends there, and 0 is out. Each still holds its true difference as often as before the tests were
    adjusted; that all hold theirs at once is not promised.

    Source:
        Intervals of stepwise tests: Strassburger and Bretz (2008), doi:10.1002/sim.3338, whose promise is stronger.
    """
    low, high = ends
    if not passed:
        return min(low, 0.0), max(high, 0.0)
    least = math.nextafter(0, 1)  # an end that is not 0, though it is printed so
    return (max(low, least), high) if difference > 0 else (low, min(high, -least))


def score_statistic(values: npt.ArrayLike, mean: float, *, bounds: tuple[float, float]) -> float:
    """How many standard errors the mean of `values` [problem] lies above `mean`, if `mean` were the true one.

    The standard error is the one under that hypothesis: the variance of the likeliest distribution on the values
    within `bounds` that has this mean. Under it the statistic is about standard normal.

    Source:
        As `score_interval`; the likeliest distribution with a given mean: Owen (1988), doi:10.1093/biomet/75.2.237,
        here with the bounds as further possible values.
    """
    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    return _statistic(distinct, counts, mean, bounds)


def _statistic(distinct: FloatArray, counts: IntArray, mean: float, bounds: tuple[float, float]) -> float:
    n = int(counts.sum())
    difference = float(distinct @ counts) / n - mean
    if difference == 0:
        return 0.0
    variance = _variance(distinct, counts / n, mean, bounds)
    return math.copysign(math.inf, difference) if variance <= 0 else difference / math.sqrt(variance / n)


def _variance(distinct: FloatArray, shares: FloatArray, mean: float, bounds: tuple[float, float]) -> float:
    """Variance of the likeliest distribution with this mean on the values within bounds.

    Its weights are shares / (1 + tilt * (value - mean)); the tilt is where their mean is right. A bound that no
    problem reached takes what weight is left if even the strongest tilt does not get there.
    """
    low, high = bounds
    if not low < mean < high:
        return 0.0
    centred = distinct - mean

    def excess(tilt: float) -> float:
        return float((shares * centred / (1 + tilt * centred)).sum())

    weakest, strongest = _towards(-1 / (high - mean), 0), _towards(1 / (mean - low), 0)
    if excess(weakest) <= 0:
        tilt = weakest
    elif excess(strongest) >= 0:
        tilt = strongest
    else:
        tilt = brentq(excess, weakest, strongest, xtol=1e-13)
    weights = shares / (1 + tilt * centred)
    left = max(0.0, 1 - float(weights.sum()))
    bound = low if tilt > 0 else high
    return float(weights @ centred**2) + left * (bound - mean) ** 2


def _towards(end: float, inner: float) -> float:
    """A point just short of `end`, seen from `inner`."""
    return end + (inner - end) * _INSIDE
