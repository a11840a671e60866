"""Simulated studies of several models that share their problems: does the pooled effect keep its promises?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.calibration_page import table
from harness.analysis.pool_models import pool_changes

DISCORDANCE, SHARED, N = 0.10, 0.6, 300
EXPERIMENTS = {"full": 2_000, "small": 5}
RANGE = (0.93, 0.97)

TEXT = """
## Several models

{experiments:,} studies a row of m models, asked the same {n} problems, discordance 10 percent. A problem is settled
or a coin under each model, for {shared:.0f} percent alike under all. True effects scatter about 0 by `between`
points. These, new: p < 0.05 for the mean of these models, if all have effect 0, and of new ones (at most 5). Covers:
the interval holds its truth ({low:.0f} to {high:.0f}). Targets are give or take two standard errors, {slack:.1f}.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """One setting: m models, k samples a problem, their effects' mean and standard deviation as shares."""

    m: int
    k: int
    between: float
    effect: float = 0.0


@dataclass(frozen=True, slots=True)
class StudyRates:
    """Shares of a setting's studies, as `TEXT` says what they are."""

    study: Study
    experiments: int
    false: float
    false_new: float
    covers: float
    covers_new: float


def studies() -> list[Study]:
    """All settings."""
    return [
        Study(m=m, k=k, between=between)
        for m in (4, 8, 20)
        for k in (1, 5)
        for between in (0, 0.01, 0.02)
    ]


def simulate_study(study: Study, experiments: int, seed: int) -> StudyRates:
    """Make the studies of one setting and count."""
    rng = np.random.default_rng(
        [seed, study.m, study.k, round(1e6 * study.between), round(1e6 * study.effect)]
    )
    hits = np.zeros(4)
    for _ in range(experiments):
        true = study.effect + study.between * rng.normal(size=study.m)
        ability, common = rng.normal(size=N), rng.random(N) < 2 * DISCORDANCE
        changes = []
        for effect in true:
            coins = np.where(rng.random(N) < SHARED, common, rng.random(N) < 2 * DISCORDANCE)
            settled = ability + 0.5 * rng.normal(size=N) > -0.4
            shift = np.clip(effect / (4 * DISCORDANCE), -0.5, 0.5)
            before, after = (np.where(coins, 0.5 + side * shift, settled) for side in (-1, 1))
            changes.append((rng.binomial(study.k, after) - rng.binomial(study.k, before), study.k))
        row = pool_changes(changes)
        mean = 100 * true.mean()
        hits += (
            row["p"] < 0.05,
            row["new_p"] < 0.05,
            row["low"] <= mean <= row["high"],
            row["new_low"] <= 100 * study.effect <= row["new_high"],
        )
    return StudyRates(study, experiments, *(hits / experiments).tolist())


def section(rates: Sequence[StudyRates]) -> tuple[str, list[str]]:
    """The results as Markdown, and what missed its target."""
    missed: list[str] = []
    experiments = rates[0].experiments
    slack = 2 * (0.05 * 0.95 / experiments) ** 0.5

    def judged(what: str, one: StudyRates, rate: float, low: float, high: float) -> str:
        if low - slack <= rate <= high + slack:
            return f"{100 * rate:.1f}"
        missed.append(f"{what} {100 * rate:.1f}: {one.study}")
        return f"**{100 * rate:.1f}**"

    rows = []
    for one in rates:
        same = one.study.between == 0
        rows.append(
            (
                str(one.study.m),
                str(one.study.k),
                f"{100 * one.study.between:g}",
                judged("false, these models", one, one.false, 0, 0.05) if same else "-",
                judged("false, new models", one, one.false_new, 0, 0.05),
                judged("coverage, these models", one, one.covers, *RANGE),
                judged("coverage, new models", one, one.covers_new, *RANGE),
            )
        )
    text = TEXT.format(
        experiments=experiments,
        n=N,
        shared=100 * SHARED,
        slack=100 * slack,
        low=100 * RANGE[0],
        high=100 * RANGE[1],
    )
    return text + table(
        ("m", "k", "between", "these", "new", "covers these", "covers new"), rows
    ), missed
