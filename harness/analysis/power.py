"""Power: which differences a planned run can detect. It is no evidence about a run that was made."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import bdtr, ndtr, ndtri, stdtrit

from harness.analysis.tests import binomial_chances
from harness.constants import ALPHA, POWER
from harness.errors import ComparisonError


def detection_power(effect: float, *, n: int, k: int = 1, discordance: float, alpha: float = ALPHA) -> float:
    """Chance that a true difference in accuracy is found, in its own direction, by the test that `compare` uses.

    One sample a problem: exact, over every number of flips. Several samples: some problems are undecided, each of
    their samples a coin that the condition weights in one direction, and all others are settled; their share follows
    from discordance and effect. There the normal approximation to the sign-flip test is used, with half a step as
    continuity correction and with the covariance of a problem's difference and its square: problems that flip raise
    both the difference and the scale it is held against. Where a condition moves some problems up and others down,
    more samples help less than this says. If it moves whole problems, so that all samples of one say the same, they
    help nothing: ask for k = 1.

    Args:
        effect: True difference, as a share of the problems (0.02 is 2 points); its sign does not matter.
        n: Number of problems.
        k: Samples a problem in either condition.
        discordance: Share of the problems in which one sample of either condition, taken alone, would disagree.
        alpha: Significance level, two-sided; with Holm over m tests, alpha / m is the safe choice.

    Raises:
        ComparisonError: a discordance out of range, or below the effect.

    Source:
        k = 1: Duffy (1984), doi:10.2307/2531151. k > 1: Connor (1987), doi:10.2307/2531961, with the moments of a
        problem's mean difference in the place of the discordance, and the delta method: van der Vaart (1998),
        Asymptotic Statistics, chapter 3.
    """
    # samples of one problem that do not know of each other disagree at most half of the time
    most = 1 if k == 1 else 0.5
    size = abs(effect)
    if not (0 < discordance <= most and size <= discordance):
        least = f"at least the effect, {size:g}," if size else "above 0"
        raise ComparisonError(f"discordance: expected {least} and up to {most:g} with k = {k}, got {discordance:g}.")
    return _mcnemar_power(size, n, discordance, alpha) if k == 1 else _mean_power(size, n, k, discordance, alpha)


def minimal_detectable_effect(*, n: int, k: int = 1, discordance: float, alpha: float = ALPHA) -> float:
    """The least true difference, as a share of the problems, found 4 times in 5; NaN if even the greatest is not.

    Args and source: see `detection_power`.

    Raises:
        ComparisonError: a discordance out of range.
    """

    def lack(effect: float) -> float:
        return detection_power(effect, n=n, k=k, discordance=discordance, alpha=alpha) - POWER

    return float(brentq(lack, 0, discordance)) if lack(discordance) >= 0 else math.nan


def least_prompts(effect: float, *, n: int, k: int, discordance: float, spread: float) -> tuple[int | None, int]:
    """How many texts or instructions find a mean effect for new ones 4 times in 5, and how many problems that takes.

    All problems are asked with all prompts. The noise of the problems stays, however many prompts there are.

    Args:
        effect: The true mean, as a share of the problems.
        n: Number of problems.
        k: Samples of each.
        discordance: Share of the problems that a prompt changes.
        spread: Standard deviation of the true effect between prompts.

    Returns:
        The fewest prompts, None if no number is enough; and the fewest problems with which some number is.
    """
    enough = math.ceil(discordance / k * ((ndtri(1 - ALPHA / 2) + ndtri(POWER)) / effect) ** 2)
    for prompts in range(2, 1000):
        error = math.sqrt(spread**2 / prompts + discordance / (n * k))
        if effect >= error * (stdtrit(prompts - 1, 1 - ALPHA / 2) + stdtrit(prompts - 1, POWER)):
            return prompts, enough
    return None, enough


def difference_chances(effect: float, *, k: int, discordance: float) -> npt.NDArray[np.float64]:
    """Chance of each difference -k ... k in right samples of one problem, in the population of `detection_power`.

    An undecided problem's sample is right with chance 1/2 + h under the condition and 1/2 - h under the baseline, so
    its difference is a binomial of 2 k draws less k. The share of undecided problems and h give the effect and the
    discordance asked for.
    """
    undecided = discordance + math.sqrt(discordance**2 - effect**2)
    right = 0.5 + effect / (2 * undecided)
    chances = undecided * binomial_chances(2 * k, right)
    chances[k] += 1 - undecided
    return chances


def _mean_power(effect: float, n: int, k: int, discordance: float, alpha: float) -> float:
    """The test rejects if the mean exceeds z times the root of the mean square over n, by half a step more."""
    chances = difference_chances(effect, k=k, discordance=discordance)
    values = np.arange(-k, k + 1) / k
    mean, square = float(chances @ values), float(chances @ values**2)
    z = float(ndtri(1 - alpha / 2))
    distance = mean - z * math.sqrt(square / n) - 1 / (n * k)
    # the critical value moves with the mean square that is found: by this slope
    moved = values - z / (2 * math.sqrt(n * square)) * values**2
    error = math.sqrt(float(chances @ (moved - chances @ moved) ** 2) / n)
    return float(ndtr(distance / error)) if error else float(distance >= 0)


def _mcnemar_power(effect: float, n: int, discordance: float, alpha: float) -> float:
    """Over every number of flips: its chance, times the chance that so few go the wrong way that the test rejects."""
    chances = binomial_chances(n, discordance)
    against = (1 - effect / discordance) / 2
    power = 0.0
    for m in np.flatnonzero(chances > 1e-12).tolist():
        rejected = int((2 * bdtr(np.arange(m // 2 + 1), m, 0.5) <= alpha).sum())
        if rejected:
            power += float(chances[m] * bdtr(rejected - 1, m, against))
    return power
