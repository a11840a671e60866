"""Simulated experiments with a known truth: do the statistics keep their promises? Writes CALIBRATION.md.

    python -m benchmarks.calibration [--small] [--seed N]

Every experiment has a baseline and three conditions on the same problems; problems are drawn anew each time, and a
problem's chance to be solved is what its samples share. The tests and intervals are those that `mless table` shows,
called on counts of right samples; Holm goes over all three differences, as it does in a table of one such run that
names no primary contrast. With --small there are few experiments, nothing is written, and nothing is proven.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from benchmarks import calibration_page, draws_calibration, report
from benchmarks.pooled_calibration import EXPERIMENTS as STUDIES
from benchmarks.pooled_calibration import section, simulate_study, studies
from benchmarks.runs import ROOT, say
from harness.analysis.paired_tests import estimate_difference, fewest_problems, holm, sign_flip_test
from harness.analysis.power import minimal_detectable_effect

Floats = npt.NDArray[np.float64]
Population = Literal["undecided", "beta", "skewed", "shared seeds", "blocks"]

ALPHA, MARGIN, CONDITIONS, N = 0.05, 0.01, 3, 500
EXPERIMENTS = {"full": 4_000, "small": 20}
SEED = 20_251
DISCORDANCES = (0.02, 0.05, 0.10, 0.20)
MEAN_ACCURACY = 0.65
SAME_DICE, BLOCK = 0.7, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One setting of the simulation.

    Attributes:
        population: `undecided`: a problem is settled, or a coin; what the power formula assumes. `beta`: chances
            of success from a U-shaped beta distribution with mean 0.65; the effect is greatest for even chances.
            `skewed`: a share `discordance` of the problems gains wholly and all others lose a little, so that the true
            difference is 0. `shared seeds`: undecided, and 7 of 10 samples of a condition fall as the baseline's do.
            `blocks`: undecided problems in blocks of `BLOCK`, each moved up or down as a whole, so that the true
            difference is 0 and problems are no independent witnesses.
        n: Problems.
        k: Samples a problem and condition.
        discordance: Share of problems in which one sample of either condition disagrees.
        effect: True difference of the first condition from the baseline; the others have none.
        tests: Conditions that are compared with the baseline.
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
        experiments: How many were made.
        false_single: The first condition has an unadjusted p < 0.05 and no effect, or one the other way.
        false_any: Any condition has an adjusted p < 0.05; counts as false where there is no effect.
        found: The first condition has an unadjusted p < 0.05 in the direction of its effect.
        covers: Its interval holds the effect.
        equivalent: It is called equivalent to the baseline.
    """

    cell: Cell
    experiments: int
    false_single: float
    false_any: float
    found: float
    covers: float
    equivalent: float


def simulate(cell: Cell, experiments: int, seed: int) -> Rates:
    """Make the experiments of one cell and count."""
    rng = np.random.default_rng([seed, *_numbers(cell)])
    draw_chances = population(cell)
    hits = np.zeros(5)
    for _ in range(experiments):
        before, after = draw_chances(rng)
        changes = draw_changes(cell, before, after, rng)
        first = estimate_difference(changes[0], cell.k)
        adjusted = holm([first.p, *map(sign_flip_test, changes[1:])])
        found = first.p < ALPHA and first.difference > 0 and cell.effect > 0
        low, high = first.interval()
        shortest_low, shortest_high = first.interval(1 - 2 * ALPHA)
        hits += (
            first.p < ALPHA and not found,
            bool((adjusted < ALPHA).any()),
            found,
            low <= cell.effect <= high,
            -MARGIN < shortest_low and shortest_high < MARGIN and cell.n >= fewest_problems(MARGIN),
        )
    return Rates(cell, experiments, *(hits / experiments).tolist())


def draw_changes(
    cell: Cell, before: Floats, after: Floats, rng: np.random.Generator
) -> list[npt.NDArray[np.int64]]:
    """Each condition's changes [problem] in right samples."""
    chances = [before if other else after for other in range(cell.tests)]
    if cell.population != "shared seeds":
        right = rng.binomial(cell.k, before)
        return [rng.binomial(cell.k, chance) - right for chance in chances]
    dice = rng.random((cell.n, cell.k))
    again = [
        np.where(rng.random(dice.shape) < SAME_DICE, dice, rng.random(dice.shape)) for _ in chances
    ]
    right = (dice < before[:, None]).sum(axis=1)
    return [
        (own < chance[:, None]).sum(axis=1) - right
        for own, chance in zip(again, chances, strict=True)
    ]


def population(cell: Cell) -> Callable[[np.random.Generator], tuple[Floats, Floats]]:
    """A function that draws n problems: their chances of success under the baseline and under the first condition."""
    if cell.population == "blocks":

        def blocks(rng: np.random.Generator) -> tuple[Floats, Floats]:
            coins = np.repeat(rng.random(cell.n // BLOCK) < 2 * cell.discordance, BLOCK)
            moved = np.repeat(rng.choice((-0.25, 0.25), cell.n // BLOCK), BLOCK)
            settled = (rng.random(cell.n) < MEAN_ACCURACY).astype(float)
            return np.where(coins, 0.5 - moved, settled), np.where(coins, 0.5 + moved, settled)

        return blocks
    if cell.population in ("undecided", "shared seeds"):
        share = cell.discordance + math.sqrt(cell.discordance**2 - cell.effect**2)
        shift = cell.effect / (2 * share)

        def undecided(rng: np.random.Generator) -> tuple[Floats, Floats]:
            coins = rng.random(cell.n) < share
            settled = (rng.random(cell.n) < MEAN_ACCURACY).astype(float)
            return np.where(coins, 0.5 - shift, settled), np.where(coins, 0.5 + shift, settled)

        return undecided
    if cell.population == "skewed":
        loss = cell.discordance / (1 - cell.discordance)

        def skewed(rng: np.random.Generator) -> tuple[Floats, Floats]:
            whole = rng.random(cell.n) < cell.discordance
            return np.where(whole, 0.0, 0.9), np.where(whole, 1.0, 0.9 - loss)

        return skewed
    weight, shift = _beta_parameters(cell.discordance, cell.effect)

    def beta(rng: np.random.Generator) -> tuple[Floats, Floats]:
        before = rng.beta(MEAN_ACCURACY * weight, (1 - MEAN_ACCURACY) * weight, cell.n)
        return before, before + shift * before * (1 - before)

    return beta


def _beta_parameters(discordance: float, effect: float) -> tuple[float, float]:
    """The beta distribution's weight and the effect's size such that discordance and effect come out as asked.

    With q = p + s p (1 - p): the effect is s E[p(1-p)], the discordance E[p(1-q) + q(1-p)] = 2 E[p(1-p)] + s E[p(1-p)
    (1-2p)]; moments of p(1-p) under a beta distribution are ratios of beta functions, here products.
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


def cells() -> list[Cell]:
    """All settings: no effect, the least detectable effect, the margin, small runs, and what is hard."""
    chosen = []
    for population_name in ("undecided", "beta"):
        for k in (1, 5):
            for discordance in DISCORDANCES:
                least = minimal_detectable_effect(n=N, k=k, discordance=discordance)
                for effect in (0.0, least, MARGIN):
                    # beyond a shift of 1 a beta chance would leave [0, 1]
                    if population_name == "beta" and _beta_parameters(discordance, effect)[1] > 1:
                        continue
                    chosen.append(
                        Cell(
                            population=population_name,
                            n=N,
                            k=k,
                            discordance=discordance,
                            effect=effect,
                        )
                    )
    for n in (20, 50, 150):
        for k in (1, 5):
            chosen.append(Cell(population="undecided", n=n, k=k, discordance=0.05, effect=MARGIN))
    for n, k, discordance in (
        (500, 1, 0.01),
        (500, 5, 0.01),
        (200, 5, 0.01),
        (200, 5, 0.02),
        (200, 5, 0.05),
    ):
        chosen.append(Cell(population="undecided", n=n, k=k, discordance=discordance, effect=0.0))
    for n in (200, 500):
        for k in (1, 5, 20):
            chosen.append(Cell(population="skewed", n=n, k=k, discordance=0.01, effect=0.0))
    for k in (1, 5):
        none = Cell(population="undecided", n=N, k=k, discordance=0.1, effect=0.0)
        chosen.append(replace(none, tests=12))
        chosen.append(replace(none, population="shared seeds"))
        chosen.append(replace(none, population="blocks"))
    return chosen


def _numbers(cell: Cell) -> tuple[int, ...]:
    return (
        get_args(Population).index(cell.population),
        cell.n,
        cell.k,
        round(1e6 * cell.discordance),
        round(1e9 * cell.effect),
        *([cell.tests] if cell.tests != CONDITIONS else []),
    )


def main() -> None:
    """Simulate all cells, on all cores, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--small", action="store_true", help="few experiments, nothing written")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    size = "small" if arguments.small else "full"
    experiments = EXPERIMENTS[size]
    command = (
        "make calibrate"
        if arguments.seed == SEED
        else f"python -m benchmarks.calibration --seed {arguments.seed}"
    )
    facts = report.facts(command)
    todo = cells()
    # the longest first, so that no core waits for one of them at the end
    todo.sort(key=lambda cell: -cell.k)
    workers = len(os.sched_getaffinity(0))
    say(f"{len(todo)} settings of {experiments:,} experiments on {workers} cores")
    rates = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        several = [
            pool.submit(simulate_study, study, STUDIES[size], arguments.seed)
            for study in sorted(studies(), key=lambda study: -study.m * study.k)
        ]
        runs = draws_calibration.EXPERIMENTS[size]
        of_draws = [
            pool.submit(draws_calibration.simulate_design, design, runs, arguments.seed)
            for design in draws_calibration.designs()
        ]
        jobs = [pool.submit(simulate, cell, experiments, arguments.seed) for cell in todo]
        for job in jobs:
            rates.append(job.result())
            say(f"{len(rates)}/{len(todo)}: {rates[-1].cell}")
        pooled = sorted(
            (job.result() for job in several),
            key=lambda one: (one.study.m, one.study.k, one.study.between),
        )
        draw_rates = [job.result() for job in of_draws]
    rates.sort(key=lambda one: _numbers(one.cell))
    text, missed = calibration_page.page(rates, {**facts, "seed": str(arguments.seed)})
    for more, missed_too in (section(pooled), draws_calibration.section(draw_rates, runs)):
        text, missed = text + more, missed + missed_too
    if arguments.small:
        print(text)
        return
    path = Path(__file__).parent / "CALIBRATION.md"
    path.write_text(text, encoding="utf-8")
    say(f"written: {path.relative_to(ROOT)}")
    if missed:
        say("targets missed: " + "; ".join(missed))
        sys.exit(1)
    say("all targets met")


if __name__ == "__main__":
    main()
