"""Sweeps of filler lengths: does accuracy change, and from the shortest to the longest?

A test of each length would find differences by chance. So all lengths of a filler are tested
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas

from harness.analysis.count_correct import OutcomesByCondition, Row, Setting
from harness.analysis.crossed_effects import Difference, estimate_over_draws, to_points
from harness.analysis.paired_tests import Integers, holm
from harness.experiment.conditions import Condition

FEWEST_LENGTHS = 3
"""Fewer lengths of a filler are no sweep."""

SWEEP_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "filler": "the repeated text, or the kind of filler",
    "placement": "the filler's placement",
    "words": "the condition's template, question, instruction or answer prefix",
    "lengths": "numbers of tokens of the filler",
    "problems": "number of problems",
    "difference": "mean difference over all lengths",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "longest_less_shortest": "accuracy with the longest filler minus that with the shortest",
    "longest_low": "lower end of its 95 % interval",
    "longest_high": "upper end",
    "p": "p-value of both differences being 0",
    "p_adjusted": "p after Holm over the rows of the table",
}
"""Meaning of each column of `sweep_table`."""


def sweep_table(
    by_setting: Mapping[Setting, OutcomesByCondition],
    conditions: Mapping[str, Condition],
    *,
    baseline: str,
) -> pandas.DataFrame:
    """A row for each filler, placement and other text with three lengths or more.

    Args:
        by_setting: From `count_correct.group_by_setting`, split by model and layout alone.
        conditions: The conditions of the config, by name.
        baseline: The condition that all lengths are compared with.
    """
    fillers = group_lengths(conditions)
    rows: list[Row] = []
    for setting, by_condition in by_setting.items():
        for filler, condition_by_length in fillers.items():
            by_length = {
                length: name
                for length, name in condition_by_length.items()
                if length and name != baseline and name in by_condition
            }
            if baseline in by_condition and len(by_length) >= FEWEST_LENGTHS:
                rows.append(
                    {**dict(setting), **_compare_lengths(filler, by_length, by_condition, baseline)}
                )
    for row, p in zip(rows, holm([row["p"] for row in rows]).tolist(), strict=True):
        row["p_adjusted"] = p
    return pandas.DataFrame(rows, columns=list(SWEEP_COLUMNS))


def _compare_lengths(
    filler: SweptFiller,
    by_length: Mapping[int, str],
    by_condition: OutcomesByCondition,
    baseline: str,
) -> Row:
    """A row of the table. `by_length` has the condition of each length, shortest first."""
    old = by_condition[baseline][0]
    changes = np.array(
        [
            old.sum_by_draw(by_condition[name][0].right_by_prompt - old.right_by_prompt)
            for name in by_length.values()
        ]
    )
    samples = old.sum_by_draw(old.samples_by_prompt)
    mean, extremes = estimate_trend(changes, samples, old.clusters)
    return {
        **filler._asdict(),
        "lengths": " ".join(map(str, by_length)),
        "problems": len(old.clusters),
        # Bonferroni, because either of the two tests can be significant by chance
        "p": min(1.0, 2 * min(mean.p, extremes.p)),
        **to_points(mean),
        **to_points(extremes, ("longest_less_shortest", "longest_low", "longest_high")),
    }


class SweptFiller(NamedTuple):
    """The properties that all lengths of a filler share.

    Attributes:
        filler, placement, words: As of `Condition.describe`.
    """

    filler: str
    placement: str
    words: str


def group_lengths(conditions: Mapping[str, Condition]) -> dict[SweptFiller, dict[int, str]]:
    """For each filler the condition of each length, shortest first.

    Length 0 is a condition without a filler that has the same other text, if there is one. A
    condition that states no number of tokens has no length and is in no group.
    """
    groups: dict[SweptFiller, dict[int, str]] = {}
    without_filler: dict[str, str] = {}
    for name, condition in conditions.items():
        if condition.filler is None:
            without_filler.setdefault(condition.words, name)
        elif condition.filler_tokens:
            columns = condition.describe()
            filler = SweptFiller(columns["filler"], columns["placement"], condition.words)
            # a later condition of the same length has the same prompt, so the first stands for both
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
) -> tuple[Difference, Difference]:
    """The mean difference of all lengths from the baseline, and of the longest from the shortest.

    These two tests replace a test of each length: twice the smaller p-value (Bonferroni) is the
    p-value of no change at any length. They miss most of a curve that falls and rises again by the
    same amount.

    Args:
        changes: [length, draw, problem] Right samples less those of the baseline, the lengths in
            order.
        samples: [draw, problem] Samples under either.
        clusters: As of `paired_tests.average_clusters`.
    """
    # divided by the samples of all lengths, so that it is a mean per length and not a sum
    mean = estimate_over_draws(changes.sum(axis=0), samples * len(changes), clusters)
    return mean, estimate_over_draws(changes[-1] - changes[0], samples, clusters)
