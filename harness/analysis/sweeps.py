"""What a sweep of lengths says: whether accuracy moves with the filler at all, how far, and towards which end.

Many arms are many chances to find something by luck. So one question is asked of all lengths of a filler together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from harness.analysis.outcomes import Outcomes, by_setting
from harness.analysis.tests import Integers, by_cluster, holm, paired_test, score_interval
from harness.constants import FEWEST_LENGTHS

SWEEP_COLUMNS = {
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
    "slope": "from the shortest length to the longest, points, on the straight line along their order",
    "slope_low": "lower end of its score interval, points",
    "slope_high": "upper end",
    "p": "two-sided, that mean or slope is not 0",
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
            row = {
                **dict(setting),
                **dict(zip(("filler", "placement", "words"), group, strict=True)),
                "lengths": " ".join(map(str, there)),
                "n": len(old.clusters),
                "p": trend(changes, old.k, old.clusters),
                "best": there[int(changes.sum(axis=0).argmax())],
            }
            ones, ranks = _contrasts(len(there))
            reach = 2 * ranks.max() * np.abs(ranks).sum() / (ranks @ ranks)  # of the line, where all move as it does
            for name, prefix, weights, unit in (("difference", "", ones, 1.0), ("slope", "slope_", ranks, reach)):
                moved = changes @ weights / (old.k * np.abs(weights).sum())  # at most 1
                means, sizes = by_cluster(moved, old.clusters)
                low, high = score_interval(means, weights=sizes)
                found = {name: float(moved.mean()), f"{prefix}low": low, f"{prefix}high": high}
                row |= {key: 100 * unit * value for key, value in found.items()}
            rows.append(row)
    for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_adjusted"] = float(adjusted)
    return pandas.DataFrame(rows, columns=list(SWEEP_COLUMNS))


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


def trend(changes: npt.ArrayLike, k: int, clusters: Integers | None = None) -> float:
    """Test all lengths together against the baseline: two-sided p that neither their mean nor their slope is 0.

    Use it in place of a test for each length: it asks one question, and its noise is averaged over the lengths. It
    sees little of a curve that goes down and up again by as much, whose mean and slope are 0.

    Args:
        changes: [problem, length] Right samples less the baseline's, the lengths in order.
        k: Samples a problem.
        clusters: As of `tests.by_cluster`; by default each problem is one.

    Source:
        The smaller of two p-values of `tests.paired_test`, doubled: Bonferroni.
    """
    values = np.asarray(changes, dtype=np.int64)
    tests = []
    for weights in _contrasts(values.shape[1]):
        most = k * int(np.abs(weights).sum())
        tests.append(paired_test(values @ weights, most, rng=np.random.default_rng(0), clusters=clusters))
    return min(1.0, 2 * min(tests))


def _contrasts(lengths: int) -> tuple[Integers, Integers]:
    """Whole weights [length] of the mean over so many lengths, and of the slope along their order."""
    return np.ones(lengths, dtype=np.int64), 2 * np.arange(lengths) - (lengths - 1)
