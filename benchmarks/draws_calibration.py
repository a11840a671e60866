"""Simulate runs with several draws of examples or instructions, and estimates for new ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.calibration_page import Targets, standard_error
from benchmarks.report import table
from harness.analysis.crossed_effects import (
    CrossedDifference,
    estimate_crossed,
    estimate_over_draws,
)
from harness.analysis.paired_tests import PairedDifference
from harness.constants import FEWEST_DRAWS

Floats = npt.NDArray[np.float64]
Effects = Literal["alike", "skewed", "one in five"]

EXPERIMENTS = {"full": 2_000, "small": 5}
FALSE_RATE = 0.06
ABILITY = {"mean": -0.8, "cluster": 2.0, "problem": 2.0, "draw": 0.3, "answer": 3.0}
"""Mean and standard deviations in logits, estimated for SmolLM2 on products in results/example."""
CLUSTER_EFFECT = 1.5
SKEWED_SHARE = 0.1
POPULATION = 400_000

TEXT = """
## Draws of examples

Each row has {experiments:,} runs with the ability of SmolLM2 on products: an accuracy of 40
percent, problems in clusters of one or two, and answers that depend on the examples. A run has a
number of `problems`, each with `each` of its draws. The first rows have about the same cost, 240
samples a condition. `shift`: standard deviation, in logits, of the effect between draws. `skewed`:
one cluster in ten has the complete effect, and all others lose a little, so that the mean is 0.
False: p < 0.05 without an effect (at most {target:g} from four draws on; with fewer draws the
result applies to these examples only). Covers: the interval contains the mean over all draws and
problems, without an effect and with one. Found: p < 0.05 where the true difference is 10 points.
Width: of the interval, in points.

"""
INSTRUCTIONS = """
## One instruction in five has the complete effect

As above, with instructions instead of draws. Each instruction has an effect with a chance of one in
five, and the mean over all instructions is 4 points. Covers: the interval for new instructions
contains it. There is no target, because among few instructions a run may have none with an effect.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """The size of a run, and how the effect varies.

    Attributes:
        clusters: The number of clusters of problems.
        problems: The number of problems: one or two in a cluster.
        draws: The number of draws of examples, or of instructions.
        each: The number of draws for each problem.
        shift: Standard deviation of the effect between draws, in logits.
        effects: How the effect varies otherwise.
    """

    clusters: int
    problems: int
    draws: int
    each: int
    shift: float = 0.5
    effects: Effects = "alike"


@dataclass(frozen=True, slots=True)
class DrawRates:
    """Shares of a design's runs without and with an effect: see `TEXT`."""

    design: Design
    false: float
    covers: float
    covers_effect: float
    detected: float
    width: float


def designs() -> list[Design]:
    """The designs of both tables."""
    designs = [
        Design(clusters=43, problems=80, draws=3, each=3),
        Design(clusters=30, problems=30, draws=8, each=8),
        Design(clusters=24, problems=24, draws=10, each=10),
        Design(clusters=20, problems=20, draws=12, each=12),
        Design(clusters=15, problems=15, draws=16, each=16),
    ]
    for draws in (8, 10, 12, 16):
        designs.append(Design(clusters=43, problems=80, draws=draws, each=3))
    sizes = [Design(clusters=42, problems=79, draws=3, each=3)]
    sizes.append(Design(clusters=126, problems=237, draws=3, each=3))
    variations: tuple[Effects, ...] = ("alike", "skewed")
    draw_counts = ((3, 3), (4, 4), (8, 8), (12, 3))
    for size, (draws, each), shift, effects in product(sizes, draw_counts, (0.0, 0.5), variations):
        designs.append(replace(size, draws=draws, each=each, shift=shift, effects=effects))
    for size, count in product(sizes, (4, 5, 8, 20)):
        designs.append(replace(size, draws=count, each=count, shift=0, effects="one in five"))
    return designs


def simulate_design(design: Design, experiments: int, seed: int) -> DrawRates:
    """Simulate the runs of one design and compute their rates."""
    target = 0.04 if design.effects == "one in five" else 0.1
    rates = []
    for mean in (0.0, target):
        size = solve_effect(mean, design.shift, design.effects)
        rng = np.random.default_rng(
            [seed, design.clusters, design.draws, design.each, round(1000 * mean)]
        )
        totals = np.zeros(3)
        for _ in range(experiments):
            estimate = _simulate_run(design, size, rng)
            low, high = estimate.interval()
            totals += estimate.p < 0.05, low <= mean <= high, high - low
        rates.append((totals / experiments).tolist())
    (false, covers, _), (detected, covers_effect, width) = rates
    return DrawRates(design, false, covers, covers_effect, detected, 100 * width)


def _simulate_run(
    design: Design, size: float, rng: np.random.Generator
) -> PairedDifference | CrossedDifference:
    """Simulate one run and estimate its difference."""
    pairs = design.problems - design.clusters
    sizes = rng.permutation(np.repeat([1, 2], [design.clusters - pairs, pairs]))
    clusters = np.repeat(np.arange(design.clusters), sizes)
    shape = design.draws, design.problems
    ability = (
        ABILITY["mean"]
        + ABILITY["cluster"] * rng.normal(size=design.clusters)[clusters]
        + ABILITY["problem"] * rng.normal(size=design.problems)
        + ABILITY["draw"] * rng.normal(size=(design.draws, 1))
        + ABILITY["answer"] * rng.normal(size=shape)
    )
    draw_effects, cluster_effects = _draw_effects(design, size, rng)
    effect = draw_effects[:, None] + cluster_effects[clusters]
    before, after = (rng.random(shape) < expit(ability + side * effect / 2) for side in (-1, 1))
    is_sampled = (np.arange(design.draws)[:, None] - clusters) % design.draws < design.each
    changes = np.where(is_sampled, after.astype(np.int64) - before, 0)
    estimate = estimate_crossed if design.effects == "one in five" else estimate_over_draws
    return estimate(changes, is_sampled.astype(np.int64), clusters)


def _draw_effects(design: Design, size: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw the effect of each draw and of each cluster, in logits. They add up."""
    draw_effects = design.shift * rng.normal(size=design.draws)
    cluster_effects = CLUSTER_EFFECT * rng.normal(size=design.clusters)
    if design.effects == "one in five":
        return draw_effects + size * (rng.random(design.draws) < 0.2), cluster_effects
    if design.effects == "skewed":
        has_effect = rng.random(design.clusters) < SKEWED_SHARE
        cluster_effects = np.where(has_effect, 4 * CLUSTER_EFFECT, 0.0)
    return draw_effects + size, cluster_effects


@cache
def solve_effect(mean: float, shift: float, effects: Effects) -> float:
    """Solve for the size of the effect, in logits, that gives the true difference `mean`."""
    if effects == "one in five" and not mean:
        return 0.0
    rng = np.random.default_rng(1)
    spread = np.sqrt(sum(value**2 for name, value in ABILITY.items() if name != "mean"))
    ability = ABILITY["mean"] + spread * rng.normal(size=POPULATION)
    population = Design(
        clusters=POPULATION, problems=0, draws=POPULATION, each=0, shift=shift, effects=effects
    )

    def excess(size: float) -> float:
        effect = sum(_draw_effects(population, size, np.random.default_rng(2)))
        return float((expit(ability + effect / 2) - expit(ability - effect / 2)).mean()) - mean

    return float(brentq(excess, -5, 20, xtol=1e-4))


def section(rates: Iterable[DrawRates], experiments: int) -> tuple[str, list[str]]:
    """Format the results as Markdown. Return the text and the missed targets."""
    targets = Targets(digits=1, tolerance=2 * standard_error(experiments))
    draws, instructions = [], []
    for rate in rates:
        design = rate.design
        setting = [str(design.clusters), str(design.problems), str(design.draws)]
        covers = f"{100 * rate.covers_effect:.1f}"
        width = f"{rate.width:.1f}"
        if design.effects == "one in five":
            instructions.append([*setting, covers, width])
            continue
        setting += [str(design.each), f"{design.shift:g}", design.effects]
        limit = FALSE_RATE if design.draws >= FEWEST_DRAWS else 1.0
        false = targets.format("false effects", design, rate.false, 0, limit)
        covers_zero, detected = f"{100 * rate.covers:.1f}", f"{100 * rate.detected:.1f}"
        draws.append([*setting, false, covers_zero, covers, detected, width])
    header = "clusters,problems,draws,each,shift,effects,false,covers,with an effect,found,width"
    text = TEXT.format(experiments=experiments, target=100 * FALSE_RATE)
    text += table(header.split(","), draws) + INSTRUCTIONS
    text += table(["clusters", "problems", "instructions", "covers", "width"], instructions)
    return text, targets.missed
