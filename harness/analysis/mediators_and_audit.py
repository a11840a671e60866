"""What else a condition changes, and what other graders say of the same completions.

Mediators are missing boxes, length and loops. The audit has the verdicts of all graders on the same completions, and
how often each differs from ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from harness.constants import BASELINE
from harness.grading import GRADERS

MEDIATOR_COLUMNS = {
    "samples": "samples, replicates of the baseline left out",
    "no_box": "percent of them that ended by themselves without an answer in a closed box",
    "truncated": "percent that ran into the limit without an answer in a closed box",
    "refused": "percent whose answer the grader refused to read",
    "timed_out": "percent whose comparison did not end, or failed",
    "completion_tokens": "mean tokens of a completion",
    "characters": "mean characters of a completion",
    "looping": "percent that end in a loop: the last 100 characters occur at least 4 times",
}
"""Meaning of each column of `mediator_table`."""

_STATES = ["no_box", "truncated", "refused", "timed_out"]


def mediator_table(frame: pandas.DataFrame, *, by: Sequence[str] = ()) -> pandas.DataFrame:
    """One row for each model, layout and condition: the columns of `MEDIATOR_COLUMNS`.

    Args:
        frame: One row per sample, as `samples_frame.read_frame` gives it.
        by: Further columns to split by.
    """
    keys = ["model", "layout", *by, "condition"]
    first = frame[frame["replicate"] == 0]
    verdict = first["verdict"]
    counted = first[[*keys, "completion_tokens", "characters"]].assign(
        samples=1,
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
    return table[list(MEDIATOR_COLUMNS)].reset_index()


def audit_table(
    frame: pandas.DataFrame, *, baseline: str = BASELINE, by: Sequence[str] = ()
) -> pandas.DataFrame:
    """Accuracy by each grader of the same completions, in percent, by model, layout and condition.

    Beside each grader's column stands `..._difference`: from the baseline in points, over problems that the grader
    judged under both. `boxes_after_first` counts samples with a further box after the first. Replicates of the baseline
    are left out.

    Args:
        frame: One row per sample, as `harness.load_run` gives it.
        baseline: The condition that the others are compared with.
        by: Further columns to split by, such as subject or level.
    """
    first = frame[frame["replicate"] == 0]
    keys, names = ["model", "layout", *by, "condition"], ["ours", *GRADERS]
    scores = first[[*keys, "problem_id"]].assign(ours=first["correct"], **first[list(GRADERS)])
    scores = scores.assign(
        **scores[names].astype(float), boxes_after_first=first["boxes_after_first"] > 0
    )
    arms = scores.groupby(keys, observed=True, sort=False)
    right = 100 * arms[names].mean()
    new, old = _pair(scores, keys, names, baseline)
    changes = 100 * (new - old).groupby(level=keys, observed=True, sort=False).mean()
    table = right.join(changes.add_suffix("_difference"))
    table["boxes_after_first"] = arms["boxes_after_first"].sum()
    each = [column for name in names for column in (name, f"{name}_difference")]
    return table[[*each, "boxes_after_first"]].reset_index()


def _pair(
    samples: pandas.DataFrame, keys: list[str], columns: list[str], baseline: str
) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """Means by problem, and those of the baseline for the same problems; missing where there are none to compare."""
    new = samples.groupby([*keys, "problem_id"], observed=True, sort=False)[columns].mean()
    places: Any = new.index
    at_baseline = places.get_level_values("condition") == baseline
    old = (
        new[at_baseline]
        .droplevel("condition")
        .reindex(places.droplevel("condition"))
        .set_axis(places)
    )
    old.loc[at_baseline] = np.nan
    return new, old
