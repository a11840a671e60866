"""One effect over several models: of these models on new problems, and of new models.

Four models that each gain three points may be four times "inconclusive" and plain together. Two questions hide in "the
effect over models", and a table answers both:

- These models, new problems. A problem's difference is averaged over the models, and tested as one model's is:
  models that were asked the same problems are no independent witnesses.
- New models, new problems. The models are a sample too. Models and problems are crossed random effects.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas
from scipy.special import stdtr, stdtrit

from harness.analysis.outcomes import Outcomes, by_setting
from harness.analysis.tests import Floats, Integers, cluster_terms, estimate_difference
from harness.constants import ALPHA, FEWEST_MODELS, MODELS_HEEDED

COLUMNS = {
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition, or a contrast with another baseline",
    "baseline": "the condition that it is compared with",
    "models": "models that have both",
    "n": "problems that all of them were asked",
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
    """The pooled effect of every contrast that two models have, in each layout: the columns of `COLUMNS`.

    Whoever picks models after seeing them can have any effect, so it has no verdict.

    Args:
        counted: Of all models, as `outcomes.count_outcomes` gives them, not split any further.
        contrasts: What stands under `condition`, with the condition and what it is compared with.
    """
    layouts: dict[str, list[dict[str, Outcomes]]] = {}
    for (_, (_, layout)), arms in by_setting(counted).items():
        layouts.setdefault(str(layout), []).append({name: one for name, (one, *_) in arms.items()})
    rows = []
    for (layout, every), (name, (condition, baseline)) in product(layouts.items(), contrasts.items()):
        both = [(arms[baseline], arms[condition]) for arms in every if {condition, baseline} <= arms.keys()]
        problems = [set(old.problem_ids.tolist()) for old, _ in both]
        paired = all(old.k == new.k and (old.problem_ids == new.problem_ids).all() for old, new in both)
        if len(both) < 2 or not (shared := set.intersection(*problems)) or not paired:  # which `compare` refuses
            continue
        asked = [[problem in shared for problem in old.problem_ids.tolist()] for old, _ in both]
        changes = [((new.right - old.right)[kept], old.k) for kept, (old, new) in zip(asked, both, strict=True)]
        clusters = pandas.factorize(both[0][0].clusters[asked[0]])[0]
        rows.append({"layout": layout, "condition": name, "baseline": baseline} | pool_changes(changes, clusters))
    return pandas.DataFrame(rows, columns=list(COLUMNS)).astype({"models": "Int64", "n": "Int64"})


def pool_changes(changes: Sequence[tuple[Integers, int]], clusters: Integers | None = None) -> dict[str, Any]:
    """The pooled effect of one contrast, as the columns of `COLUMNS` that are numbers.

    Args:
        changes: For each model (or text, or instruction) its changes [problem] in right samples, over the same problems
            in the same order, and its samples a problem.
        clusters: As of `tests.by_cluster`; by default each problem is one.
    """
    per = math.lcm(*(k for _, k in changes))
    total = np.sum([change * (per // k) for change, k in changes], axis=0)
    whole = per * len(changes)
    clusters = np.arange(len(total)) if clusters is None else clusters
    pooled = estimate_difference(total, whole, clusters=clusters)
    low, high = pooled.interval()
    row = {"models": len(changes), "n": len(total), "difference": pooled.difference, "p": pooled.p}
    row |= {"low": low, "high": high}
    if len(changes) >= FEWEST_MODELS:
        effects = np.array([cluster_terms(change / k, clusters) for change, k in changes])
        row |= estimate_new_models(effects)
        # what the interval for these models knows of changes that were not seen, mean squares do not
        row |= {"new_low": min(row["new_low"], low), "new_high": max(row["new_high"], high)}
        row["new_p"] = max(row["new_p"], pooled.p)
    points = ("difference", "low", "high", "new_low", "new_high")
    return {name: 100 * value if name in points else value for name, value in row.items()}


def estimate_new_models(effects: Floats) -> dict[str, float]:
    """The mean over all models and problems that there might be, from some of both: crossed random effects.

    The variance of the grand mean is that of models over their number, plus that of problems over theirs, less what
    both count: the mean squares of a two-way table without replication. Its degrees of freedom are Satterthwaite's.
    It is never less than either part alone. Few models may lie close together by luck, and Satterthwaite then trusts
    the problems too much. So there are at most as many degrees of freedom as models less one, as soon as their part
    counts; with `MODELS_HEEDED` 4 to 20 models err at most 5 times in 100 (benchmarks/CALIBRATION.md).

    Args:
        effects: [model, problem] Each problem's difference under each model, or each cluster's.

    Returns:
        The columns of `COLUMNS` from `new_low` on, the ends as shares.

    Source:
        Crossed random effects: Searle, Casella and McCulloch (1992), Variance Components, chapter 4; their degrees of
        freedom: Satterthwaite (1946), doi:10.2307/3002019.
    """
    m, n = effects.shape
    mean = float(effects.mean())
    by_model, by_problem = effects.mean(axis=1), effects.mean(axis=0)
    rest = effects - by_model[:, None] - by_problem + mean
    of_models = n * float(by_model.var(ddof=1))
    of_problems = m * float(by_problem.var(ddof=1))
    of_rest = float((rest**2).sum()) / ((m - 1) * (n - 1))
    parts = np.array([of_models, of_problems, -of_rest]) / (m * n)
    freedoms = np.array([m - 1, n - 1, (m - 1) * (n - 1)])
    variance = float(parts.sum())
    freedom = variance**2 / float((parts**2 / freedoms).sum()) if variance > 0 else 0.0
    for part, degrees in zip(parts[:2], freedoms[:2], strict=True):
        if part > variance:
            variance, freedom = float(part), float(degrees)
    if parts[0] > MODELS_HEEDED * parts[1]:
        freedom = min(freedom, m - 1)
    if variance == 0:
        return {"new_low": mean, "new_high": mean, "new_p": float(mean == 0)}
    freedom = max(1.0, freedom)
    reach = float(stdtrit(freedom, 1 - ALPHA / 2))
    error = math.sqrt(variance)
    return {
        "new_low": mean - reach * error,
        "new_high": mean + reach * error,
        "new_p": 2 * float(stdtr(freedom, -abs(mean) / error)),
    }
