"""What a sweep of lengths says: whether accuracy changes with the filler at all, and from its shortest to its longest.

Many arms are many chances to find something by luck. So one question is asked of all lengths of a filler together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from harness.analysis.outcomes import Outcomes, by_setting
from harness.analysis.tests import Integers, PairedDifference, estimate_difference, holm

FEWEST_LENGTHS = 3
"""Fewer lengths of a filler are no sweep."""

COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "filler": "the text that is repeated, or the kind of filler",
    "placement": "where it stands",
    "words": "what else the prompt has and the baseline's lacks",
    "lengths": "its numbers of tokens",
    "n": "problems",
    "difference": "mean over all lengths of the difference from the baseline, points",
    "low": "lower end of its 95 % interval, points",
    "high": "upper end",
    "longest_less_shortest": "accuracy with the longest filler less accuracy with the shortest, points",
    "longest_low": "lower end of its 95 % interval, points",
    "longest_high": "upper end",
    "p": "two-sided, of both being 0",
    "p_adjusted": "by Holm over the rows of the table",
    "best": "the length that is best on all problems, tokens; it was not tested",
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
        for group, by_length in group_lengths(factors).items():
            there = [length for length, name in by_length.items() if length and name != baseline and name in arms]
            if baseline not in arms or len(there) < FEWEST_LENGTHS:
                continue
            old = arms[baseline][0]
            changes = np.column_stack([arms[by_length[length]][0].right - old.right for length in there])
            mean, extremes = estimate_trend(changes, old.k, old.clusters)
            row = {
                **dict(setting),
                **dict(zip(("filler", "placement", "words"), group, strict=True)),
                "lengths": " ".join(map(str, there)),
                "n": len(old.clusters),
                "p": min(1.0, 2 * min(mean.p, extremes.p)),
                "best": there[int(changes.sum(axis=0).argmax())],
            }
            for difference, names in (
                (mean, ("difference", "low", "high")),
                (extremes, ("longest_less_shortest", "longest_low", "longest_high")),
            ):
                values = (difference.difference, *difference.interval())
                row |= {name: 100 * value for name, value in zip(names, values, strict=True)}
            rows.append(row)
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_adjusted"] = float(adjusted)
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


def estimate_trend(
    changes: npt.ArrayLike, k: int, clusters: Integers | None = None
) -> tuple[PairedDifference, PairedDifference]:
    """The mean difference over all lengths from the baseline, and that of the longest length from the shortest.

    Two tests in place of one for each length: the smaller of the two p-values, doubled (Bonferroni), is the p-value of
    no change at any length. They see little of a curve that falls and rises again by as much.

    Args:
        changes: [problem, length] Right samples less the baseline's, the lengths in order.
        k: Samples a problem.
        clusters: As of `tests.by_cluster`; by default each problem is one.
    """
    values = np.asarray(changes, dtype=np.int64)
    mean = estimate_difference(values.sum(axis=1), k * values.shape[1], clusters=clusters)
    return mean, estimate_difference(values[:, -1] - values[:, 0], k, clusters=clusters)
