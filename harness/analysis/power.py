"""Power: which differences a planned run can detect. It is no evidence about a run that was made."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtr, ndtri, stdtrit

from harness.analysis.pool_models import MODELS_HEEDED
from harness.constants import ALPHA, DEFAULT_SEED, POWER
from harness.errors import ComparisonError

SIMULATED_RUNS = 4_000
"""Of a plan: the power then has a standard error of at most 0.8 percent."""
EFFECT_STEPS = 12
"""Halvings of the range of effects: far finer than what the simulated runs tell apart."""


def detection_power(
    effect: float,
    *,
    n: int,
    k: int = 1,
    discordance: float,
    alpha: float = ALPHA,
    prompts: int = 1,
    spread: float = 0.0,
) -> float:
    """Share of simulated runs of a plan in which a true difference is found, in its own direction.

    Some problems are undecided: each of their samples is a coin that the condition weights in one
    direction. All others are settled. With one prompt the test is the sign-flip test, in its normal
    approximation with continuity correction. With several (texts, instructions or draws of
    examples) it is the test for new prompts, whose effects scatter. They are asked about the same
    problems, so the problems' noise is taken to be the same under each: then it stays, however many
    prompts there are. Where a condition moves some problems up and others down, more samples help
    less than this says.

    Args:
        effect: True difference, as a share of the problems (0.02 is 2 points); its sign does not
            matter.
        n: Number of problems, or of clusters that count as one problem each.
        k: Samples a problem in either condition.
        discordance: Share of the problems in which one sample of either condition, taken alone,
            would disagree.
        alpha: Significance level, two-sided; with Holm over m tests, alpha / m is the safe choice.
        prompts: Prompts of each condition: texts, instructions or draws of examples.
        spread: Standard deviation of the true difference between prompts.

    Raises:
        ComparisonError: a discordance out of range, or below the effect.
    """
    size = abs(effect)
    # samples of one problem that do not know of each other disagree at most half of the time
    most = 1 if k == 1 else 0.5
    if not (0 < discordance <= most and size <= discordance):
        least = f"at least the effect, {size:g}," if size else "above 0"
        raise ComparisonError(
            f"discordance: expected {least} and up to {most:g} with k = {k}, got {discordance:g}."
        )
    rng = np.random.default_rng(DEFAULT_SEED)
    if prompts > 1:
        effects = rng.normal(size, spread, size=(SIMULATED_RUNS, prompts))
        of_prompts, of_problems = effects.var(axis=1, ddof=1) / prompts, discordance / (n * k)
        means = effects.mean(axis=1) + rng.normal(0, math.sqrt(of_problems), size=SIMULATED_RUNS)
        variance = of_prompts + of_problems
        # the degrees of freedom of `pool_models.crossed_error`
        freedom = variance**2 / (of_prompts**2 / (prompts - 1) + of_problems**2 / max(1, n - 1))
        freedom = np.where(
            of_prompts > MODELS_HEEDED * of_problems, np.minimum(freedom, prompts - 1), freedom
        )
        return float((means > stdtrit(freedom, 1 - alpha / 2) * np.sqrt(variance)).mean())
    # a sample of an undecided problem is right with chance 1/2 + h under the condition and 1/2 - h
    # under the baseline, so its difference is a binomial of 2 k draws less k; their share and h
    # give the effect and the discordance
    undecided = discordance + math.sqrt(discordance**2 - size**2)
    right = 0.5 + size / (2 * undecided)
    chances = undecided * np.diff(bdtr(np.arange(2 * k + 1), 2 * k, right), prepend=0)
    chances[k] += 1 - undecided
    problems = rng.multinomial(n, chances / chances.sum(), size=SIMULATED_RUNS)
    changes = np.arange(-k, k + 1)
    scale = np.sqrt(problems @ changes**2)
    return float((problems @ changes - 1 > ndtri(1 - alpha / 2) * scale).mean())


def minimal_detectable_effect(
    *,
    n: int,
    k: int = 1,
    discordance: float,
    alpha: float = ALPHA,
    prompts: int = 1,
    spread: float = 0.0,
) -> float:
    """The least true difference, as a share of the problems, found 4 times in 5; NaN if even the greatest is not.

    Args and Raises: see `detection_power`.
    """

    def is_found(effect: float) -> bool:
        power = detection_power(
            effect, n=n, k=k, discordance=discordance, alpha=alpha, prompts=prompts, spread=spread
        )
        return power >= POWER

    low, high = 0.0, discordance
    if not is_found(high):
        return math.nan
    for _ in range(EFFECT_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high
