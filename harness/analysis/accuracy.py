"""Accuracy of one condition, with its error and interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.analysis.intervals import score_interval
from harness.analysis.power import ALPHA
from harness.grading import UNGRADED

if TYPE_CHECKING:
    import pandas

    from harness.analysis.sample_counts import Outcomes


def clustered_error(scores: npt.ArrayLike) -> float:
    """Standard error of the mean of `scores` [problem], where a score is the mean of a problem's samples.

    Averaging a problem's samples first means that asking a problem again does not count as asking another one. NaN for
    a single problem.

    Source:
        Miller (2024), Adding Error Bars to Evals, arXiv:2411.00640, sections 2.2 and 3.1; the cluster-robust variance
        with equal cluster sizes: Liang and Zeger (1986), doi:10.1093/biomet/73.1.13.
    """
    values = np.asarray(scores, dtype=float)
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def accuracy(one: Outcomes, *, level: float = 1 - ALPHA) -> dict[str, Any]:
    """The columns of `comparison.COLUMNS` that one condition has by itself, from n to accuracy_high."""
    scores = one.right / one.samples
    low, high = score_interval(scores, bounds=(0.0, 1.0), level=level)
    return {
        "n": len(scores),
        "k": one.k,
        "accuracy": 100 * float(scores.mean()),
        "standard_error": 100 * clustered_error(scores),
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
    }


def accuracy_table(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Accuracy in percent with its error and interval, and counts of other verdicts, by model, layout and condition.

    The columns n to accuracy_high are those of `analysis.compare`. Use it for runs that `compare` refuses: without
    the baseline, or unfinished. Whether two conditions differ is a paired question that this table does not answer.
    Replicates of the baseline are left out.
    """
    import pandas

    from harness.analysis.sample_counts import count_outcomes

    first = frame[frame["replicate"] == 0]
    rows = [{**dict(one.setting), "condition": one.condition, **accuracy(one)} for one in count_outcomes(first)]
    keys, verdict = ["model", "layout", "condition"], first["verdict"].astype(object)
    arms = (
        first[keys]
        .assign(
            correct=first["correct"].astype(int),
            no_box=verdict == "no_box",
            truncated=verdict == "truncated",
            ungraded=verdict.isin(UNGRADED),
            math_verify=100 * first["math_verify"].astype(float),
        )
        .groupby(keys, observed=True, sort=False)
    )
    counts = arms[["correct", "no_box", "truncated", "ungraded"]].sum().assign(math_verify=arms["math_verify"].mean())
    return pandas.DataFrame(rows).merge(counts.reset_index(), on=keys)
