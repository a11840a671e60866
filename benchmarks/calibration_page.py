"""The page of the calibration: tables of simulated rates. Missed targets are bold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from harness.analysis.power import detection_power

if TYPE_CHECKING:
    from benchmarks.calibration import Rates

N, MARGIN = 500, 0.01
REPORTED = 0.02
"""The discordance without targets: ten flips in 500 problems."""

HEAD = """\
# Calibration of the statistics

Written by `{command}` with seed {seed} at {revision:.12}, {date}. Do experiments with a known truth show that tests and
intervals keep their promises? {experiments:,} experiments a row; rates in percent, with a standard error of {error:.2f}
near 5 and 95. A missed target is **bold**; {reported:g} percent discordance has none. n is 500 unless said.

`undecided`: every problem is settled or a coin, as the simulation of power assumes. `beta`: chances of success from a
U-shaped beta distribution with mean 0.65. Exact tests reject less than 5 percent where no p lies just below 0.05.
"""
NONE = """
## No effect anywhere

Baseline and three conditions alike. Any: a difference has p < 0.05 after Holm (target: at most 5). First: the first
has, unadjusted. Covers: its interval holds 0 (at least 94). Equivalent: at a margin of 1 point. At margin: the same
where the true difference is the margin (at most 5).
"""
LEAST = """
## The minimal detectable effect

The first condition has the effect that 80 percent should find. Found: within 2 points of that for `undecided`.
Covers: the interval holds the effect.
"""
FEW = """
## Few problems

A true difference of 1 point, discordance 5 percent. No targets.
"""
HARD = """
## What is hard

No effect. `skewed`: the discordance is the share of problems that gain wholly; all others lose a little. `shared
seeds`: 7 of 10 samples fall as the baseline's do. `blocks`: five problems move together, and the tests **fail**.
Targets: first at most 6; any at most 5, or 6 if skewed.
"""
SETTING = ("population", "k", "discordance")


def page(rates: Sequence[Rates], facts: Mapping[str, str]) -> tuple[str, list[str]]:
    """Format the results as Markdown. Return the text and the missed targets."""
    judge = _Judge()
    usual = [
        row for row in rates if row.cell.population in ("undecided", "beta") and row.cell.tests == 3
    ]
    full = [row for row in usual if row.cell.n == N and row.cell.discordance >= REPORTED]
    few = [row for row in rates if row.cell.effect == MARGIN and row.cell.discordance == 0.05]
    hard = [row for row in rates if row not in full and row not in few]
    experiments = rates[0].experiments
    text = HEAD.format(
        command=facts["command"],
        seed=facts["seed"],
        revision=facts["git revision"],
        date=facts["date"],
        experiments=experiments,
        error=100 * math.sqrt(0.05 * 0.95 / experiments),
        reported=100 * REPORTED,
    )
    text += NONE + _table_without_effect(full, judge)
    text += LEAST + _table_of_least_effect(full, judge)
    text += FEW + table(
        ("n", "k", "covers"),
        (
            (str(row.cell.n), str(row.cell.k), _percent(row.covers))
            for row in sorted(few, key=lambda row: (row.cell.k, row.cell.n))
            if row.cell.population == "undecided"
        ),
    )
    text += HARD + _table_of_hard_cells(hard, judge)
    return text, judge.missed


class _Judge:
    """Formats rates, and collects those that miss their target."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def format(self, quantity: str, row: Rates, rate: float, low: float, high: float) -> str:
        """The rate in percent, bold if it is not between `low` and `high`."""
        if row.cell.discordance == REPORTED or low <= rate <= high:
            return _percent(rate)
        self.missed.append(f"{quantity} {_percent(rate)}: {row.cell}")
        return f"**{_percent(rate)}**"

    def coverage(self, row: Rates) -> str:
        return self.format("coverage", row, row.covers, 0.94, 1)


def _table_without_effect(rates: Sequence[Rates], judge: _Judge) -> str:
    at_margin = {_setting(row): row for row in rates if row.cell.effect == MARGIN}
    lines = []
    for row in rates:
        if row.cell.effect:
            continue
        line = [
            *_setting(row),
            judge.format("false effects", row, row.false_any, 0, 0.05),
            _percent(row.false_single),
            judge.coverage(row),
            _percent(row.equivalent),
            "-",
        ]
        if _setting(row) in at_margin:
            rate = at_margin[_setting(row)].equivalent
            line[-1] = judge.format("false equivalence", row, rate, 0, 0.05)
        lines.append(line)
    return table((*SETTING, "any", "first", "covers", "equivalent", "at margin"), lines)


def _table_of_least_effect(rates: Sequence[Rates], judge: _Judge) -> str:
    lines = []
    for row in rates:
        cell = row.cell
        if cell.effect in (0, MARGIN):
            continue
        detected = _percent(row.detected)
        if cell.population == "undecided":
            power = detection_power(cell.effect, n=cell.n, k=cell.k, discordance=cell.discordance)
            detected = judge.format("power", row, row.detected, power - 0.02, power + 0.02)
        effect = f"{100 * cell.effect:.2f}"
        lines.append([*_setting(row), effect, detected, judge.coverage(row)])
    return table((*SETTING, "effect, points", "found", "covers"), lines)


def _table_of_hard_cells(rates: Sequence[Rates], judge: _Judge) -> str:
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
                judge.format("false effects", row, row.false_single, 0, limit),
                judge.format("false effects after Holm", row, row.false_any, 0, adjusted_limit),
                _percent(row.covers),
            ]
        )
    header = ("population", "n", "k", "discordance", "tests", "first", "any", "covers")
    return table(header, lines)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a table as Markdown after an empty line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _setting(row: Rates) -> tuple[str, str, str]:
    return row.cell.population, str(row.cell.k), f"{100 * row.cell.discordance:g}"


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f}"
