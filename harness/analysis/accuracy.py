"""Accuracy of one condition: over repeats, with the best of k, and by majority."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.errors import ComparisonError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def clustered_error(scores: npt.ArrayLike) -> float:
    """Standard error of the mean of `scores` [problem], each the average of a problem's samples; NaN for one problem.

    Samples of a problem are averaged first, so that repeating a problem does not count as asking another one.

    Source:
        Miller (2024), Adding Error Bars to Evals, arXiv:2411.00640, sections 2.2 and 3.1; the cluster-robust variance
        with equal cluster sizes: Liang and Zeger (1986), doi:10.1093/biomet/73.1.13.
    """
    values = np.asarray(scores, dtype=float)
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def pass_at_k(right: npt.ArrayLike, *, samples: int, k: int) -> float:
    """Mean chance that at least one of k samples of a problem is right, from `right` [problem] out of `samples`.

    The mean over all choices of k of the samples, which is unbiased; k = 1 is the accuracy.

    Raises:
        ComparisonError: k is not between 1 and the number of samples.

    Source:
        Chen et al. (2021), Evaluating Large Language Models Trained on Code, arXiv:2107.03374, equation 1.
    """
    if not 1 <= k <= samples:
        raise ComparisonError(
            f"pass@{k} cannot be told from {samples} samples a problem: expected k from 1 to {samples}. Sample more "
            "(samples_per_problem), or ask for a smaller k."
        )
    wrong = samples - np.arange(samples + 1)
    drawn = np.arange(k)
    all_wrong = np.prod(np.maximum(wrong[:, None] - drawn, 0) / (samples - drawn), axis=1)
    return float(np.mean(1 - all_wrong[np.asarray(right, dtype=np.int64)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Majority:
    """What the samples of each problem vote for.

    Attributes:
        scores: [problem] 1 if the right answer has most votes, 0 if not, its share of the winners in a tie.
        ties: [problem] Whether several answers, the right one among them or not, have most votes.
    """

    scores: FloatArray
    ties: npt.NDArray[np.bool_]


def majority_vote(problem: IntArray, answer: IntArray, correct: npt.NDArray[np.bool_], *, problems: int) -> Majority:
    """Majority answer of each problem, maj@k for k samples a problem.

    All correct samples are one answer however they write it; wrong ones are equal if their text is. A sample without
    an answer does not vote; a problem without votes is wrong. A tie gives the right answer the chance that a fair
    draw among the winners would.

    Args:
        problem: [sample] Number of its problem, from 0.
        answer: [sample] Number of its answer, equal for equal text; -1 for none.
        correct: [sample] Whether it is right.
        problems: How many problems there are.

    Source:
        Self-consistency: Wang et al. (2023), arXiv:2203.11171; maj@k: Lewkowycz et al. (2022), arXiv:2206.14858.
    """
    votes = correct | (answer >= 0)
    classes = int(answer.max(initial=-1)) + 2
    ballot = problem[votes] * classes + np.where(correct, 0, answer + 1)[votes]
    candidates, counts = np.unique(ballot, return_counts=True)
    where, is_right = candidates // classes, candidates % classes == 0
    most = np.zeros(problems, dtype=np.int64)
    np.maximum.at(most, where, counts)
    wins = counts == most[where]
    winners = np.bincount(where[wins], minlength=problems)
    scores = np.zeros(problems)
    scores[where[wins & is_right]] = 1 / winners[where[wins & is_right]]
    return Majority(scores=scores, ties=winners > 1)
