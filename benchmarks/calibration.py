"""Simulate experiments with a known truth and test the statistics on them. Writes CALIBRATION.md.

    python -m benchmarks.calibration [--small]

An experiment has a baseline and three conditions on the same problems. Problems are drawn anew for
every experiment. The samples of a problem share its chance of success. The tests and intervals are
those of `mless table`, computed from numbers of right samples. Holm's correction covers all three
differences, as in the table of such a run without a primary contrast. With --small there are few
experiments, nothing is written, and nothing is proven.
"""

from __future__ import annotations

import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from benchmarks import calibration_page, draws_calibration, pooled_calibration, report
from benchmarks.calibration_page import MARGIN, PROBLEMS
from benchmarks.draws_calibration import EXPERIMENTS as DRAWS
from benchmarks.draws_calibration import DrawRates, designs, simulate_design
from benchmarks.pooled_calibration import EXPERIMENTS as STUDIES
from benchmarks.pooled_calibration import StudyRates, simulate_study, studies
from benchmarks.runs import ROOT, make_parser, say
from harness.analysis.paired_tests import (
    count_needed_problems,
    estimate_difference,
    holm,
    sign_flip_test,
)
from harness.analysis.power import minimal_detectable_effect

Floats = npt.NDArray[np.float64]
Population = Literal["undecided", "beta", "skewed", "shared seeds", "blocks"]

ALPHA, CONDITIONS = 0.05, 3
EXPERIMENTS = {"full": 4_000, "small": 20}
SEED = 20_251
DISCORDANCES = (0.02, 0.05, 0.10, 0.20)
MEAN_ACCURACY = 0.65
SHARED_SEEDS, BLOCK = 0.7, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting of the simulation.

    Attributes:
        population: How the chances of success vary between problems. `undecided`: a problem is
            certain, or its chance is even. The power formula assumes this. `beta`: the chances have
            a U-shaped beta distribution with mean 0.65. The effect is greatest for even chances.
            `skewed`: a share `discordance` of the problems changes from 0 to 1 and all others lose
            a little, so the true difference is 0. `shared seeds`: undecided, and 7 of 10 samples of
            a condition agree with the baseline's. `blocks`: undecided problems in blocks of `BLOCK`
            problems that change together, so the true difference is 0 and problems are not
            independent.
        n: The number of problems.
        k: The number of samples per problem and condition.
        discordance: The share of problems in which one sample of each condition disagrees.
        effect: The true difference between the first condition and the baseline. The other
            conditions have no effect.
        tests: The number of conditions that are compared with the baseline.
    """

    population: Population
    n: int
    k: int
    discordance: float
    effect: float
    tests: int = CONDITIONS

    def __str__(self) -> str:
        points = f"discordance {100 * self.discordance:g} %, effect {100 * self.effect:.2f} points"
        return f"{self.population}, n {self.n}, k {self.k}, {points}, tests {self.tests}"


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of a cell's experiments.

    Attributes:
        cell: The setting.
        experiments: The number of experiments.
        false_single: The first condition has an unadjusted p < 0.05, but no effect in this
            direction.
        false_any: A condition has an adjusted p < 0.05. This is false if there is no effect.
        detected: The first condition has an unadjusted p < 0.05 in the direction of its effect.
        covers: Its interval contains the effect.
        equivalent: It is called equivalent to the baseline.
    """

    cell: Cell
    experiments: int
    false_single: float
    false_any: float
    detected: float
    covers: float
    equivalent: float


def simulate(cell: Cell, experiments: int, seed: int) -> Rates:
    """Simulate the experiments of one cell and compute their rates."""
    rng = np.random.default_rng([seed, *_sort_key(cell)])
    has_equivalence = cell.n >= count_needed_problems(MARGIN)
    counts = np.zeros(5)
    for _ in range(experiments):
        changes = draw_changes(cell, rng)
        first = estimate_difference(changes[0], cell.k)
        adjusted = holm([first.p, *map(sign_flip_test, changes[1:])])
        is_significant = first.p < ALPHA
        is_detected = is_significant and first.difference > 0 and cell.effect > 0
        low, high = first.interval()
        equivalence_low, equivalence_high = first.interval(1 - 2 * ALPHA)
        counts += (
            is_significant and not is_detected,
            bool((adjusted < ALPHA).any()),
            is_detected,
            low <= cell.effect <= high,
            has_equivalence and -MARGIN < equivalence_low and equivalence_high < MARGIN,
        )
    return Rates(cell, experiments, *(counts / experiments).tolist())


def draw_changes(cell: Cell, rng: np.random.Generator) -> list[npt.NDArray[np.int64]]:
    """Draw the change of the number of right samples, [problem], for each condition."""
    before, after = draw_chances(cell, rng)
    chances = [after, *[before] * (cell.tests - 1)]
    if cell.population != "shared seeds":
        right = rng.binomial(cell.k, before)
        return [rng.binomial(cell.k, chance) - right for chance in chances]
    baseline = rng.random((cell.n, cell.k))
    right = (baseline < before[:, None]).sum(axis=1)
    changes = []
    for chance in chances:
        is_shared = rng.random(baseline.shape) < SHARED_SEEDS
        samples = np.where(is_shared, baseline, rng.random(baseline.shape))
        changes.append((samples < chance[:, None]).sum(axis=1) - right)
    return changes


def draw_chances(cell: Cell, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw problems: their chances of success under the baseline and under the first condition."""
    if cell.population == "beta":
        weight, scale = _beta_parameters(cell.discordance, cell.effect)
        before = rng.beta(MEAN_ACCURACY * weight, (1 - MEAN_ACCURACY) * weight, cell.n)
        return before, before + scale * before * (1 - before)
    if cell.population == "skewed":
        loss = cell.discordance / (1 - cell.discordance)
        gains = rng.random(cell.n) < cell.discordance
        return np.where(gains, 0.0, 0.9), np.where(gains, 1.0, 0.9 - loss)
    shift: Floats | float
    if cell.population == "blocks":
        is_even = np.repeat(rng.random(cell.n // BLOCK) < 2 * cell.discordance, BLOCK)
        shift = np.repeat(rng.choice((-0.25, 0.25), cell.n // BLOCK), BLOCK)
    else:
        share = cell.discordance + math.sqrt(cell.discordance**2 - cell.effect**2)
        is_even = rng.random(cell.n) < share
        shift = cell.effect / (2 * share)
    certain = (rng.random(cell.n) < MEAN_ACCURACY).astype(float)
    return np.where(is_even, 0.5 - shift, certain), np.where(is_even, 0.5 + shift, certain)


@cache
def _beta_parameters(discordance: float, effect: float) -> tuple[float, float]:
    """Solve for the weight of the beta distribution and the scale s of the effect.

    With q = p + s p (1 - p), the effect is s E[p(1-p)], and the discordance is
    E[p(1-q) + q(1-p)] = 2 E[p(1-p)] + s E[p(1-p)(1-2p)]. Moments of p(1-p) under a beta
    distribution are ratios of beta functions, here products.
    """
    mean = MEAN_ACCURACY

    def moments(weight: float) -> tuple[float, float]:
        a, b = mean * weight, (1 - mean) * weight
        spread = a * b / (weight * (weight + 1))
        return spread, spread * (1 - 2 * (a + 1) / (weight + 2))

    def excess(weight: float) -> float:
        spread, skew = moments(weight)
        return 2 * spread + effect / spread * skew - discordance

    weight = float(brentq(excess, discordance / 2, 50))
    return weight, effect / moments(weight)[0]


def list_cells() -> list[Cell]:
    """All settings: no effect, the minimal detectable effect, the margin, few problems, hard."""
    cells = []
    populations: tuple[Population, ...] = ("undecided", "beta")
    for name, k, discordance in product(populations, (1, 5), DISCORDANCES):
        least = minimal_detectable_effect(
            problem_count=PROBLEMS, repeats=k, discordance=discordance
        )
        for effect in (0.0, least, MARGIN):
            # With a scale above 1 a beta chance would leave [0, 1].
            if name == "beta" and _beta_parameters(discordance, effect)[1] > 1:
                continue
            cells.append(
                Cell(population=name, n=PROBLEMS, k=k, discordance=discordance, effect=effect)
            )
    undecided = partial(Cell, population="undecided")
    for n, k in product((20, 50, 150), (1, 5)):
        cells.append(undecided(n=n, k=k, discordance=0.05, effect=MARGIN))
    cells.append(undecided(n=500, k=1, discordance=0.01, effect=0.0))
    for n, discordance in ((500, 0.01), (200, 0.01), (200, 0.02), (200, 0.05)):
        cells.append(undecided(n=n, k=5, discordance=discordance, effect=0.0))
    for n, k in product((200, 500), (1, 5, 20)):
        cells.append(Cell(population="skewed", n=n, k=k, discordance=0.01, effect=0.0))
    for k in (1, 5):
        cell = undecided(n=PROBLEMS, k=k, discordance=0.1, effect=0.0)
        cells.append(replace(cell, tests=12))
        cells.append(replace(cell, population="shared seeds"))
        cells.append(replace(cell, population="blocks"))
    return cells


def _sort_key(cell: Cell) -> tuple[int, ...]:
    """Integers for the order on the page and for the seed."""
    key = (
        get_args(Population).index(cell.population),
        cell.n,
        cell.k,
        round(1e6 * cell.discordance),
        round(1e9 * cell.effect),
    )
    return key if cell.tests == CONDITIONS else (*key, cell.tests)


def simulate_all(size: str) -> tuple[list[Rates], list[StudyRates], list[DrawRates]]:
    """Simulate all cells, studies of several models, and designs with draws, on all cores."""
    # The longest job first, so that no core waits for it at the end.
    cells = sorted(list_cells(), key=lambda cell: -cell.k)
    experiments = EXPERIMENTS[size]
    workers = len(os.sched_getaffinity(0))
    say(f"{len(cells)} settings of {experiments:,} experiments on {workers} cores")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        study_jobs = [
            pool.submit(simulate_study, study, STUDIES[size], SEED)
            for study in sorted(studies(), key=lambda study: -study.m * study.k)
        ]
        draw_jobs = [
            pool.submit(simulate_design, design, DRAWS[size], SEED) for design in designs()
        ]
        jobs = [pool.submit(simulate, cell, experiments, SEED) for cell in cells]
        rates = [job.result() for job in jobs]
        study_rates = [job.result() for job in study_jobs]
        draw_rates = [job.result() for job in draw_jobs]
    rates.sort(key=lambda row: _sort_key(row.cell))
    study_rates.sort(key=lambda row: (row.study.m, row.study.k, row.study.between))
    return rates, study_rates, draw_rates


def main() -> None:
    """Simulate all settings and write the page."""
    arguments = make_parser(__doc__).parse_args()
    size = "small" if arguments.small else "full"
    facts = report.facts("make calibrate")
    rates, study_rates, draw_rates = simulate_all(size)
    sections = [
        calibration_page.page(rates, {**facts, "seed": str(SEED)}),
        pooled_calibration.section(study_rates, STUDIES[size]),
        draws_calibration.section(draw_rates, DRAWS[size]),
    ]
    text = "".join(section for section, _ in sections)
    if arguments.small:
        print(text)
        return
    path = Path(__file__).parent / "CALIBRATION.md"
    path.write_text(text, encoding="utf-8")
    say(f"written: {path.relative_to(ROOT)}")
    missed_targets = [target for _, missed in sections for target in missed]
    if missed_targets:
        sys.exit("targets missed: " + "; ".join(missed_targets))
    say("all targets met")


if __name__ == "__main__":
    main()
