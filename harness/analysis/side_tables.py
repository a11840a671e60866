"""Two more questions to the samples of a comparison: what else a condition changes, and what other graders say.

Mediators are missing boxes, length and loops, and how much of the difference comes from format. The audit has the
verdicts of all graders on the same completions, and how often each differs from ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.grading import COLUMNS as GRADERS

if TYPE_CHECKING:
    import pandas

MEDIATORS = {
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
    """One row for each model, layout and condition: the columns of `MEDIATORS`.

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
    return table[list(MEDIATORS)].reset_index()


def _split(old: pandas.DataFrame, new: pandas.DataFrame) -> list[float]:
    """The three columns for two conditions' shares of a problem's samples [problem, state]."""
    new = new.reindex(old.index)
    before, after = (1 - part[_STATES].sum(axis=1) for part in (old, new))  # answered
    same = before * after + sum(old[state] * new[state] for state in _STATES)
    by_format = new["right"] * (1 - before) - old["right"] * (1 - after)
    by_answer = new["right"] * before - old["right"] * after
    return [100 * float(np.mean(part)) for part in (1 - same, by_format, by_answer)]


def audit_table(frame: pandas.DataFrame, *, baseline: str = "wo", by: Sequence[str] = ()) -> pandas.DataFrame:
    """Accuracy by each grader of the same completions, in percent, by model, layout and condition.

    Beside each grader's column stands `..._difference`: from the baseline in points, over problems that the grader
    judged under both. `boxes_after_first` counts samples with a further box after the first. Replicates of the baseline
    are left out.

    Args:
        frame: One row per sample, as `harness.load_run` gives it.
        baseline: The condition that the others are compared with.
        by: Further columns to split by, such as subject or level.
    """
    from harness.analysis.sample_counts import against_baseline

    first = frame[frame["replicate"] == 0]
    keys, names = ["model", "layout", *by, "condition"], ["ours", *GRADERS]
    scores = first[[*keys, "problem_id"]].assign(ours=first["correct"], **first[list(GRADERS)])
    scores = scores.assign(**scores[names].astype(float), boxes_after_first=first["boxes_after_first"] > 0)
    arms = scores.groupby(keys, observed=True, sort=False)
    table = 100 * arms[names].mean()
    changes = [f"{name}_difference" for name in names]
    table[changes] = np.nan
    problems = scores.groupby([*keys, "problem_id"], observed=True, sort=False)[names].mean()
    for arm, new, old in against_baseline(problems, baseline):
        table.loc[arm, changes] = 100 * (new - old).mean().to_numpy()
    table["boxes_after_first"] = arms["boxes_after_first"].sum()
    each = [column for pair in zip(names, changes, strict=True) for column in pair]
    return table[[*each, "boxes_after_first"]].reset_index()
