"""Simulated runs with several draws of examples, or several instructions: do results hold for new ones?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks.calibration_page import table
from harness.analysis.paired_tests import PairedDifference
from harness.analysis.pool_models import (
    FEWEST_DRAWS,
    CrossedDifference,
    estimate_crossed,
    estimate_over_draws,
)

Floats = npt.NDArray[np.float64]
Effects = Literal["alike", "skewed", "one in five"]

EXPERIMENTS = {"full": 2_000, "small": 5}
FALSE_RATE = 0.06
ABILITY = {"mean": -0.8, "cluster": 2.0, "problem": 2.0, "draw": 0.3, "answer": 3.0}
"""Standard deviations in logits, and the mean: SmolLM2 on products, as far as results/example tells."""
CLUSTER_EFFECT = 1.5
SKEWED_SHARE = 0.1
POPULATION = 400_000

TEXT = """
## Draws of examples

{experiments:,} runs a row, with the ability of SmolLM2 on products: an accuracy of 40 percent, problems in clusters of
one or two, answers that depend on the examples. A run asks `problems`, each with `each` of its draws; the first rows
have about the same cost, 240 samples a condition. `shift`: standard deviation, in logits, of the effect between
draws. `skewed`: one cluster in ten has the whole effect of a problem, and all others lose a little, so that the mean
is 0. False: p < 0.05 without an effect (at most {target:g} from four draws on; with fewer the result is for these
examples). Covers: the interval holds the mean over all draws and problems, without an effect and with one. Found: p <
0.05 where the true difference is 10 points. Width: of the interval, points.
"""
INSTRUCTIONS = """
## One instruction in five has the whole effect

As above, with instructions in place of draws: each has an effect with a chance of one in five, and the mean over all is
4 points. Covers: the interval for new instructions holds it. No target: with few instructions a run may have none of
the kind that matters.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What a run asks, and how the effect varies.

    Attributes:
        clusters: Of problems.
        problems: In them, one or two each.
        draws: Of examples, or instructions.
        each: With how many draws a problem is asked.
        shift: Standard deviation of the effect between draws, in logits.
        effects: How it varies otherwise.
    """

    clusters: int
    problems: int
    draws: int
    each: int
    shift: float = 0.5
    effects: Effects = "alike"


@dataclass(frozen=True, slots=True)
class DrawRates:
    """Shares of a design's runs without an effect, and with one: see `TEXT`."""

    design: Design
    false: float
    covers: float
    covers_effect: float
    found: float
    width: float


def designs() -> list[Design]:
    """All of both tables."""
    same_cost = [
        Design(clusters=43, problems=80, draws=3, each=3),
        Design(clusters=30, problems=30, draws=8, each=8),
        Design(clusters=24, problems=24, draws=10, each=10),
        Design(clusters=20, problems=20, draws=12, each=12),
        Design(clusters=15, problems=15, draws=16, each=16),
        *[Design(clusters=43, problems=80, draws=draws, each=3) for draws in (8, 10, 12, 16)],
    ]
    others = [
        Design(
            clusters=clusters,
            problems=problems,
            draws=draws,
            each=each,
            shift=shift,
            effects=effects,
        )
        for clusters, problems in ((42, 79), (126, 237))
        for draws, each in ((3, 3), (4, 4), (8, 8), (12, 3))
        for shift in (0.0, 0.5)
        for effects in ("alike", "skewed")
    ]
    instructions = [
        Design(
            clusters=clusters,
            problems=problems,
            draws=draws,
            each=draws,
            shift=0,
            effects="one in five",
        )
        for clusters, problems in ((42, 79), (126, 237))
        for draws in (4, 5, 8, 20)
    ]
    return [*same_cost, *others, *instructions]


def simulate_design(design: Design, experiments: int, seed: int) -> DrawRates:
    """Make the runs of one design and count."""
    target = 0.04 if design.effects == "one in five" else 0.1
    rates = []
    for mean in (0.0, target):
        size = solve_effect(mean, design.shift, design.effects)
        rng = np.random.default_rng(
            [seed, design.clusters, design.draws, design.each, round(1000 * mean)]
        )
        hits = np.zeros(3)
        for _ in range(experiments):
            estimate = _simulate_run(design, size, rng)
            low, high = estimate.interval()
            hits += estimate.p < 0.05, low <= mean <= high, high - low
        rates.append(hits / experiments)
    (false, covers, _), (found, covers_effect, width) = (rate.tolist() for rate in rates)
    return DrawRates(design, false, covers, covers_effect, found, 100 * width)


def _simulate_run(
    design: Design, size: float, rng: np.random.Generator
) -> PairedDifference | CrossedDifference:
    """The estimate of one run."""
    doubled = design.problems - design.clusters
    sizes = rng.permutation(np.repeat([1, 2], [design.clusters - doubled, doubled]))
    clusters = np.repeat(np.arange(design.clusters), sizes)
    shape = design.draws, design.problems
    ability = (
        ABILITY["mean"]
        + ABILITY["cluster"] * rng.normal(size=design.clusters)[clusters]
        + ABILITY["problem"] * rng.normal(size=design.problems)
        + ABILITY["draw"] * rng.normal(size=(design.draws, 1))
        + ABILITY["answer"] * rng.normal(size=shape)
    )
    of_draws, of_clusters = _draw_effects(
        rng, design.draws, design.clusters, size, design.shift, design.effects
    )
    effect = of_draws[:, None] + of_clusters[clusters]
    before, after = (rng.random(shape) < expit(ability + side * effect / 2) for side in (-1, 1))
    asked = (np.arange(design.draws)[:, None] - clusters) % design.draws < design.each
    changes = np.where(asked, after.astype(np.int64) - before, 0)
    estimate = estimate_crossed if design.effects == "one in five" else estimate_over_draws
    return estimate(changes, asked.astype(np.int64), clusters)


def _draw_effects(
    rng: np.random.Generator, draws: int, clusters: int, size: float, shift: float, effects: Effects
) -> tuple[Floats, Floats]:
    """The effect of each draw and that of each cluster, in logits: they add up."""
    of_draws, of_clusters = (
        shift * rng.normal(size=draws),
        CLUSTER_EFFECT * rng.normal(size=clusters),
    )
    if effects == "one in five":
        return of_draws + size * (rng.random(draws) < 0.2), of_clusters
    if effects == "skewed":
        of_clusters = np.where(rng.random(clusters) < SKEWED_SHARE, 4 * CLUSTER_EFFECT, 0.0)
    return of_draws + size, of_clusters


@cache
def solve_effect(mean: float, shift: float, effects: Effects) -> float:
    """The size of the effect, in logits, with which the true difference is `mean`, a share."""
    rng = np.random.default_rng(1)
    spread = np.sqrt(sum(value**2 for name, value in ABILITY.items() if name != "mean"))
    ability = ABILITY["mean"] + spread * rng.normal(size=POPULATION)

    def excess(size: float) -> float:
        same = np.random.default_rng(2)
        of_draws, of_clusters = _draw_effects(same, POPULATION, POPULATION, size, shift, effects)
        effect = of_draws + of_clusters
        return float((expit(ability + effect / 2) - expit(ability - effect / 2)).mean()) - mean

    return (
        0.0 if effects == "one in five" and not mean else float(brentq(excess, -5, 20, xtol=1e-4))
    )


def section(rates: Iterable[DrawRates], experiments: int) -> tuple[str, list[str]]:
    """The results as Markdown, and what missed its target."""
    missed: list[str] = []
    slack = 2 * (0.05 * 0.95 / experiments) ** 0.5
    draws, instructions = [], []
    for rate in rates:
        design = rate.design
        setting = [str(design.clusters), str(design.problems), str(design.draws)]
        covers = f"{100 * rate.covers_effect:.1f}"
        if design.effects == "one in five":
            instructions.append([*setting, covers, f"{rate.width:.1f}"])
            continue
        false = f"{100 * rate.false:.1f}"
        if design.draws >= FEWEST_DRAWS and rate.false > FALSE_RATE + slack:
            missed.append(f"false effects {false}: {design}")
            false = f"**{false}**"
        setting += [str(design.each), f"{design.shift:g}", design.effects]
        measured = (
            f"{100 * rate.covers:.1f}",
            covers,
            f"{100 * rate.found:.1f}",
            f"{rate.width:.1f}",
        )
        draws.append([*setting, false, *measured])
    heading = ["clusters", "problems", "draws"]
    text = TEXT.format(experiments=experiments, target=100 * FALSE_RATE)
    text += table(
        [
            *heading,
            "each",
            "shift",
            "effects",
            "false",
            "covers",
            "with an effect",
            "found",
            "width",
        ],
        draws,
    )
    return text + INSTRUCTIONS + table(
        [*heading[:2], "instructions", "covers", "width"], instructions
    ), missed
