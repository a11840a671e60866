"""Scores of a problem: avg@k, pass@k and maj@k of several samples, or a log-probability.

A score replaces the numbers of right samples and of samples, so that their ratio is the score.
Little else in `analysis` depends on which score is compared. A log-probability of -2.5 nats is a
ratio of -0.025, so that tables, which have percentages and points, have nats.
"""

import math
import re
from typing import Any

import numpy as np
import pandas

from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE, CHANCE_PERCENT, GOLD_FIRST, SCORE_COLUMN
from harness.errors import ComparisonError, ConfigError

FRACTION = "fraction"
"""The score of a table with numbers from 0 to 1: their mean in percent."""
NUMBER = "number"
"""The score of a table with any other numbers: their mean as it is."""
TABLE_NUMBERS = (FRACTION, NUMBER)
"""Both of them. Whether a higher number is better is unknown, because it may be a loss."""
MEAN_SCORES = (ANSWER_SHARE, ANSWER_LOGPROB, *TABLE_NUMBERS)
"""Scores that are means of a column of numbers."""
NUMBER_NOTE = (
    "tested by sign flips of the differences of problems or clusters, of which it takes 50"
)
"""How scores that are numbers are tested; part of their meaning."""
SCORE_MEANINGS = {
    "avg": "percentage of right samples",
    "pass": "chance that at least one of k samples is right; each set of k counts as a sample",
    "maj": "problems where the most frequent answer of the first k samples is right",
    GOLD_FIRST: "percentage of problems whose gold answer is likelier than all other answers that "
    f"are scored; by chance {CHANCE_PERCENT:g}, with choices 100 divided by their number",
    FRACTION: f"mean of the scores in percent, whose better direction is unknown; {NUMBER_NOTE}",
    NUMBER: f"mean of the scores, whose better direction is unknown; {NUMBER_NOTE}",
}
"""The meaning of each kind of score; `pass@4` is of the kind `pass`."""
MOST_SETS = 1_000_000
"""The largest denominator of a problem's pass@k. If there are more sets of k samples, their share
is rounded down to it (by at most 0.0001 points), because products of two conditions' numbers of
sets would exceed 64 bits. It is also the denominator of log-probabilities, which are then rounded
to 0.0001 nats."""

_GROUP_OPTIONS: Any = {"observed": True, "sort": False, "dropna": False}
"""Groups in the order of the samples, also of missing values, without empty categories."""
_count_combinations = np.frompyfunc(math.comb, 2, 1)
"""Binomial coefficients of arrays, as integers of any length."""


def read_score(score_name: str) -> tuple[str, int]:
    """The kind and the k of a score such as `pass@4`.

    Raises:
        ConfigError: it is not written as a score.
    """
    match = re.fullmatch(r"(avg|pass|maj)@([1-9]\d*)", score_name)
    if match is None:
        raise ConfigError(
            f"score: expected avg@K, pass@K or maj@K with K from 1 on, got {score_name!r}."
        )
    return match[1], int(match[2])


def choose_score(frame: pandas.DataFrame, score_name: str | None) -> str | None:
    """The score of a frame of samples: the requested one, or that of its endpoint.

    Raises:
        ConfigError: there is no such score, or another than that of the endpoint was requested.
    """
    if ANSWER_LOGPROB in frame:
        if score_name not in (None, GOLD_FIRST):
            raise ConfigError(
                f"score: the endpoint {ANSWER_LOGPROB} has only {GOLD_FIRST}, got {score_name!r}."
            )
        return GOLD_FIRST
    table_score_name = _name_table_score(frame) if SCORE_COLUMN in frame else None
    if not score_name:
        return table_score_name
    kind, _ = read_score(score_name)
    if table_score_name:
        raise ConfigError(f"score {score_name}: expected right or wrong samples, got numbers.")
    if kind == "maj" and SCORE_COLUMN in frame and frame["answer"].isna().all():
        raise ConfigError(f"score {score_name}: expected answers, of which a table has none.")
    return score_name


def _name_table_score(frame: pandas.DataFrame) -> str | None:
    """The scale of a table's scores: `FRACTION`, `NUMBER`, or None if all are 0 or 1.

    Raises:
        ComparisonError: one condition has fractions, and another one larger numbers.
    """
    scores = frame[SCORE_COLUMN]
    if scores.isin([0, 1]).all():
        return None
    maxima = scores.abs().groupby(frame["condition"].astype(str)).max()
    fraction_maxima = maxima[(maxima > 0) & (maxima <= 1)]
    if len(fraction_maxima) and maxima.max() > 1:
        raise ComparisonError(
            f"The scores of {fraction_maxima.index[0]} reach {fraction_maxima.iloc[0]:g}, those of "
            f"{maxima.idxmax()} {maxima.max():g}: expected the same scale."
        )
    return FRACTION if scores.between(0, 1).all() else NUMBER


def sum_samples(
    samples: pandas.DataFrame, prompt_columns: list[str], score_name: str | None
) -> pandas.DataFrame:
    """The numbers of right samples and of all samples of each prompt; their ratio is the score.

    avg@k is the share of right samples, as this is also the mean over all sets of k samples. pass@k
    is the share of sets of k samples that have a right one: 1 - C(n - c, k) / C(n, k) if c of n
    samples are right. maj@k counts only the first sample with the most frequent answer. Any other
    score but None and `gold_first`, which count right samples, is a mean of numbers.

    Args:
        samples: One row per sample with `prompt_columns`, sample_index, answer, right and graded;
            for a score of `MEAN_SCORES` also its column.
        prompt_columns: The columns that name a run, a condition, a prompt and a problem.
        score_name: See `read_score`. None counts the samples, of which there may be one.

    Returns:
        [prompt and problem] The columns right and samples, whose ratio is the score; graded, those
        with a graded answer; and repeats, which is always the number of samples.

    Raises:
        ComparisonError: a problem has one sample with a prompt, or fewer than k.
        ConfigError: see `read_score`.

    Source:
        pass@k: Chen et al. (2021), arXiv:2107.03374, section 2.1; maj@k: Wang et al. (2022),
        Self-Consistency, arXiv:2203.11171.
    """
    counted_samples = samples[[*prompt_columns, "right", "graded"]].assign(samples=1, repeats=1)
    if score_name in MEAN_SCORES:
        # A number becomes a ratio of integers, right / samples, as all other scores are. Tables
        # multiply this ratio by 100, so the number is divided by 100 here. `outcomes` has already
        # multiplied fractions by 100.
        counted_samples["right"] = (samples[score_name] / 100 * MOST_SETS).round()
        counted_samples["graded"] = counted_samples["samples"] = MOST_SETS
        return _sum_by_prompt(counted_samples, prompt_columns)
    # each sample counts by itself
    if score_name is None or score_name == GOLD_FIRST:
        return _sum_by_prompt(counted_samples, prompt_columns)
    kind, k = read_score(score_name)
    if kind == "maj":
        is_majority = _mark_majority(samples, prompt_columns, k)
        # all other samples count 0 times; `repeats` still counts them
        for column in ("right", "graded", "samples"):
            counted_samples[column] *= is_majority
    sums = _sum_by_prompt(counted_samples, prompt_columns)
    fewest_samples = sums["repeats"].min()
    if fewest_samples < max(k, 2):
        expected_text = f"K from 1 to {fewest_samples}" if fewest_samples > 1 else "several samples"
        raise ComparisonError(
            f"score {score_name}: expected {expected_text}, as a problem has {fewest_samples} with "
            "one prompt (draws of examples are different prompts)."
        )
    return _count_sets(sums, k) if kind == "pass" else sums


def _sum_by_prompt(
    counted_samples: pandas.DataFrame, prompt_columns: list[str]
) -> pandas.DataFrame:
    """The sums over all samples of a problem with one prompt."""
    return counted_samples.groupby(prompt_columns, **_GROUP_OPTIONS).sum().astype(np.int64)


def _count_sets(sums: pandas.DataFrame, k: int) -> pandas.DataFrame:
    """The sums with sets of k samples in place of samples.

    The number of right, or graded, samples becomes that of the sets with at least one of them: all
    sets of k less those without such a sample. All are scaled down to `MOST_SETS` sets if there are
    more.
    """
    set_counts = _count_combinations(sums["repeats"], k)
    sums = sums.assign(samples=np.minimum(set_counts, MOST_SETS))
    for column in ("right", "graded"):
        set_counts_without = _count_combinations(sums["repeats"] - sums[column], k)
        sums[column] = sums["samples"] * (set_counts - set_counts_without) // set_counts
    return sums.astype(np.int64)


def _mark_majority(samples: pandas.DataFrame, prompt_columns: list[str], k: int) -> Any:
    """[sample] Whether it is the first with the most frequent answer of its prompt's first k.

    Answers are equal if their strings are. A sample without an answer does not vote.
    """
    ordered_samples = samples.reset_index(drop=True).sort_values("sample_index", kind="stable")
    ranks = ordered_samples.groupby(prompt_columns, **_GROUP_OPTIONS).cumcount()
    first_samples = ordered_samples[ranks < k]
    answer_groups = first_samples.groupby([*prompt_columns, "answer"], **_GROUP_OPTIONS)["right"]
    votes = answer_groups.transform("size").where(first_samples["answer"].notna(), 0)
    prompt_keys = [first_samples[column] for column in prompt_columns]
    # `idxmax` takes the first of equals, so of equally frequent answers the earliest wins
    majority_indices = votes.groupby(prompt_keys, **_GROUP_OPTIONS).idxmax()
    # `reset_index` above made the index of a row its position among the samples
    return np.isin(np.arange(len(samples)), majority_indices)
