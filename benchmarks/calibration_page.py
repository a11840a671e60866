"""The page of the calibration: tables of simulated rates. What misses its target is bold."""

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
    """The results as Markdown, and what missed its target."""
    missed: list[str] = []

    def judged(what: str, one: Rates, rate: float, low: float, high: float) -> str:
        if one.cell.discordance == REPORTED or low <= rate <= high:
            return _percent(rate)
        missed.append(f"{what} {_percent(rate)}: {one.cell}")
        return f"**{_percent(rate)}**"

    def covers(one: Rates) -> str:
        return judged("coverage", one, one.covers, 0.94, 1)

    usual = [
        one for one in rates if one.cell.population in ("undecided", "beta") and one.cell.tests == 3
    ]
    full = [one for one in usual if one.cell.n == N and one.cell.discordance >= REPORTED]
    margin = {_setting(one): one for one in full if one.cell.effect == MARGIN}
    few = [one for one in rates if one.cell.effect == MARGIN and one.cell.discordance == 0.05]
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
    text += NONE + table(
        (*SETTING, "any", "first", "covers", "equivalent", "at margin"),
        (
            (
                *_setting(one),
                judged("false effects", one, one.false_any, 0, 0.05),
                _percent(one.false_single),
                covers(one),
                _percent(one.equivalent),
                judged("false equivalence", one, margin[_setting(one)].equivalent, 0, 0.05)
                if _setting(one) in margin
                else "-",
            )
            for one in full
            if one.cell.effect == 0
        ),
    )
    text += LEAST + table(
        (*SETTING, "effect, points", "found", "covers"),
        (
            (
                *_setting(one),
                f"{100 * one.cell.effect:.2f}",
                judged("power", one, one.found, _formula(one) - 0.02, _formula(one) + 0.02)
                if one.cell.population == "undecided"
                else _percent(one.found),
                covers(one),
            )
            for one in full
            if one.cell.effect not in (0, MARGIN)
        ),
    )
    text += FEW + table(
        ("n", "k", "covers"),
        (
            (str(one.cell.n), str(one.cell.k), _percent(one.covers))
            for one in sorted(few, key=lambda one: (one.cell.k, one.cell.n))
            if one.cell.population == "undecided"
        ),
    )
    limits = {"skewed": (0.06, 0.06), "blocks": (1.0, 1.0)}
    rows = []
    for one in (one for one in rates if one not in full and one not in few):
        single, several = limits.get(one.cell.population, (0.06, 0.05))
        setting = (
            one.cell.population,
            one.cell.n,
            one.cell.k,
            f"{100 * one.cell.discordance:g}",
            one.cell.tests,
        )
        first = judged("false effects", one, one.false_single, 0, single)
        found = (first, judged("false effects after Holm", one, one.false_any, 0, several))
        rows.append((*map(str, setting), *found, _percent(one.covers)))
    text += HARD + table(
        ("population", "n", "k", "discordance", "tests", "first", "any", "covers"), rows
    )
    return text, missed


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown after an empty line."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def _setting(one: Rates) -> tuple[str, str, str]:
    return one.cell.population, str(one.cell.k), f"{100 * one.cell.discordance:g}"


def _formula(one: Rates) -> float:
    cell = one.cell
    return detection_power(cell.effect, n=cell.n, k=cell.k, discordance=cell.discordance)


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f}"
