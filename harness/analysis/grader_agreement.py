"""The verdicts of all graders on the same completions, and how often each differs from ours."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from harness.analysis.paired_tests import sign_flip_test
from harness.analysis.verdicts import holm
from harness.experiment.fillers import DEFAULT_SEED
from harness.grading import COLUMNS as GRADERS
from harness.grading import UNGRADED

if TYPE_CHECKING:
    import pandas


TESTED = tuple(name for name in GRADERS if name != "exact_match")
"""Graders whose differences are tested against ours. The other reads a sentence that no prompt of ours asks for."""


def audit_table(
    frame: pandas.DataFrame, *, baseline: str = "wo", by: Sequence[str] = (), yardsticks: Collection[str] = ()
) -> pandas.DataFrame:
    """Accuracy by each grader of the same completions, in percent, by model, layout and condition.

    Beside each grader's column stand four more. `..._difference` is the difference from the baseline in points, over
    problems that the grader judged under both. `..._p` is the p-value that this difference is ours: sign flips of how
    many more samples of a problem it calls right than ours, under the condition less under the baseline, adjusted by
    Holm over all graders and conditions. A grader that is more lenient everywhere has a large one; a small one says
    that the table's difference depends on who grades. `..._only_ours` and `..._only_theirs` count samples that only one
    of the two graders calls right. Samples where one of them did not end are left out of the last three.
    `boxes_after_first` counts samples with a further box after the first. Replicates of the baseline are left out.

    Args:
        frame: One row per sample, as `harness.load_run` gives it.
        baseline: The condition that the others are compared with.
        by: Further columns to split by, such as subject or level.
        yardsticks: Conditions that are not tested.
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
    kinder = counts[keys].assign(problem_id=first["problem_id"])
    for name in TESTED:
        kinder[name] = counts[f"{name}_only_theirs"].astype(int) - counts[f"{name}_only_ours"]
    table = 100 * scores.groupby(keys, observed=True, sort=False)[names].mean()
    table = table.join(counts.groupby(keys, observed=True, sort=False).sum())
    changes = [f"{name}_difference" for name in names]
    table[changes] = np.nan
    problems = scores.groupby([*keys, "problem_id"], observed=True, sort=False)[names].mean()
    for arm, new, old in against_baseline(problems, baseline):
        table.loc[arm, changes] = 100 * (new - old).mean().to_numpy()
    tests = [f"{name}_p" for name in TESTED]
    table[[f"{name}_p" for name in GRADERS]] = np.nan
    rng = np.random.default_rng(DEFAULT_SEED)
    by_problem = kinder.groupby([*keys, "problem_id"], observed=True, sort=False)[list(TESTED)].sum()
    for arm, new, old in against_baseline(by_problem, baseline):
        if arm[-1] not in yardsticks:
            moved = new.sub(old).dropna()
            judged = table.loc[arm, changes[1:]].notna()  # one that judged nothing is no witness
            table.loc[arm, tests] = [
                sign_flip_test(moved[name], rng=rng) if judged[f"{name}_difference"] else np.nan for name in TESTED
            ]
    table[tests] = holm(table[tests].to_numpy().ravel()).reshape(len(table), -1)
    each = [[f"{name}{end}" for end in ("", "_difference", "_p", "_only_ours", "_only_theirs")] for name in GRADERS]
    return table[["ours", "ours_difference", *chain.from_iterable(each), "boxes_after_first"]].reset_index()
