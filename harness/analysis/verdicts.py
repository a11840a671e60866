"""Verdicts on differences: p-values adjusted for all tests, and why equivalence cannot be shown.

Each printed table of a growing run is a look at it, and each look can find an effect by chance. A
positive control is a condition that must lower accuracy: where it is not detected, the absence of
another effect means nothing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import ndtri

from harness.analysis.paired_tests import holm
from harness.constants import (
    ALPHA,
    BETTER_OR_WORSE,
    HIGHER_OR_LOWER,
    POWER,
    SIGNIFICANT_VERDICTS,
    Row,
)
from harness.experiment.conditions import POSITIVE_CONTROL, ReferenceConditions

FEWEST_CLUSTERS_OF_NUMBERS = 50
"""Log-probabilities and other numbers of fewer clusters are not tested. The sign-flip test needs
gains and losses of a size to be equally likely; where log-probabilities are skewed, it finds an
effect by mistake in up to 36 percent of runs of 15 problems and 10 percent of 50 (`python -m
benchmarks.nats_calibration`)."""
LEAST_GRADED_SHARE = 0.5
"""If a smaller share of a condition's samples has a graded answer, the absence of an effect means
nothing."""

AT_CHANCE_REASON_START = "no condition's interval of gold answers that come first lies above"
"""The beginning of a reason that no significant test overrides: such a model does not know which
answer is right."""


def judge(rows: Sequence[Row], *, primary: str | None) -> None:
    """Add the columns tests, p_adjusted, verdict and by_format to the tested rows.

    The chance that a table calls any difference better or worse by mistake is at most alpha.
    Without a primary contrast all tests share alpha. With a primary contrast, all pairs of a model
    and a layout have equal shares. In each pair the primary contrast is tested first, with the full
    share. The others are tested only if it is significant. Of a run that grew after its table was
    printed, look j has the share 1 / j. So the chance of an error at any of n looks is at most
    alpha (1 + 1/2 + ... + 1/n), and in simulations little more than alpha: docs/statistics.md.

    Args:
        rows: All rows of a table.
        primary: The entry in the column `condition` of the primary contrast, if there is one.

    Source:
        Serial gatekeeping: Westfall and Krishen (2001), doi:10.1016/S0378-3758(01)00077-5; shares:
        Bonferroni.
    """
    rows_by_family: dict[Any, list[Row]] = {}
    for row in rows:
        if row["role"] == "tested":
            family_key = (row["model"], row["layout"]) if primary else None
            rows_by_family.setdefault(family_key, []).append(row)
    family_count = len(rows_by_family)
    for family_rows in rows_by_family.values():
        primary_rows = [row for row in family_rows if row["condition"] == primary]
        _add_verdicts(primary_rows, family_count, least_p=0.0)
        largest_primary_p = max((row["p_adjusted"] for row in primary_rows), default=0.0)
        secondary_rows = [row for row in family_rows if row["condition"] != primary]
        _add_verdicts(secondary_rows, family_count, least_p=largest_primary_p)


def _add_verdicts(tested_rows: Sequence[Row], family_count: int, *, least_p: float) -> None:
    """Add the columns of `judge` to rows of one family, which share alpha / `family_count`.

    Within a family p is adjusted by Holm. Families have equal shares of alpha (Bonferroni), because
    each family can give a false result. Look j at a growing run counts as one of j tests, so its
    p-value is multiplied by j. No adjusted p-value is below `least_p`.
    """
    look_counts = np.array([row.get("looks", 1) for row in tested_rows])
    holm_p_values = holm([row["p"] for row in tested_rows])
    adjusted_p_values = np.maximum(
        least_p, np.minimum(1, family_count * look_counts * holm_p_values)
    )
    for row, p_adjusted in zip(tested_rows, adjusted_p_values.tolist(), strict=True):
        verdict = _choose_verdict(row, is_significant=p_adjusted < ALPHA)
        row |= {
            "tests": family_count * len(tested_rows),
            "p_adjusted": p_adjusted,
            "verdict": verdict,
            # the format may explain a difference if, among answered samples, less than half of it
            # remains and its interval contains 0
            "by_format": verdict in SIGNIFICANT_VERDICTS
            and 2 * abs(row["answered_difference"]) < abs(row["difference"])
            and row["answered_low"] <= 0 <= row["answered_high"],
        }


def _choose_verdict(row: Row, *, is_significant: bool) -> str:
    """The verdict on a tested row.

    A model at chance is always unmeasured. Any other reason why equivalence cannot be shown counts
    only if the difference is not significant.
    """
    reason = row.get("unmeasured")
    if reason and (reason.startswith(AT_CHANCE_REASON_START) or not is_significant):
        return "unmeasured"
    if not is_significant:
        return "equivalent" if row["within_margin"] else "inconclusive"
    rise_verdict, fall_verdict = (
        HIGHER_OR_LOWER if row.get("is_direction_unknown") else BETTER_OR_WORSE
    )
    return rise_verdict if row["difference"] > 0 else fall_verdict


def explain_unmeasured(
    row: Row,
    rows: Sequence[Row],
    reference_conditions: ReferenceConditions,
    chance_percent: float | None,
) -> str | None:
    """Why a row of a setting's `rows` could not have shown equivalence; None if it could.

    `chance_percent` is the percentage of right problems by chance, if the score is `gold_first`.
    """
    if "difference" not in row:
        return None
    if chance_percent and all(
        setting_row["accuracy_low"] <= chance_percent for setting_row in rows
    ):
        return f"{AT_CHANCE_REASON_START} {chance_percent:.3g} %"
    if math.isnan(row["p"]):
        return f"numbers of fewer than {FEWEST_CLUSTERS_OF_NUMBERS} clusters are not tested"
    pair_rows = [
        setting_row
        for setting_row in rows
        if setting_row["condition"] in (row["condition"], row["baseline"])
    ]
    if min(pair_row["graded"] for pair_row in pair_rows) < 100 * LEAST_GRADED_SHARE:
        return "fewer than half of the samples of one condition have a graded answer"
    # a score interval ends at 0 or 100 only if no sample, or every sample, is right
    for end_column, percent in (("accuracy_low", 0), ("accuracy_high", 100)):
        if all(pair_row[end_column] == percent for pair_row in pair_rows):
            return f"both accuracies are {percent} %"
    for setting_row in rows:
        reference_fields = reference_conditions.get(setting_row["condition"], {})
        is_control = reference_fields.get("kind") == POSITIVE_CONTROL
        # a run that misses the known loss of this control may also miss the effect of a filler
        if is_control and (setting_row["p"] >= ALPHA or setting_row["difference"] > 0):
            return "the positive control was not detected"
    return None


def estimate_sample(
    row: Mapping[str, Any], margin: float, problem_count: int, *, side_count: int
) -> int:
    """About how large a sample would show that a true difference of 0 is within a margin.

    An interval of half length h has a standard error of h / z(1 - ALPHA / 2), where z is the normal
    quantile. A test at level a succeeds with a chance of 1 - b if its margin is z(1 - a) + z(1 - b)
    standard errors. So this sample makes the standard error as small as the margin demands.

    Args:
        row: A row of the comparison.
        margin: In points, or in nats.
        problem_count: The number of problems, or of clusters, in this comparison.
        side_count: 1 to show that nothing more is lost, at ALPHA / 2; 2 for equivalence, at ALPHA.
    """
    # equivalence can be missed on either side, so each side has half of the chance
    alpha, miss_chance = (ALPHA / 2, 1 - POWER) if side_count == 1 else (ALPHA, (1 - POWER) / 2)
    quantile_ratio: float = -(ndtri(alpha) + ndtri(miss_chance)) / ndtri(1 - ALPHA / 2)
    half_length: float = (row["high"] - row["low"]) / 2
    # squared, because the length of an interval falls with the root of the number of problems
    return math.ceil(problem_count * (quantile_ratio * half_length / margin) ** 2)
