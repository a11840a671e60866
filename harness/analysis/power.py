"""Power: which differences a planned run can detect. It says nothing about a finished run."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtri, stdtrit

from harness.analysis.crossed_effects import PROMPT_VARIANCE_THRESHOLD
from harness.constants import ALPHA, DEFAULT_SEED, POWER
from harness.errors import ComparisonError

SIMULATED_RUN_COUNT = 4_000
"""Simulated runs of a plan: the power then has a standard error of at most 0.8 percent."""
EFFECT_HALVING_COUNT = 12
"""Halvings of the range of effects: far finer than the precision of the simulated runs."""


@dataclass(frozen=True, kw_only=True)
class PlannedComparison:
    """A planned comparison of a condition with the baseline.

    Attributes:
        problem_count: Number of problems, or of clusters that count as one problem each.
        discordance: Share of the problems in which one sample of either condition, taken alone,
            would disagree.
        repeats: Samples of a problem in either condition.
        alpha: Significance level, two-sided; with Holm over m tests, alpha / m is the safe choice.
        prompts: Prompts of each condition: texts, instructions or draws of examples.
        spread: Standard deviation of the true difference between prompts.
    """

    problem_count: int
    discordance: float
    repeats: int = 1
    alpha: float = ALPHA
    prompts: int = 1
    spread: float = 0.0


def detection_power(effect: float, **options: Any) -> float:
    """Share of simulated runs of a plan in which a true difference is found, in its direction.

    Some problems are undecided: each of their samples is a coin whose chances the condition shifts
    in one direction. All other problems are settled. With one prompt the test is the sign-flip
    test, in its normal approximation with continuity correction. With several prompts (texts,
    instructions or draws of examples) it is the test for new prompts. All prompts are asked about
    the same problems, so the noise of the problems is taken to be equal under each: further prompts
    do not reduce it. If a condition changes some problems up and others down, further samples help
    less than this result says.

    Args:
        effect: True difference, as a share of the problems (0.02 is 2 points); its sign does not
            matter.
        options: The fields of `PlannedComparison`.

    Raises:
        ComparisonError: the discordance is out of range, or below the effect.
    """
    effect_size = abs(effect)
    plan = PlannedComparison(**options)
    # independent samples of one problem disagree at most half of the time
    most_discordance = 1 if plan.repeats == 1 else 0.5
    if not (0 < plan.discordance <= most_discordance and effect_size <= plan.discordance):
        lower_limit_text = f"at least the effect, {effect_size:g}," if effect_size else "above 0"
        raise ComparisonError(
            f"discordance: expected {lower_limit_text} and up to {most_discordance:g} with "
            f"repeats = {plan.repeats}, got {plan.discordance:g}."
        )
    if plan.prompts > 1:
        return _power_over_prompts(effect_size, plan)
    return _power_of_one_prompt(effect_size, plan)


def _power_over_prompts(effect_size: float, plan: PlannedComparison) -> float:
    """The power of the test for new prompts."""
    generator = np.random.default_rng(DEFAULT_SEED)
    effects = generator.normal(effect_size, plan.spread, size=(SIMULATED_RUN_COUNT, plan.prompts))
    prompt_variance = effects.var(axis=1, ddof=1) / plan.prompts
    # the same problems are asked under every prompt, so further prompts do not reduce this variance
    problem_variance = plan.discordance / (plan.problem_count * plan.repeats)
    problem_noise = generator.normal(0, math.sqrt(problem_variance), size=SIMULATED_RUN_COUNT)
    variance = prompt_variance + problem_variance
    # Satterthwaite's degrees of freedom. If the variance due to prompts is not small, they are at
    # most the number of prompts less one, as in the analysis of a run.
    degrees_of_freedom = variance**2 / (
        prompt_variance**2 / (plan.prompts - 1)
        + problem_variance**2 / max(1, plan.problem_count - 1)
    )
    is_limited = prompt_variance > PROMPT_VARIANCE_THRESHOLD * problem_variance
    degrees_of_freedom[is_limited] = np.minimum(degrees_of_freedom[is_limited], plan.prompts - 1)
    critical_differences = stdtrit(degrees_of_freedom, 1 - plan.alpha / 2) * np.sqrt(variance)
    return float((effects.mean(axis=1) + problem_noise > critical_differences).mean())


def _power_of_one_prompt(effect_size: float, plan: PlannedComparison) -> float:
    """The power of the sign-flip test.

    A sample of an undecided problem is right with chance 1/2 + h under the condition and 1/2 - h
    under the baseline, so the problem's change is a binomial number of 2 `repeats` trials less
    `repeats`. The effect and the discordance determine h and the share of undecided problems.
    """
    repeats = plan.repeats
    # With u as the share of undecided problems: effect = 2 h u. One sample of either condition
    # disagrees with chance (1/2 + h)^2 + (1/2 - h)^2, so discordance = u (1/2 + 2 h^2). Without h
    # this is u^2 - 2 discordance u + effect^2 = 0.
    undecided_share = plan.discordance + math.sqrt(plan.discordance**2 - effect_size**2)
    chance_right = 0.5 + effect_size / (2 * undecided_share)
    success_counts = np.arange(2 * repeats + 1)
    # success_shares[c]: the share of problems with c successes
    success_shares = undecided_share * np.diff(
        bdtr(success_counts, 2 * repeats, chance_right), prepend=0
    )
    # a settled problem has a change of 0, as an undecided one with `repeats` successes has
    success_shares[repeats] += 1 - undecided_share
    # rounding errors of the sum would be refused by `multinomial`
    success_shares /= success_shares.sum()
    # problem_counts[run, c]: the number of problems with c successes, which are all alike
    problem_counts = np.random.default_rng(DEFAULT_SEED).multinomial(
        plan.problem_count, success_shares, size=SIMULATED_RUN_COUNT
    )
    changes = success_counts - repeats
    critical_sums = ndtri(1 - plan.alpha / 2) * np.sqrt(problem_counts @ changes**2)
    # the continuity correction: sums of changes are integers
    return float((problem_counts @ changes - 1 > critical_sums).mean())


def minimal_detectable_effect(**options: Any) -> float:
    """The least true difference that is found with a power of 80 percent, as a share of problems.

    Args:
        options: The fields of `PlannedComparison`, as in `detection_power`.

    Returns:
        NaN if even the greatest possible difference has less power.

    Raises:
        ComparisonError: see `detection_power`.
    """
    low_effect = 0.0
    high_effect = PlannedComparison(**options).discordance
    if detection_power(high_effect, **options) < POWER:
        return math.nan
    for _ in range(EFFECT_HALVING_COUNT):
        middle_effect = (low_effect + high_effect) / 2
        if detection_power(middle_effect, **options) >= POWER:
            high_effect = middle_effect
        else:
            low_effect = middle_effect
    return float(high_effect)
