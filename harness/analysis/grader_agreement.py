"""The verdicts of all graders on the same completions, and how often each differs from ours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from harness.grading import COLUMNS as GRADERS
from harness.grading import UNGRADED

if TYPE_CHECKING:
    import pandas


def audit_table(frame: pandas.DataFrame, *, baseline: str = "wo", by: Sequence[str] = ()) -> pandas.DataFrame:
    """Accuracy by each grader of the same completions, in percent, by model, layout and condition.

    Beside each grader's column stand three more. `..._difference` is the difference from the baseline in points, over
    problems that the grader judged under both. `..._only_ours` and `..._only_theirs` count samples that only one of the
    two graders calls right; samples where one of them did not end are left out. `boxes_after_first` counts samples with
    a further box after the first. Replicates of the baseline are left out.
    """
    from harness.analysis.sample_counts import against_baseline

    first = frame[frame["replicate"] == 0]
    keys, names = ["model", "layout", *by, "condition"], ["ours", *GRADERS]
    ours, known = first["correct"].astype(bool), ~first["verdict"].isin(UNGRADED)
    scores = first[[*keys, "problem_id"]].assign(ours=ours.astype(float), **first[list(GRADERS)].astype(float))
    counts = first[keys].assign(boxes_after_first=first["boxes_after_first"] > 0)
    for name in GRADERS:
        counts[f"{name}_only_ours"] = known & ours & (scores[name] == 0)
        counts[f"{name}_only_theirs"] = known & ~ours & (scores[name] == 1)
    table = 100 * scores.groupby(keys, observed=True, sort=False)[names].mean()
    table = table.join(counts.groupby(keys, observed=True, sort=False).sum())
    changes = [f"{name}_difference" for name in names]
    table[changes] = np.nan
    problems = scores.groupby([*keys, "problem_id"], observed=True, sort=False)[names].mean()
    for arm, new, old in against_baseline(problems, baseline):
        table.loc[arm, changes] = 100 * (new - old).mean().to_numpy()
    each = [[name, f"{name}_difference", f"{name}_only_ours", f"{name}_only_theirs"] for name in GRADERS]
    return table[["ours", "ours_difference", *chain.from_iterable(each), "boxes_after_first"]].reset_index()
