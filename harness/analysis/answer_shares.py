"""The second values of the endpoint `answer_logprob`, in nats: the gold answer's share, and itself.

The log-probability of the gold answer alone says nothing about the right answer: a text before the
question may make every answer likelier. So it has no verdict.
"""

from dataclasses import replace

import pandas

from harness.analysis.compare_with_baseline import Design, compare_outcomes
from harness.analysis.count_correct import count_outcomes
from harness.analysis.sample_scores import NATS_SCORES
from harness.analysis.verdicts import AT_CHANCE
from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE, GOLD_FIRST, NATS_MARGIN

ANSWER_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "condition": "the condition, or a contrast such as mless - random",
    "baseline": "the condition that it is compared with",
    ANSWER_SHARE: "mean logarithm of the gold answer's share among the five answers",
    "difference": "minus the baseline's, paired by problem",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "p_adjusted": "p as in the comparison, adjusted in the same way",
    "verdict": "better, worse, equivalent (within 0.1 nats), inconclusive or unmeasured",
    ANSWER_LOGPROB: "mean log-probability of the gold answer; not tested",
    "logprob_difference": "minus the baseline's",
}
"""Meaning of each column of `answer_table`."""


def answer_table(
    samples: pandas.DataFrame, comparison: pandas.DataFrame, design: Design
) -> pandas.DataFrame:
    """A row for each row of the comparison; none if the endpoint is another.

    Args:
        samples: The samples of the comparison.
        comparison: It tells which rows are at chance.
        design: What is compared with what.
    """
    columns = list(ANSWER_COLUMNS)
    if design.score != GOLD_FIRST:
        return pandas.DataFrame(columns=columns)
    shares, logprobs = (
        compare_outcomes(
            count_outcomes(samples, design.by, score),
            replace(design, score=score, margin=NATS_MARGIN),
        )
        for score in NATS_SCORES
    )
    shares[ANSWER_SHARE], shares[ANSWER_LOGPROB] = shares["accuracy"], logprobs["accuracy"]
    shares["logprob_difference"] = logprobs["difference"]
    is_measured = comparison["unmeasured"] != AT_CHANCE
    shares["verdict"] = shares["verdict"].where(is_measured, comparison["verdict"])
    return shares[[*columns[:2], *design.by, *columns[2:]]]
