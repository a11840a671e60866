"""All conditions together: which problems are right, or have the same answer, under all of them.

The runs of one condition, the first and its repeat runs (A/A), have the same columns, which show
what noise alone changes. None is a test.
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

    The columns are those of `TOGETHER_COLUMNS`. Each model and layout has a row of its conditions,
    if there are several, and one of each condition with repeat runs. Wrong answers are the same if
    their strings are.

    Args:
        frame: One row per sample, as `mless.load_run` returns it.
        by: Further columns to split by.
    """
    row_columns = ["model", "layout", *by, "condition"]
    answers = frame["answer"].astype(object).mask(frame["correct"], RIGHT_ANSWER)
    samples = frame.assign(
        draw=frame.get("draw", 0),
        # a missing answer becomes the number of its row, which equals no other answer
        answer=answers.fillna(frame.index.to_series()),
    )
    # The first runs occur twice: in the row of all conditions, which has its name in the column
    # `condition`, and in the row of their own condition.
    all_conditions = f"all {frame['condition'].nunique()} conditions"
    first_runs = samples[samples["replicate"] == 0].assign(condition=all_conditions)
    sample_groups = pandas.concat([first_runs, samples]).groupby(
        [*row_columns, "problem_id", "draw", "sample_index"], observed=True, sort=False
    )
    verdict_groups = sample_groups["correct"]
    joint_outcomes = pandas.DataFrame(
        {
            "all_right": verdict_groups.all(),
            "any_right": verdict_groups.any(),
            "same_answer": sample_groups["answer"].nunique() == 1,
        }
    )
    # without a group of one sample, which always agrees with itself
    row_groups = joint_outcomes[verdict_groups.size() > 1].groupby(
        level=row_columns, observed=True, sort=False
    )
    percentages = 100 * row_groups.mean()
    # logs of other tasks have verdicts, but no answers
    if frame["answer"].isna().all():
        percentages["same_answer"] = None
    return percentages.reset_index()
