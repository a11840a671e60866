"""Simulate studies of several models that share their problems, and test the pooled effect."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.calibration_page import Targets, standard_error
from benchmarks.report import table
from harness.analysis.crossed_effects import estimate_crossed

DISCORDANCE, SHARED, PROBLEMS = 0.10, 0.6, 300
EXPERIMENTS = {"full": 2_000, "small": 5}
RANGE = (0.93, 0.97)

TEXT = """
## Several models

Each row has {experiments:,} studies of m models, which answer the same {n} problems, with a
discordance of 10 percent. Under each model a problem is certain or its chance is even; for
{shared:.0f} percent of the problems this is the same under all models. True effects have a standard
deviation of `between` points around 0. These and new: p < 0.05 for the mean of these models, if all
have effect 0, and for new models (at most 5). Covers: the interval contains the truth ({low:.0f} to
{high:.0f}). Targets have a tolerance of two standard errors, {slack:.1f}.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A setting of the simulation.

    Attributes:
        m: The number of models.
        k: The number of samples per problem.
        between: Standard deviation of the effect between models, as a share.
    """

    m: int
    k: int
    between: float


@dataclass(frozen=True, slots=True)
class StudyRates:
    """Shares of a setting's studies: see `TEXT`."""

    study: Study
    false: float
    false_new: float
    covers: float
    covers_new: float


def studies() -> list[Study]:
    """All settings."""
    settings = product((4, 8, 20), (1, 5), (0, 0.01, 0.02))
    return [Study(m=m, k=k, between=between) for m, k, between in settings]


def simulate_study(study: Study, experiments: int, seed: int) -> StudyRates:
    """Simulate the studies of one setting and compute their rates."""
    rng = np.random.default_rng([seed, study.m, study.k, round(1e6 * study.between), 0])
    counts = np.zeros(4)
    for _ in range(experiments):
        effects = study.between * rng.normal(size=study.m)
        ability, shared_even = rng.normal(size=PROBLEMS), rng.random(PROBLEMS) < 2 * DISCORDANCE
        changes = []
        for effect in effects:
            is_shared = rng.random(PROBLEMS) < SHARED
            is_even = np.where(is_shared, shared_even, rng.random(PROBLEMS) < 2 * DISCORDANCE)
            certain = ability + 0.5 * rng.normal(size=PROBLEMS) > -0.4
            shift = np.clip(effect / (4 * DISCORDANCE), -0.5, 0.5)
            before, after = (np.where(is_even, 0.5 + side * shift, certain) for side in (-1, 1))
            changes.append(rng.binomial(study.k, after) - rng.binomial(study.k, before))
        samples = np.full((study.m, PROBLEMS), study.k)
        new = estimate_crossed(np.array(changes), samples, np.arange(PROBLEMS))
        low, high = new.paired_difference.interval()
        new_low, new_high = new.interval()
        counts += (
            new.paired_difference.p < 0.05,
            new.p < 0.05,
            low <= effects.mean() <= high,
            new_low <= 0 <= new_high,
        )
    return StudyRates(study, *(counts / experiments).tolist())


def section(rates: Iterable[StudyRates], experiments: int) -> tuple[str, list[str]]:
    """Format the results as Markdown. Return the text and the missed targets."""
    tolerance = 2 * standard_error(experiments)
    targets = Targets(digits=1, tolerance=tolerance)
    lines = []
    for row in rates:
        study = row.study
        false = "-"
        if study.between == 0:
            false = targets.format("false, these models", study, row.false, 0, 0.05)
        line = (
            str(study.m),
            str(study.k),
            f"{100 * study.between:g}",
            false,
            targets.format("false, new models", study, row.false_new, 0, 0.05),
            targets.format("coverage, these models", study, row.covers, *RANGE),
            targets.format("coverage, new models", study, row.covers_new, *RANGE),
        )
        lines.append(line)
    text = TEXT.format(
        experiments=experiments,
        n=PROBLEMS,
        shared=100 * SHARED,
        slack=100 * tolerance,
        low=100 * RANGE[0],
        high=100 * RANGE[1],
    )
    header = ("m", "k", "between", "these", "new", "covers these", "covers new")
    return text + table(header, lines), targets.missed
