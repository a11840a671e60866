"""What else a condition changes: missing boxes, length, loops; and how much of the difference comes from format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas

COLUMNS = {
    "samples": "samples, replicates of the baseline left out",
    "no_box": "percent of them that ended by themselves without an answer in a closed box",
    "truncated": "percent that ran into the limit without an answer in a closed box",
    "refused": "percent whose answer the grader refused to read",
    "timed_out": "percent whose comparison did not end, or failed",
    "completion_tokens": "mean tokens of a completion",
    "characters": "mean characters of a completion",
    "looping": "percent that end in a loop: the last 100 characters occur at least 4 times",
    "format_changed": "percent of pairs of samples, condition against baseline, of which only one has a graded answer, "
    "or which lack it for different reasons",
    "format_difference": "points of the accuracy difference that come from pairs of which only one has a graded answer",
    "answer_difference": "points that come from pairs that both have one; the two add up to the difference",
}
"""Meaning of each column of `mediator_table`."""

_STATES = ["no_box", "truncated", "refused", "timed_out"]
_PARTS = ["format_changed", "format_difference", "answer_difference"]


def mediator_table(frame: pandas.DataFrame, *, baseline: str = "wo", by: Sequence[str] = ()) -> pandas.DataFrame:
    """One row for each model, layout and condition: the columns of `COLUMNS`.

    The difference in accuracy is the mean over problems, and over the k * k pairs of a problem's samples under either
    condition, of the difference in right or wrong. Such a pair has two graded answers, one, or none: the last kind
    adds nothing, and the other two are the parts of the difference. This is arithmetic, no claim about causes: that a
    pair lacks a box under one condition may itself be an effect on the answer.

    Args:
        frame: One row per sample, as `sample_frame.read_frame` gives it.
        baseline: The condition that others are compared with; without it the last three columns are missing.
        by: Further columns to split by.
    """
    from harness.analysis.sample_counts import against_baseline

    keys = ["model", "layout", *by, "condition"]
    first = frame[frame["replicate"] == 0]
    verdict = first["verdict"].astype(object)
    counted = first[[*keys, "problem_id", "completion_tokens", "characters"]].assign(
        samples=1,
        right=first["correct"].astype(float),
        no_box=verdict == "no_box",
        truncated=verdict == "truncated",
        refused=verdict == "refused",
        timed_out=verdict.isin(["timeout", "crashed"]),
        looping=first["looping"].astype(float),
    )
    arms = counted.groupby(keys, observed=True, sort=False)
    table = arms[["completion_tokens", "characters"]].mean()
    table["samples"] = arms["samples"].sum()
    table[[*_STATES, "looping"]] = 100 * arms[[*_STATES, "looping"]].mean()
    table[_PARTS] = np.nan
    problems = counted.groupby([*keys, "problem_id"], observed=True, sort=False)[["right", *_STATES]].mean()
    for arm, new, old in against_baseline(problems, baseline):
        table.loc[arm, _PARTS] = _split(old, new)
    return table[list(COLUMNS)].reset_index()


def _split(old: pandas.DataFrame, new: pandas.DataFrame) -> list[float]:
    """The three columns for two conditions' shares of a problem's samples [problem, state]."""
    new = new.reindex(old.index)
    before, after = (1 - part[_STATES].sum(axis=1) for part in (old, new))  # answered
    same = before * after + sum(old[state] * new[state] for state in _STATES)
    by_format = new["right"] * (1 - before) - old["right"] * (1 - after)
    by_answer = new["right"] * before - old["right"] * after
    return [100 * float(np.mean(part)) for part in (1 - same, by_format, by_answer)]
