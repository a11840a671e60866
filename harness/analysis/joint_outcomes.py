"""How often samples of one problem agree: under all conditions, and in all runs of one condition.

The runs of a condition, the first and its repeat runs (A/A), differ by noise alone. So their row
shows how much disagreement noise causes. No column has a verdict.
"""

from collections.abc import Sequence

import pandas

TOGETHER_COLUMNS = {
    "all_right": "percent right under all conditions, or in all runs of the condition",
    "any_right": "percent right in at least one",
    "same_answer": "percent with the same answer in all; a missing answer agrees with none",
}
"""Meaning of each column of `together_table`."""
RIGHT_ANSWER = -1
"""Stands for right answers, which are the same however they are written."""


def together_table(frame: pandas.DataFrame, *, by: Sequence[str] = ()) -> pandas.DataFrame:
    """How often the samples with the same problem, draw of examples and sample index agree.

    The columns are those of `TOGETHER_COLUMNS`. Each model and layout has a row that compares the
    first runs of all conditions, and for each condition a row that compares its first run with its
    repeat runs. A row that would compare a single run is left out. All right answers are the same,
    and wrong answers are if their strings are.

    Args:
        frame: One row per sample, as `mless.load_run` returns it.
        by: Further columns to split by.
    """
    row_columns = ["model", "layout", *by, "condition"]
    answers = frame["answer"].astype(object).mask(frame["correct"], RIGHT_ANSWER)
    # a missing answer becomes the number of its row, which equals no other answer
    answers = answers.fillna(frame.index.to_series())
    samples = frame.assign(draw=frame.get("draw", 0), answer=answers)
    # First runs are needed twice: in the row of their own condition, and in the row of all
    # conditions, whose title stands in the column `condition`.
    row_title = f"all {frame['condition'].nunique()} conditions"
    first_samples = samples[samples["replicate"] == 0].assign(condition=row_title)
    sample_groups = pandas.concat([first_samples, samples]).groupby(
        [*row_columns, "problem_id", "draw", "sample_index"], observed=True, sort=False
    )
    correctness = sample_groups["correct"]
    agreement = pandas.DataFrame(
        {
            "all_right": correctness.all(),
            "any_right": correctness.any(),
            "same_answer": sample_groups["answer"].nunique() == 1,
        }
    )
    # a sample that has no other to be compared with always agrees with itself
    row_groups = agreement[correctness.size() > 1].groupby(
        level=row_columns, observed=True, sort=False
    )
    percentages = 100 * row_groups.mean()
    # logs of other tasks have verdicts, but no answers
    if frame["answer"].isna().all():
        percentages["same_answer"] = None
    return percentages.reset_index()
