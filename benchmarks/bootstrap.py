"""The clustered paired bootstrap interval, with which the calibration compares the score interval of the tables."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

DRAWS = 10_000
"""Bootstrap draws unless told otherwise."""
LONGEST = 200_000
"""Whole numbers whose sums can take more values than this are drawn like others."""


def bootstrap_interval(
    values: npt.ArrayLike, *, rng: np.random.Generator, level: float = 0.95, draws: int = DRAWS
) -> tuple[float, float]:
    """Percentile bootstrap interval, ends included, for the mean of `values` [problem], one value a problem.

    Problems are what is drawn, with all their samples, and differences are drawn rather than the two conditions: so
    the interval is clustered and paired. For whole numbers, such as changes in right samples, the distribution of a
    resample's sum is known exactly (`_sum_chances`), and one multinomial says how many of the draws had which sum; for
    others each draw gives the distinct values a multinomial count. Both are the law of drawing problems, faster.

    The ends are order statistics (quantiles by inverting the distribution), never between two of them. With few
    problems that differ this interval is too short, and with none it has length 0: `score_interval` has neither fault.

    Args:
        values: Each problem's value, in any unit.
        rng: Where the draws come from.
        level: Confidence level in (0, 1).
        draws: Number of resamples.

    Returns:
        Low and high end, in the unit of the values.

    Source:
        Efron (1979), doi:10.1214/aos/1176344552; percentile ends: Efron and Tibshirani (1993), An Introduction to
        the Bootstrap, section 13.3; resampling whole clusters: Field and Welsh (2007),
        doi:10.1111/j.1467-9868.2007.00593.x.
    """
    distinct, counts = np.unique(np.asarray(values, dtype=float), return_counts=True)
    n, tails = int(counts.sum()), np.array([(1 - level) / 2, (1 + level) / 2])
    if (distinct == np.rint(distinct)).all() and n * (distinct[-1] - distinct[0]) <= LONGEST:
        frequencies = rng.multinomial(draws, _sum_chances(distinct, counts))
        # the first sum that so many draws do not exceed; rounded, since 0.025 is not quite (1 - 0.95) / 2
        places = np.searchsorted(np.cumsum(frequencies), np.round(tails * draws, 6))
        low, high = n * distinct[0] + places
    else:
        sums = np.empty(draws)
        step = max(1, 4_000_000 // len(distinct))  # many distinct values must not cost many bytes
        for start in range(0, draws, step):
            part = sums[start : start + step]
            part[:] = rng.multinomial(n, counts / n, size=len(part)) @ distinct
        low, high = np.quantile(sums, tails, method="inverted_cdf")
    return float(low / n), float(high / n)


def _sum_chances(distinct: FloatArray, counts: IntArray) -> FloatArray:
    """Chance of each sum of n draws, n times the least value and up, by the n-th power of the Fourier transform."""
    n, span = int(counts.sum()), int(distinct[-1] - distinct[0])
    single = np.zeros(span + 1)
    single[(distinct - distinct[0]).astype(np.int64)] = counts / n
    length = n * span + 1
    chances = np.fft.irfft(np.fft.rfft(single, length) ** n, length)
    chances = np.maximum(chances, 0)  # rounding leaves some of the least at -1e-17
    return np.asarray(chances / chances.sum())
