"""What a sweep of lengths says: whether accuracy changes with the filler at all, and from its shortest to its longest.

Many arms are many chances to find something by luck. So one question is asked of all lengths of a filler together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas

from harness.analysis.count_correct import Outcomes, by_setting
from harness.analysis.paired_tests import Integers, PairedDifference, holm
from harness.analysis.pool_models import CrossedDifference, estimate_over_draws
from harness.experiment.conditions import Condition

FEWEST_LENGTHS = 3
"""Fewer lengths of a filler are no sweep."""

SWEEP_COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "filler": "the text that is repeated, or the kind of filler",
    "placement": "where it stands",
    "words": "what else the prompt has and the baseline's lacks",
    "lengths": "its numbers of tokens",
    "problems": "number of problems",
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
    counted: Iterable[Outcomes], conditions: Mapping[str, Condition], *, baseline: str
) -> pandas.DataFrame:
    """A row for each filler, placement and other words that were run in three lengths or more, by model and layout.

    Args:
        counted: As `count_correct.count_outcomes` gives them, not split any further.
        conditions: The config's, by name.
        baseline: What the lengths are compared with.
    """
    rows: list[dict[str, Any]] = []
    for setting, arms in by_setting(counted).items():
        for group, by_length in group_lengths(conditions).items():
            there = [
                length
                for length, name in by_length.items()
                if length and name != baseline and name in arms
            ]
            if baseline not in arms or len(there) < FEWEST_LENGTHS:
                continue
            old = arms[baseline][0]
            swept = [arms[by_length[length]][0] for length in there]
            changes = np.array(
                [old.by_draw(new.right_by_prompt - old.right_by_prompt) for new in swept]
            )
            mean, extremes = estimate_trend(
                changes, old.by_draw(old.samples_by_prompt), old.clusters
            )
            row = {
                **dict(setting),
                "filler": group.filler,
                "placement": group.placement,
                "words": group.words,
                "lengths": " ".join(map(str, there)),
                "problems": len(old.clusters),
                "p": min(1.0, 2 * min(mean.p, extremes.p)),
                "best": there[int(changes.sum(axis=(1, 2)).argmax())],
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
    return pandas.DataFrame(rows, columns=list(SWEEP_COLUMNS))


class SweptFiller(NamedTuple):
    """What all lengths of a filler have in common.

    Attributes:
        filler, placement, words: As of `Condition.describe`.
        content: `Condition.filler_content`: two texts of the user's own have the same description.
    """

    filler: str
    placement: str
    words: str
    content: tuple[object, ...]


def group_lengths(conditions: Mapping[str, Condition]) -> dict[SweptFiller, dict[int, str]]:
    """The conditions that differ in the length of their filler alone, by it, shortest first.

    Under 0 stands the condition without a filler that is like them otherwise, if there is one. A condition that states
    no number of tokens has no length, and is in no group.
    """
    groups: dict[SweptFiller, dict[int, str]] = {}
    without_filler: dict[str, str] = {}
    for name, condition in conditions.items():
        if condition.filler is None:
            without_filler.setdefault(condition.words, name)
        elif condition.filler_tokens:
            columns = condition.describe()
            filler = SweptFiller(
                columns["filler"], columns["placement"], condition.words, condition.filler_content
            )
            groups.setdefault(filler, {}).setdefault(condition.filler_tokens, name)
    for filler, lengths in groups.items():
        if filler.words in without_filler:
            lengths[0] = without_filler[filler.words]
        groups[filler] = dict(sorted(lengths.items()))
    return groups


def find_sweeps(conditions: Mapping[str, Condition]) -> dict[SweptFiller, dict[int, str]]:
    """The groups of `group_lengths` that have two lengths or more."""
    groups = group_lengths(conditions)
    return {filler: lengths for filler, lengths in groups.items() if len(lengths.keys() - {0}) > 1}


def estimate_trend(
    changes: Integers, samples: Integers, clusters: Integers
) -> tuple[PairedDifference | CrossedDifference, PairedDifference | CrossedDifference]:
    """The mean difference over all lengths from the baseline, and that of the longest length from the shortest.

    Two tests in place of one for each length: the smaller of the two p-values, doubled (Bonferroni), is the p-value of
    no change at any length. They see little of a curve that falls and rises again by as much.

    Args:
        changes: [length, draw, problem] Right samples less the baseline's, the lengths in order.
        samples: [draw, problem] Samples under either.
        clusters: As of `paired_tests.by_cluster`.
    """
    mean = estimate_over_draws(changes.sum(axis=0), samples * len(changes), clusters)
    return mean, estimate_over_draws(changes[-1] - changes[0], samples, clusters)
