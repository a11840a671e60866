"""Sweeps of filler lengths: the conditions that differ only in the length of a filler."""

from collections.abc import Mapping
from typing import NamedTuple

from harness.experiment.conditions import Condition


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
