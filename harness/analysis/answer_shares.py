"""The side table of the endpoint `answer_logprob`: log share and log-probability of gold answers.

The share of an answer is its probability divided by the sum over all scored answers of its problem.
Its logarithm and the log-probability are in nats. The log-probability has no verdict, because it
alone does not tell whether the model knows the answer: a text before the question may make every
answer likelier.
"""

from dataclasses import replace

import pandas

from harness.analysis.baseline_comparison import Design, compare_outcomes
from harness.analysis.outcomes import count_outcomes
from harness.analysis.verdicts import AT_CHANCE_REASON_START
from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE, GOLD_FIRST, NATS_MARGIN

ANSWER_COLUMNS = {
    ANSWER_SHARE: "mean logarithm of the gold answer's share among all its answers",
    "difference": "minus the baseline's; this and all further columns are those of the comparison",
    ANSWER_LOGPROB: "mean log-probability of the gold answer; not tested",
    "logprob_difference": "minus the baseline's",
}
"""Meaning of the columns of `answer_table` that are new, or hold another score than in the
comparison."""


def answer_table(
    samples: pandas.DataFrame, comparison: pandas.DataFrame, design: Design
) -> pandas.DataFrame:
    """The comparison of the log shares, in nats; empty if the endpoint is another.

    A model at chance does not know which answer is right, so its row keeps the verdict of the
    comparison: `unmeasured`.

    Args:
        samples: The samples of the comparison.
        comparison: The comparison of `gold_first`, which says which rows are at chance.
        design: What is compared with what.
    """
    if design.score != GOLD_FIRST:
        return comparison[:0]
    nats_design = replace(design, margin=NATS_MARGIN)
    share_comparison = compare_outcomes(
        count_outcomes(samples, design.by, ANSWER_SHARE), nats_design
    )
    logprob_comparison = compare_outcomes(
        count_outcomes(samples, design.by, ANSWER_LOGPROB), nats_design
    )
    # the rows of all three comparisons match, because the samples and contrasts are the same
    is_at_chance = comparison["unmeasured"].str.startswith(AT_CHANCE_REASON_START, na=False)
    return share_comparison.assign(
        answer_share=share_comparison["accuracy"],
        answer_logprob=logprob_comparison["accuracy"],
        logprob_difference=logprob_comparison["difference"],
        verdict=share_comparison["verdict"].mask(is_at_chance, comparison["verdict"]),
    )
