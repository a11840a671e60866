"""One effect over several models: of these models on new problems, and of new models.

Four models that each gain three points may be four times "inconclusive" and plain together. Two questions hide in "the
effect over models", and a table answers both:

- These models, new problems. A problem's difference is averaged over the models, and tested as one model's is:
  models that were asked the same problems are no independent witnesses.
- New models, new problems. The models are a sample too. Models and problems are crossed random effects.

The second question is asked of texts, instructions and draws of examples too, in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas
from scipy.special import stdtr, stdtrit

from harness.analysis.count_correct import Outcomes, by_setting
from harness.analysis.paired_tests import Floats, Integers, PairedDifference, estimate_difference
from harness.constants import ALPHA, FEWEST_MODELS

MODELS_HEEDED = 0.7
"""From this share of the problems' part of the variance on, the models' part decides the degrees of freedom: with it
4 to 20 models err at most 5 times in 100 (benchmarks/CALIBRATION.md)."""

FEWEST_DRAWS = FEWEST_MODELS
"""Fewer draws of examples say nothing about new ones, by the same arithmetic: results are for these examples."""

POOLED_COLUMNS = {
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition, or a contrast with another baseline",
    "baseline": "the condition that it is compared with",
    "models": "models that have both",
    "problems": "problems that all of them were asked",
    "difference": "mean over models of the difference in accuracy, points",
    "low": "lower end of its 95 % interval: these models, new problems",
    "high": "upper end",
    "p": "two-sided p-value of the same, problems being the unit; exploratory, so neither adjusted nor judged",
    "new_low": "lower end of the interval for new models; never shorter than that for these models",
    "new_high": "upper end",
    "new_p": "its p-value",
}
"""Meaning of each column of `pool`."""


def pool(counted: Iterable[Outcomes], contrasts: Mapping[str, tuple[str, str]]) -> pandas.DataFrame:
    """The pooled effect of every contrast that two models have, in each layout: the columns of `POOLED_COLUMNS`.

    Whoever picks models after seeing them can have any effect, so it has no verdict.

    Args:
        counted: Of all models, as `count_correct.count_outcomes` gives them, not split any further.
        contrasts: What stands under `condition`, with the condition and what it is compared with.
    """
    layouts: dict[str, list[dict[str, Outcomes]]] = {}
    for (_, (_, layout)), arms in by_setting(counted).items():
        layouts.setdefault(str(layout), []).append({name: one for name, (one, *_) in arms.items()})
    rows = []
    for (layout, every), (name, (condition, baseline)) in product(
        layouts.items(), contrasts.items()
    ):
        both = [
            (arms[baseline], arms[condition])
            for arms in every
            if {condition, baseline} <= arms.keys()
        ]
        problems = [set(old.problem_ids.tolist()) for old, _ in both]
        paired = all(
            old.k == new.k and (old.problem_ids == new.problem_ids).all() for old, new in both
        )
        if (
            len(both) < 2 or not (shared := set.intersection(*problems)) or not paired
        ):  # which `compare` refuses
            continue
        asked = [[problem in shared for problem in old.problem_ids.tolist()] for old, _ in both]
        changes = [
            ((new.right - old.right)[kept], old.k)
            for kept, (old, new) in zip(asked, both, strict=True)
        ]
        clusters = pandas.factorize(both[0][0].clusters[asked[0]])[0]
        rows.append(
            {"layout": layout, "condition": name, "baseline": baseline}
            | pool_changes(changes, clusters)
        )
    return pandas.DataFrame(rows, columns=list(POOLED_COLUMNS)).astype(
        {"models": "Int64", "problems": "Int64"}
    )


def pool_changes(
    changes: Sequence[tuple[Integers, int]], clusters: Integers | None = None
) -> dict[str, Any]:
    """The pooled effect of one contrast, as the columns of `POOLED_COLUMNS` that are numbers.

    Args:
        changes: For each model (or text, or instruction) its changes [problem] in right samples, over the same problems
            in the same order, and its samples a problem.
        clusters: As of `paired_tests.by_cluster`; by default each problem is one.
    """
    k = math.lcm(*(samples for _, samples in changes))
    scaled = np.array([change * (k // samples) for change, samples in changes])
    clusters = np.arange(scaled.shape[1]) if clusters is None else clusters
    pooled = estimate_difference(scaled.sum(axis=0), k * len(changes), clusters=clusters)
    low, high = pooled.interval()
    row = {
        "models": len(changes),
        "problems": len(clusters),
        "difference": pooled.difference,
        "p": pooled.p,
    }
    row |= {"low": low, "high": high}
    if len(changes) >= FEWEST_MODELS:
        crossed = estimate_crossed(scaled, np.full_like(scaled, k), clusters)
        new_low, new_high = crossed.interval()
        row |= {"new_low": new_low, "new_high": new_high, "new_p": crossed.p}
    points = ("difference", "low", "high", "new_low", "new_high")
    return {name: 100 * value if name in points else value for name, value in row.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossedDifference:
    """The mean difference over all models and problems that there might be: both are samples.

    Attributes:
        fixed: The same for these models alone. No interval is shorter than its interval, and no p-value below its p:
            it knows of changes that no problem showed, and a variance does not.
        error: Standard error of the mean.
        freedom: Its degrees of freedom.
    """

    fixed: PairedDifference
    error: float
    freedom: float

    @property
    def difference(self) -> float:
        """The mean over problems, as a share."""
        return self.fixed.difference

    @property
    def clusters(self) -> int:
        """The number of clusters."""
        return self.fixed.clusters

    @property
    def p(self) -> float:
        """Two-sided p-value of the true mean being 0."""
        if not self.error:
            return self.fixed.p
        return max(self.fixed.p, 2 * float(stdtr(self.freedom, -abs(self.difference) / self.error)))

    def interval(self, level: float = 1 - ALPHA) -> tuple[float, float]:
        """The interval of the mean: 0 is outside exactly if p is below 1 - `level`."""
        low, high = self.fixed.interval(level)
        reach = float(stdtrit(self.freedom, (1 + level) / 2)) * self.error
        return max(-1.0, min(low, self.difference - reach)), min(
            1.0, max(high, self.difference + reach)
        )


def estimate_over_draws(
    changes: Integers, samples: Integers, clusters: Integers
) -> PairedDifference | CrossedDifference:
    """The difference between two conditions; with `FEWEST_DRAWS` draws of examples or more, for new draws too.

    Args:
        changes: [draw, problem] Right samples under a condition less those under the baseline.
        samples: [draw, problem] Samples under either.
        clusters: As of `paired_tests.by_cluster`.
    """
    if len(changes) >= FEWEST_DRAWS:
        return estimate_crossed(changes, samples, clusters)
    return estimate_difference(
        changes.sum(axis=0), int(samples.sum(axis=0).max()), clusters=clusters
    )


def estimate_crossed(changes: Integers, samples: Integers, clusters: Integers) -> CrossedDifference:
    """The difference over some models (or texts, instructions, draws of examples) and problems, for new ones of both.

    Args:
        changes: [model, problem] Right samples under a condition less those under the baseline.
        samples: [model, problem] Samples under either; 0 where a model was not asked a problem. All problems have the
            same number over all models.
        clusters: As of `paired_tests.by_cluster`.
    """
    k = int(samples.sum(axis=0).max())
    fixed = estimate_difference(changes.sum(axis=0), k, clusters=clusters)
    sizes = np.bincount(clusters)
    of_cells, in_cells = (
        np.array([np.bincount(clusters, row, minlength=len(sizes)) for row in table])
        for table in (changes, samples)
    )
    means = np.divide(of_cells, in_cells, out=np.full(of_cells.shape, np.nan), where=in_cells > 0)
    # the terms of a ratio, as in `paired_tests.cluster_terms`
    effects = fixed.difference + sizes / sizes.mean() * (means - fixed.difference)
    error, freedom = crossed_error(effects)
    return CrossedDifference(fixed=fixed, error=error, freedom=freedom)


def crossed_error(effects: Floats) -> tuple[float, float]:
    """The standard error of the mean of a table whose rows and columns are random effects, and its degrees of freedom.

    The variance components of models, problems and the rest are those with which the sums of squares are what they are
    expected to be (Henderson's Method I). If no cell is missing, this is the analysis of variance of a two-way table:
    the variance of the mean is that of models over their number, plus that of problems over theirs, less what both
    count. Its degrees of freedom are Satterthwaite's. It is never less than either part alone. Few models may lie close
    together by luck, and Satterthwaite then trusts the problems too much. So there are at most as many degrees of
    freedom as models less one, as soon as their part counts; with `MODELS_HEEDED` 4 to 20 models err at most 5 times in
    100 (benchmarks/CALIBRATION.md).

    Args:
        effects: [model, problem] Each problem's difference under each model, or each cluster's; NaN where a model was
            not asked.

    Source:
        Searle, Casella and McCulloch (1992), Variance Components, chapters 4 and 5; degrees of freedom: Satterthwaite
        (1946), doi:10.2307/3002019.
    """
    is_cell = ~np.isnan(effects)
    models, problems = is_cell.shape
    cells = int(is_cell.sum())
    residuals = np.where(is_cell, effects - np.nanmean(effects), 0.0)
    per_model, per_problem = is_cell.sum(axis=1), is_cell.sum(axis=0)
    # with how many cells a cell shares its model, and its problem: the mean over cells
    same_model, same_problem = (
        float((per_model**2).sum()) / cells,
        float((per_problem**2).sum()) / cells,
    )
    squares = [
        float((residuals.sum(axis=1) ** 2 / per_model).sum()),
        float((residuals.sum(axis=0) ** 2 / per_problem).sum()),
        float((residuals**2).sum()),
    ]
    expected = [
        [cells - same_model, models - same_problem, models - 1],
        [problems - same_model, cells - same_problem, problems - 1],
        [cells - same_model, cells - same_problem, cells - 1],
    ]
    # least squares, as problems that were asked by one model each cannot be told from the rest: only their sum counts
    of_models, of_problems, of_rest = np.linalg.lstsq(expected, squares)[0]
    parts = (
        np.array([same_model * of_models + of_rest, same_problem * of_problems + of_rest, -of_rest])
        / cells
    )
    freedoms = np.maximum(1, [models - 1, problems - 1, cells - models - problems + 1])
    variance = float(parts.sum())
    freedom = variance**2 / float((parts**2 / freedoms).sum()) if variance > 0 else 0.0
    for part, degrees in zip(parts[:2], freedoms[:2], strict=True):
        if part > variance:
            variance, freedom = float(part), float(degrees)
    if parts[0] > MODELS_HEEDED * parts[1]:
        freedom = min(freedom, models - 1)
    return math.sqrt(max(0.0, variance)), max(1.0, freedom)
