"""The page of the calibration: tables of simulated rates, with missed targets in bold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from benchmarks.report import table
from harness.analysis.power import detection_power

if TYPE_CHECKING:
    from benchmarks.calibration import Rates

PROBLEMS, MARGIN = 500, 0.01
REPORTED = 0.02
"""The discordance without targets except at the margin: ten flips in 500 problems."""

HEAD = """\
# Calibration of the statistics

Written by `{command}` with seed {seed} at {revision:.12}, {date}. Tests and intervals are applied
to experiments whose truth is known. Each row has {experiments:,} experiments. Rates are in percent,
with a standard error of {error:.2f} near 5 and 95. A missed target is **bold**; {reported:g}
percent discordance has a target at the margin only. n is 500 if nothing else is stated.

`undecided`: every problem is certain, or its chance of success is even, as the formula for power
assumes. `beta`: chances of success from a U-shaped beta distribution with mean 0.65. Exact tests
reject less than 5 percent if no p lies just below 0.05.
"""
NONE = """
## No effect

Baseline and three conditions have equal chances. Any: a difference has p < 0.05 after Holm (target:
at most 5). First: the first difference has an unadjusted p < 0.05. Covers: its interval contains 0
(at least 94). Equivalent: at a margin of 1 point. At margin: the same where the true difference is
the margin (at most 5). Where flips are rare and one-sided, this target is missed.

"""
LEAST = """
## The minimal detectable effect

The first condition has the effect that 80 percent of experiments should detect. Found: within 2
points of the computed power for `undecided`. Covers: the interval contains the effect.

"""
FEW = """
## Few problems

A true difference of 1 point, discordance 5 percent. No targets.

"""
HARD = """
## Hard populations

No effect. `skewed`: the discordance is the share of problems whose chance rises from 0 to 1; all
others lose a little. `shared seeds`: 7 of 10 samples agree with the baseline's. `blocks`: five
problems change together, and the tests **fail**. Targets: first at most 6; any at most 5, or 6 if
skewed.

"""
COVERAGE = (0.94, 1)
SETTING = ("population", "k", "discordance")


def page(rates: Sequence[Rates], facts: Mapping[str, str]) -> tuple[str, list[str]]:
    """Format the results in Markdown. Return the text and the missed targets."""
    targets = Targets(digits=2)
    full, few, hard = [], [], []
    for row in rates:
        cell = row.cell
        is_usual = cell.population in ("undecided", "beta") and cell.tests == 3
        is_few = cell.effect == MARGIN and cell.discordance == 0.05
        if is_few:
            few.append(row)
        if is_usual and cell.n == PROBLEMS and cell.discordance >= REPORTED:
            full.append(row)
        elif not is_few:
            hard.append(row)
    experiments = rates[0].experiments
    text = HEAD.format(
        command=facts["command"],
        seed=facts["seed"],
        revision=facts["git revision"],
        date=facts["date"],
        experiments=experiments,
        error=100 * standard_error(experiments),
        reported=100 * REPORTED,
    )
    few_rows = [
        (str(row.cell.n), str(row.cell.k), _percent(row.covers))
        for row in sorted(few, key=lambda row: (row.cell.k, row.cell.n))
        if row.cell.population == "undecided"
    ]
    text += NONE + _table_without_effect(full, targets)
    text += LEAST + _table_of_least_effect(full, targets)
    text += FEW + table(("n", "k", "covers"), few_rows)
    text += HARD + _table_of_hard_cells(hard, targets)
    return text, targets.missed


class Targets:
    """Formats rates, and collects those that miss their target.

    Args:
        digits: Decimals of a rate in percent.
        tolerance: Largest distance between a rate and its target that does not count as a miss.
    """

    def __init__(self, digits: int, tolerance: float = 0.0) -> None:
        self._digits, self._tolerance = digits, tolerance
        self.missed: list[str] = []

    def format(self, quantity: str, setting: object, rate: float, low: float, high: float) -> str:
        """The rate in percent, bold if it is not between `low` and `high`."""
        text = f"{100 * rate:.{self._digits}f}"
        if low - self._tolerance <= rate <= high + self._tolerance:
            return text
        self.missed.append(f"{quantity} {text}: {setting}")
        return f"**{text}**"


def standard_error(experiments: int) -> float:
    """Standard error of a rate near 5 or 95 percent."""
    return math.sqrt(0.05 * 0.95 / experiments)


def _format(
    targets: Targets, quantity: str, row: Rates, rate: float, low: float, high: float
) -> str:
    if row.cell.discordance == REPORTED:
        return _percent(rate)
    return targets.format(quantity, row.cell, rate, low, high)


def _table_without_effect(rates: Sequence[Rates], targets: Targets) -> str:
    at_margin = {_setting(row): row for row in rates if row.cell.effect == MARGIN}
    lines = []
    for row in rates:
        if row.cell.effect == 0:
            setting = _setting(row)
            false_effects = _format(targets, "false effects", row, row.false_any, 0, 0.05)
            covers = _format(targets, "coverage", row, row.covers, *COVERAGE)
            line = [*setting, false_effects, _percent(row.false_single), covers]
            false_equivalence = "-"
            if setting in at_margin:
                rate = at_margin[setting].equivalent
                false_equivalence = targets.format("false equivalence", row.cell, rate, 0, 0.05)
            lines.append([*line, _percent(row.equivalent), false_equivalence])
    return table((*SETTING, "any", "first", "covers", "equivalent", "at margin"), lines)


def _table_of_least_effect(rates: Sequence[Rates], targets: Targets) -> str:
    lines = []
    for row in rates:
        cell = row.cell
        if cell.effect in (0, MARGIN):
            continue
        detected = _percent(row.detected)
        if cell.population == "undecided":
            power = detection_power(
                cell.effect, problem_count=cell.n, repeats=cell.k, discordance=cell.discordance
            )
            detected = _format(targets, "power", row, row.detected, power - 0.02, power + 0.02)
        effect = f"{100 * cell.effect:.2f}"
        covers = _format(targets, "coverage", row, row.covers, *COVERAGE)
        lines.append([*_setting(row), effect, detected, covers])
    return table((*SETTING, "effect, points", "found", "covers"), lines)


def _table_of_hard_cells(rates: Sequence[Rates], targets: Targets) -> str:
    limits = {"skewed": (0.06, 0.06), "blocks": (1.0, 1.0)}
    lines = []
    for row in rates:
        cell = row.cell
        limit, adjusted_limit = limits.get(cell.population, (0.06, 0.05))
        lines.append(
            [
                cell.population,
                str(cell.n),
                str(cell.k),
                f"{100 * cell.discordance:g}",
                str(cell.tests),
                _format(targets, "false effects", row, row.false_single, 0, limit),
                _format(targets, "false effects after Holm", row, row.false_any, 0, adjusted_limit),
                _percent(row.covers),
            ]
        )
    header = ("population", "n", "k", "discordance", "tests", "first", "any", "covers")
    return table(header, lines)


def _setting(row: Rates) -> tuple[str, str, str]:
    return row.cell.population, str(row.cell.k), f"{100 * row.cell.discordance:g}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f}"
