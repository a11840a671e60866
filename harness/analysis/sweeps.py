"""What a sweep of lengths says: whether accuracy moves with the filler at all, in which shape, and its best length.

Many arms are many chances to find something by luck. So one question is asked of all lengths of a filler together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from harness.analysis.outcomes import Outcomes, by_setting
from harness.analysis.tests import Floats, by_cluster, holm, score_interval, score_statistic
from harness.constants import ALPHA, FEWEST_LENGTHS

COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "filler": "the text that is repeated, or the kind of filler",
    "placement": "where it stands",
    "words": "what else the prompt has and the baseline's lacks",
    "lengths": "its numbers of tokens",
    "n": "problems",
    "difference": "mean over all lengths of the difference from the baseline, points",
    "low": "lower end of its score interval, points",
    "high": "upper end",
    "shape": "plateau, peak, or none (no trend found)",
    "p": "two-sided, of the likelier shape, as the larger of two statistics",
    "p_adjusted": "by Holm over the rows of the table",
    "best": "the length that is best on all problems, tokens",
}
"""Meaning of each column of `sweep_table`."""


def sweep_table(
    counted: Iterable[Outcomes], factors: Mapping[str, Mapping[str, Any]], *, baseline: str
) -> pandas.DataFrame:
    """A row for each filler, placement and other words that were run in three lengths or more, by model and layout.

    Args:
        counted: As `outcomes.count_outcomes` gives them, not split any further.
        factors: Of each condition, as of `Condition.factors`.
        baseline: What the lengths are compared with.
    """
    rows: list[dict[str, Any]] = []
    for setting, arms in by_setting(counted).items():
        shares = {name: one.right / one.samples for name, (one, *_) in arms.items()}
        for group, by_length in group_lengths(factors).items():
            there = [length for length, name in by_length.items() if length and name != baseline and name in arms]
            if baseline not in arms or len(there) < FEWEST_LENGTHS:
                continue
            clusters = arms[baseline][0].clusters
            each = [by_cluster(shares[by_length[length]] - shares[baseline], clusters) for length in there]
            changes, weights = np.column_stack([means for means, _ in each]), each[0][1]
            mean = changes.mean(axis=1)
            low, high = score_interval(mean, weights=weights)
            shape, p = trend(changes, weights)
            rows.append(
                {
                    **dict(setting),
                    **dict(zip(("filler", "placement", "words"), group, strict=True)),
                    "lengths": " ".join(map(str, there)),
                    "n": len(clusters),
                    "difference": 100 * float((weights * mean).mean()),
                    "low": 100 * low,
                    "high": 100 * high,
                    "shape": shape,
                    "p": p,
                    "best": there[int((weights @ changes).argmax())],
                }
            )
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_adjusted"] = float(adjusted)
        row["shape"] = row["shape"] if adjusted < ALPHA else "none"
    return pandas.DataFrame(rows, columns=list(COLUMNS))


def group_lengths(factors: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[int, str]]:
    """The conditions that differ in the length of their filler alone, by it, shortest first.

    Under 0 stands the condition without a filler that is like them otherwise, if there is one. A condition that states
    no number of tokens has no length, and is in no group.
    """
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for name, of in factors.items():
        if of["filler"] is not None and of["filler_tokens"]:
            key = (of["filler"], of["placement"], of["words"])
            found.setdefault(key, {}).setdefault(int(of["filler_tokens"]), name)
    without = {of["words"]: name for name, of in reversed(list(factors.items())) if of["filler"] is None}
    return {
        key: ({0: without[key[2]]} if key[2] in without else {}) | dict(sorted(lengths.items()))
        for key, lengths in found.items()
    }


def find_sweeps(factors: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str, str], dict[int, str]]:
    """The groups of `group_lengths` that have two lengths or more."""
    return {key: lengths for key, lengths in group_lengths(factors).items() if len(lengths.keys() - {0}) > 1}


def trend(changes: npt.ArrayLike, weights: npt.ArrayLike = 1.0) -> tuple[str, float]:
    """Test all lengths together against the baseline, in two shapes; return the likelier shape and its p-value.

    Use it in place of a test for each length: it asks one question, and its noise is averaged over the lengths.

    Args:
        changes: [problem, length] Differences in the share of right samples, the lengths in order.
        weights: [problem] Where these are clusters of problems: see `tests.by_cluster`.

    Returns:
        `plateau` or `peak`, and the two-sided p-value of the score test of its weighted mean, as the larger of two
        statistics that go together as these do.
    """
    values = np.asarray(changes, dtype=float)
    rise = np.minimum(np.arange(1, values.shape[1] + 1), np.arange(values.shape[1], 0, -1)).astype(float)
    shapes = {"plateau": np.full(len(rise), 1 / len(rise)), "peak": rise / rise.sum()}
    shaped = {name: values @ parts for name, parts in shapes.items()}
    found = {name: abs(score_statistic(one, 0.0, weights=weights)) for name, one in shaped.items()}
    shape = max(found, key=lambda name: found[name])
    return shape, _larger_of_two(found[shape], *(np.asarray(weights) * one for one in shaped.values()))


def _larger_of_two(statistic: float, first: Floats, second: Floats) -> float:
    """The chance that the larger of two normal statistics, correlated as these values are, lies so far from 0."""
    if not first.any() or not math.isfinite(statistic):
        return 1.0 if not first.any() else 0.0

    from scipy.stats import multivariate_normal  # longer to load than the rest of a table

    together = float(np.corrcoef(first, second)[0, 1])
    joint = multivariate_normal(cov=[[1, together], [together, 1]], allow_singular=True)
    inside = joint.cdf([statistic, statistic], lower_limit=[-statistic, -statistic])
    return float(min(1.0, max(0.0, 1 - inside)))
