"""Accuracy by token budget: completions that were cut at caps and graded again, summed up."""

from __future__ import annotations

import pandas

from harness.analysis.outcomes import count_outcomes, measure_accuracy

CAPS = {
    "cap": "completions are cut after so many tokens",
    "accuracy": "percent right",
    "accuracy_low": "lower end of its score interval, percent",
    "accuracy_high": "upper end",
    "boxed": "percent with an answer that can be read",
    "stated": "percent without one whose text has the gold answer, perhaps by chance",
    "neither": "percent with neither",
}
"""Meaning of each column of `grade_at_caps`, after model, layout and condition."""
_UNREAD = ("no_box", "truncated")


def cap_table(frame: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each model, layout, cap and condition: the columns of `CAPS`.

    Args:
        frame: A row for each sample and cap: model, layout, condition, problem_id, cluster, sample_index, cap, verdict,
            and as `stated` whether the text has the gold answer.
    """
    read = ~frame["verdict"].isin(_UNREAD)
    frame = frame.assign(correct=frame["verdict"] == "correct", boxed=read, stated=frame["stated"] & ~read)
    shares = 100 * frame.groupby(["model", "layout", "cap", "condition"])[["boxed", "stated"]].mean()
    found = []
    for one in count_outcomes(frame, by=["cap"]):
        at = {**dict(one.setting), "condition": one.condition}
        share = shares.loc[tuple(at.values())]
        found.append(at | measure_accuracy(one) | dict(share) | {"neither": 100 - share.sum()})
    return pandas.DataFrame(found)[["model", "layout", "condition", *CAPS]]
