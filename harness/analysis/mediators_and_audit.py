"""Mediators and audit: what else a condition changes, and how other graders judge its completions.

Mediators are missing boxes and lengths. The audit compares the verdicts of all graders on
the same completions.
"""

from collections.abc import Sequence

import pandas

from harness.constants import BASELINE
from harness.finish_reasons import read_reason
from harness.grading import GRADERS

MEDIATOR_COLUMNS = {
    "samples": "number of samples, without repeat runs",
    "no_box": "percent that ended without an answer in a closed box",
    "truncated": "percent that reached the token limit without an answer in a closed box",
    "unfinished": "percent whose reasoning did not end",
    "cut_reasoning": "percent whose reasoning did not end before the token limit",
    "refused": "percent that the grader refused",
    "timed_out": "percent whose comparison did not end, or failed",
    "no_reply": "percent without a whole completion of the server",
    "completion_tokens": "mean tokens of a completion",
    "next_question": "percent with a further question in the format of the run, from which on "
    "nothing is graded",
}
"""Meaning of each column of `mediator_table`."""


def mediator_table(frame: pandas.DataFrame, *, by: Sequence[str] = ()) -> pandas.DataFrame:
    """The columns of `MEDIATOR_COLUMNS` for each model, layout and condition.

    Of each property of a sample the table has the percentage of samples with it; of the completion
    tokens the mean.

    Args:
        frame: One row per sample, as `samples_frame.make_frame` returns it.
        by: Further columns to split by.
    """
    key_columns = ["model", "layout", *by, "condition"]
    samples = frame[frame["replicate"] == 0]
    verdicts = samples["verdict"]
    finish_reasons = samples["finish_reason"].map(read_reason, na_action="ignore")
    mask_by_column = {
        verdict: verdicts == verdict
        for verdict in ("no_box", "truncated", "unfinished", "refused", "no_reply")
    }
    mask_by_column |= {
        "timed_out": verdicts.isin(["timeout", "crashed"]),
        "cut_reasoning": (verdicts == "unfinished") & (finish_reasons == "length"),
        "next_question": samples["next_question"],
    }
    # as numbers, because pandas cannot average a column of truth values with missing ones
    measures = samples[[*key_columns, "completion_tokens"]].assign(**mask_by_column)
    measures = measures.astype(dict.fromkeys(mask_by_column, float))
    groups = measures.groupby(key_columns, observed=True, sort=False)
    table = groups[["completion_tokens", *mask_by_column]].mean()
    table[list(mask_by_column)] *= 100
    table["samples"] = groups.size()
    return table[list(MEDIATOR_COLUMNS)].reset_index()


def audit_table(
    frame: pandas.DataFrame, *, baseline: str = BASELINE, by: Sequence[str] = ()
) -> pandas.DataFrame:
    """Accuracy by each grader of the same completions, in percent, by model, layout and condition.

    Columns `..._difference` have a grader's difference from the baseline in points, over problems
    that it judged under both. Repeat runs are left out.

    Args:
        frame: One row per sample, as `mless.load_run` returns it.
        baseline: The condition that the others are compared with.
        by: Further columns to split by, such as subject or level.
    """
    samples = frame[frame["replicate"] == 0]
    key_columns = ["model", "layout", *by, "condition"]
    graders = ["by_mless", *GRADERS]
    scores = samples[[*key_columns, "problem_id", *GRADERS]].assign(by_mless=samples["correct"])
    # a sample that a grader did not judge is neither right nor wrong: NaN, which `mean` skips
    scores = scores.astype(dict.fromkeys(graders, float))
    accuracies = 100 * scores.groupby(key_columns, observed=True, sort=False)[graders].mean()
    problem_groups = scores.groupby([*key_columns, "problem_id"], observed=True, sort=False)
    problem_means = problem_groups[graders].mean()
    is_baseline = problem_means.index.isin([baseline], level="condition")
    baseline_means = problem_means[is_baseline].droplevel("condition")
    # the baseline has no difference from itself
    changes = problem_means[~is_baseline].sub(baseline_means)
    differences = 100 * changes.groupby(level=key_columns, observed=True, sort=False).mean()
    return accuracies.join(differences.add_suffix("_difference")).reset_index()
