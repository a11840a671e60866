"""One effect over several prompts, which differ in their text, instruction or draw of examples.

Four prompts under which accuracy rises by three points may each be inconclusive, although together
they show a clear effect. "The effect over prompts" can mean two things:

- These prompts, new problems. The differences of a problem are averaged over the prompts, and
  tested as those of a single prompt are, because all prompts ask the same problems.
- New prompts, new problems. The prompts are a sample too. Prompts and problems are crossed random
  effects.

What holds for prompts holds for models that were asked the same problems, as in the simulations of
benchmarks/CALIBRATION.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr, stdtrit

from harness.analysis.paired_tests import PairedDifference, estimate_difference
from harness.array_types import Floats, Integers
from harness.constants import ALPHA, FEWEST_DRAWS

PROMPT_VARIANCE_THRESHOLD = 0.7
"""If the variance due to prompts exceeds this share of the variance due to problems, prompts limit
the degrees of freedom. With it, tests over 4 to 20 prompts err at most 5 times in 100
(benchmarks/CALIBRATION.md)."""


@dataclass(frozen=True, kw_only=True)
class CrossedDifference:
    """The mean difference if prompts and problems are both samples of larger populations.

    Attributes:
        paired_difference: The difference for these prompts only. No interval is shorter than its
            interval, and no p-value is below its p-value: sign flips allow for changes that no
            problem of the sample has, and a variance does not.
        standard_error: Standard error of the mean.
        degrees_of_freedom: Degrees of freedom of the standard error.
    """

    paired_difference: PairedDifference
    standard_error: float
    degrees_of_freedom: float

    @property
    def difference(self) -> float:
        """The mean over problems, as a share."""
        return self.paired_difference.difference

    @property
    def cluster_count(self) -> int:
        """The number of clusters."""
        return self.paired_difference.cluster_count

    @property
    def p(self) -> float:
        """Two-sided p-value of the true mean being 0."""
        if not self.standard_error:
            return self.paired_difference.p
        t_statistic = abs(self.difference) / self.standard_error
        return max(
            self.paired_difference.p, 2 * float(stdtr(self.degrees_of_freedom, -t_statistic))
        )

    def interval(self, level: float = 1 - ALPHA) -> tuple[float, float]:
        """The interval of the mean: 0 is outside exactly if p is below 1 - `level`."""
        low, high = self.paired_difference.interval(level)
        half_length = float(stdtrit(self.degrees_of_freedom, (1 + level) / 2)) * self.standard_error
        low = min(low, self.difference - half_length)
        high = max(high, self.difference + half_length)
        return max(-1.0, low), min(1.0, high)


Difference = PairedDifference | CrossedDifference
"""The difference for these prompts only, or for new prompts too."""


def to_points(
    difference: Difference, columns: Sequence[str] = ("difference", "low", "high")
) -> dict[str, float]:
    """A difference and the ends of its 95 % interval in points, in three columns."""
    shares = (difference.difference, *difference.interval())
    return {column: 100 * share for column, share in zip(columns, shares, strict=True)}


def estimate_over_draws(
    changes: Integers, sample_counts: Integers, clusters: Integers
) -> Difference:
    """The difference between two conditions; for new draws of examples if there are enough draws.

    Args:
        changes: [draw, problem] Right samples under a condition less those under the baseline.
        sample_counts: [draw, problem] Samples under each of the two.
        clusters: See `paired_tests.average_clusters`.
    """
    crossed_difference = estimate_crossed(changes, sample_counts, clusters)
    # too few draws say nothing about new draws
    if len(changes) < FEWEST_DRAWS:
        return crossed_difference.paired_difference
    return crossed_difference


def estimate_crossed(
    changes: Integers, sample_counts: Integers, clusters: Integers
) -> CrossedDifference:
    """The mean difference for new prompts and new problems.

    Args:
        changes: [prompt, problem] Right samples under a condition less those under the baseline.
        sample_counts: [prompt, problem] Samples under each of the two; 0 where a prompt did not ask
            a problem. The sum over prompts is the same for all problems.
        clusters: See `paired_tests.average_clusters`.
    """
    repeats = int(sample_counts.sum(axis=0).max())
    standard_error, degrees_of_freedom = measure_error(changes, sample_counts, clusters)
    return CrossedDifference(
        paired_difference=estimate_difference(changes.sum(axis=0), repeats, clusters=clusters),
        standard_error=standard_error,
        degrees_of_freedom=degrees_of_freedom,
    )


def measure_error(
    changes: Integers, sample_counts: Integers, clusters: Integers
) -> tuple[float, float]:
    """The standard error of a mean difference and its degrees of freedom.

    The arguments are those of `estimate_crossed`.
    """
    cluster_sizes = np.bincount(clusters)
    changes_by_cluster = _sum_by_cluster(changes, clusters)
    samples_by_cluster = _sum_by_cluster(sample_counts, clusters)
    with np.errstate(invalid="ignore"):  # 0 / 0 if a draw asked no problem of a cluster
        cluster_means = changes_by_cluster / samples_by_cluster
    difference = changes.sum() / sample_counts.sum()
    # Clusters differ in size, so the difference is a ratio of two means. It has the standard error
    # of its linearised terms: Cochran (1977), Sampling Techniques, section 6.
    weights = cluster_sizes / cluster_sizes.mean()
    return measure_crossed_error(difference + weights * (cluster_means - difference))


def _sum_by_cluster(table: Integers, clusters: Integers) -> Floats:
    """Sum a table [prompt, problem] to [prompt, cluster]."""
    return np.array([np.bincount(clusters, row) for row in table])


def measure_crossed_error(effects: Floats) -> tuple[float, float]:
    """The standard error of the mean over crossed random effects, and its degrees of freedom.

    The variance components of prompts, problems and the residual are those for which the expected
    sums of squares equal the observed ones (Henderson's Method I). Without missing cells this is
    the analysis of variance of a two-way table: the variance of the mean is that of the prompt
    means over the number of prompts, plus that of the problem means over the number of problems,
    less the residual, which both contain. The degrees of freedom are Satterthwaite's.

    The variance is at least that due to prompts and at least that due to problems. A few prompts
    may lie close together by chance, and Satterthwaite's formula then gives too many degrees of
    freedom. So there are at most as many as prompts less one, if the variance due to prompts is not
    small (`PROMPT_VARIANCE_THRESHOLD`).

    Args:
        effects: [prompt, problem] The difference of each problem, or of each cluster, under each
            prompt; NaN where a prompt did not ask.

    Source:
        Searle, Casella and McCulloch (1992), Variance Components, chapters 4 and 5; degrees of
        freedom: Satterthwaite (1946), doi:10.2307/3002019.
    """
    is_asked = ~np.isnan(effects)
    prompt_count, problem_count = is_asked.shape
    residual_degrees = is_asked.sum() - prompt_count - problem_count + 1
    # at least 1, because the degrees of freedom of a sum are divided by them
    term_degrees = np.maximum(1, [prompt_count - 1, problem_count - 1, residual_degrees])
    variance_terms = _estimate_terms(effects, is_asked)
    variance, degrees_of_freedom = _add_terms(variance_terms, term_degrees)
    prompt_variance, problem_variance, _ = variance_terms
    if prompt_variance > PROMPT_VARIANCE_THRESHOLD * problem_variance:
        degrees_of_freedom = min(degrees_of_freedom, prompt_count - 1)
    return math.sqrt(max(0.0, variance)), max(1.0, degrees_of_freedom)


def _add_terms(terms: Floats, term_degrees: Integers) -> tuple[float, float]:
    """The sum of the terms of a variance, and Satterthwaite's degrees of freedom.

    The terms are those of `_estimate_terms`. One of them may be negative by chance, but must not
    make the sum smaller than the term of prompts or that of problems. If it does, the larger of
    these two, with its own degrees of freedom, replaces the sum.
    """
    variance = terms.sum()
    larger_index = terms[:2].argmax()
    if terms[larger_index] > variance:
        return terms[larger_index], float(term_degrees[larger_index])
    # no variance at all: the formula would divide 0 by 0, and `measure_crossed_error` has a minimum
    if variance <= 0:
        return variance, 0.0
    return variance, variance**2 / (terms**2 / term_degrees).sum()


def _estimate_terms(effects: Floats, is_asked: npt.NDArray[np.bool_]) -> Floats:
    """The three terms that add up to the variance of the mean.

    Without missing cells they are the variance of the prompt means over the number of prompts, that
    of the problem means over the number of problems, and minus the residual, because both contain
    it.
    """
    prompt_count, problem_count = is_asked.shape
    cell_count = int(is_asked.sum())
    centred_effects = np.where(is_asked, effects - np.nanmean(effects), 0.0)
    cells_per_prompt = is_asked.sum(axis=1)
    cells_per_problem = is_asked.sum(axis=0)
    # Over all cells, the mean number of cells with the same prompt, and with the same problem.
    # Without missing cells these are the number of problems and the number of prompts.
    same_prompt_cells = (cells_per_prompt**2).sum() / cell_count
    same_problem_cells = (cells_per_problem**2).sum() / cell_count
    observed_squares = [
        (centred_effects.sum(axis=1) ** 2 / cells_per_prompt).sum(),
        (centred_effects.sum(axis=0) ** 2 / cells_per_problem).sum(),
        (centred_effects**2).sum(),
    ]
    # By Henderson's Method I the expectation of observed_squares[i] is expected_squares[i] times
    # the components of prompts, problems and residual, added up.
    # [sum of squares, component]
    expected_squares = [
        [cell_count - same_prompt_cells, prompt_count - same_problem_cells, prompt_count - 1],
        [problem_count - same_prompt_cells, cell_count - same_problem_cells, problem_count - 1],
        [cell_count - same_prompt_cells, cell_count - same_problem_cells, cell_count - 1],
    ]
    # Least squares, because the components of problems and residual are not separable where each
    # problem was asked with a single prompt. Then only their sum matters.
    prompt_component, problem_component, residual = np.linalg.lstsq(
        expected_squares, observed_squares
    )[0]
    terms = [
        same_prompt_cells * prompt_component + residual,
        same_problem_cells * problem_component + residual,
        -residual,
    ]
    return np.array(terms) / cell_count
