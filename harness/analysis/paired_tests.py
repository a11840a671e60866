"""Tests of a paired difference: exact McNemar for one sample per problem, sign flips and scores for several; flips."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, gammaln, ndtr, xlog1py, xlogy

from harness.analysis.intervals import difference_bounds, score_statistic

IntArray = npt.NDArray[np.int64]

DRAWS = 100_000
"""Number of random sign flips where the exact distribution would be too long."""
EXACT_UP_TO = 20_000
"""The exact distribution is used if all differences add up to at most this many samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flips:
    """How often two conditions disagree over the same n problems, a sample of one against a sample of the other.

    With one sample a problem these are counts of problems. With k samples they are averages over the k * k ways of
    taking one sample of either side, so that they mean the same; `wrong_to_right` less `right_to_wrong` is always
    n times the difference in accuracy.

    Attributes:
        wrong_to_right: Problems that the baseline gets wrong and the other condition right.
        right_to_wrong: The reverse.
        discordance: Both together as a share of the problems.
    """

    wrong_to_right: float
    right_to_wrong: float
    discordance: float


def count_flips(before: npt.ArrayLike, after: npt.ArrayLike, *, k: int = 1) -> Flips:
    """Flips between two counts of right samples out of k, [problem] each.

    Source:
        The off-diagonal cells of McNemar (1947), doi:10.1007/BF02295996, averaged over the choice of samples.
    """
    old, new = np.asarray(before) / k, np.asarray(after) / k
    gained, lost = float(((1 - old) * new).sum()), float((old * (1 - new)).sum())
    return Flips(wrong_to_right=gained, right_to_wrong=lost, discordance=(gained + lost) / len(old))


def paired_test(changes: npt.ArrayLike, k: int, *, rng: np.random.Generator) -> float:
    """Two-sided p-value of a difference between two conditions: the test of every table.

    With one sample a problem it is `mcnemar_test`. With several it is the larger of two p-values, because each errs
    where the other holds: `sign_flip_test` takes a gain and a loss of one size for equally likely, and errs in 6 of 100
    where few problems gain much and many lose a little (1 % of 200 problems, k = 20; the larger p: 5 of 100); the score
    test, which `score_interval` inverts, needs more than a handful of changes.

    Args:
        changes: Right samples under a condition less those under the baseline, one number a problem.
        k: Samples a problem under either.
        rng: Where random sign patterns come from, if they are needed.
    """
    numbers = np.asarray(changes, dtype=np.int64)
    if k == 1:
        return mcnemar_test(int((numbers > 0).sum()), int((numbers < 0).sum()))
    score = score_statistic(numbers / k, 0, bounds=difference_bounds(numbers, k))
    return max(sign_flip_test(numbers, rng=rng), 2 * float(ndtr(-abs(score))))


def mcnemar_test(wrong_to_right: int, right_to_wrong: int) -> float:
    """Two-sided exact p-value that flips go either way equally often; 1 without flips.

    Source:
        McNemar (1947), doi:10.1007/BF02295996, in its exact binomial form: Fagerland, Lydersen and Laake (2013),
        doi:10.1186/1471-2288-13-91, who also show that it is conservative.
    """
    flips = wrong_to_right + right_to_wrong
    return min(1.0, 2 * float(bdtr(min(wrong_to_right, right_to_wrong), flips, 0.5))) if flips else 1.0


def sign_flip_test(
    differences: npt.ArrayLike, *, rng: np.random.Generator, draws: int = DRAWS, exact_up_to: int = EXACT_UP_TO
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


def binomial_chances(draws: int, chance: float) -> npt.NDArray[np.float64]:
    """Chance of each number 0 ... draws of successes; scipy.stats has it too, but takes longer to load than a table."""
    hits = np.arange(draws + 1)
    log_ways = gammaln(draws + 1) - gammaln(hits + 1) - gammaln(draws - hits + 1)
    return np.asarray(np.exp(log_ways + xlogy(hits, chance) + xlog1py(draws - hits, -chance)))


def _positive_sum(sizes: IntArray, counts: IntArray) -> npt.NDArray[np.float64]:
    """Probability of each sum [0 ... total] of the sizes that get a plus, each by a fair coin."""
    chances: npt.NDArray[np.float64] = np.ones(1)
    for size, count in zip(sizes.tolist(), counts.tolist(), strict=True):
        spread = np.zeros(size * count + 1)
        spread[::size] = binomial_chances(count, 0.5)
        chances = np.convolve(chances, spread).astype(np.float64, copy=False)
    return chances
