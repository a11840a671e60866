"""The page of the calibration: tables of simulated rates, each beside its target."""

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

Written by `make calibrate`; do not edit. `harness/analysis` is what is calibrated.

{facts}

{experiments:,} experiments a row; the standard error of a rate near 5 or 95 percent is {error:.2f} points. `yes` or
`no` after a number says whether its target is met; rows at {reported:g} percent discordance have none.

Populations: `undecided`, every problem is settled or a coin, as the power formula assumes; `beta`, chances of success
from a U-shaped beta distribution with mean 0.65. In both, the k samples of a problem share its chance.

Counts are whole numbers, and it shows. The exact tests reject less often than 5 percent where no possible p-value
lies just below 0.05; coverage moves with whether the true effect is a possible count.
"""
NONE = """
## No effect anywhere

Baseline and three conditions alike, n = 500. False effects: experiments in which any of the three differences has
p < 0.05 after Holm (target: at most 5), and those in which the first has, alone and unadjusted. Coverage: 95 percent
score intervals of one difference that hold the true difference 0 (target: 94 to 96), and those that a table of the
three shows, which share alpha and hold 0 unless the adjusted test is passed (target: at least 95). All in percent.
"""
LEAST = """
## The minimal detectable effect

The first condition has the effect of which the formula says that 80 percent find it at alpha 0.05, n = 500. Target:
found within 2 points of the formula in its own population; in the other, where problems differ in how far they move,
it is reported. Coverage of that effect: 94 to 96 for the interval of one difference, at least 95 for the one shown.
"""
EQUIVALENCE = """
## Equivalence

The margin is 1 point. Called equivalent although the true difference is the margin (target: at most 5), and called
equivalent where it is 0 (how often equivalence can be shown at all; no target).
"""
FEW = """
## Few problems

A true difference of 1 point, discordance 5 percent, and fewer problems: often none changes, or all change one way. No
targets.
"""
HARD = """
## What is hard

No effect. `undecided`: hardly any problem changes, there are few, or many tests. `skewed`: a share of the
problems, the discordance, gains wholly, and all others lose so little that the true difference is 0; sign flips
alone take a gain and a loss of one size for equally likely, and err more often there. `shared seeds`: 7 of 10
samples of a condition fall as the baseline's do. Targets: at most 6 with p < 0.05, alone and unadjusted; at
most 5 after Holm, 6 where changes are skewed. `blocks`: problems in blocks of 5 that move up or down together,
as problems made from one template may. There the tests **fail**, and no target is set: they take problems for
independent.
"""


def page(rates: Sequence[Rates], facts: Mapping[str, str]) -> tuple[str, list[str]]:
    """The results as Markdown, and what missed its target."""
    missed: list[str] = []

    def judged(what: str, one: Rates, rate: float, low: float, high: float) -> str:
        if one.cell.discordance == REPORTED:
            return _percent(rate)
        if low <= rate <= high:
            return f"{_percent(rate)} yes"
        missed.append(f"{what} {_percent(rate)}: {one.cell}")
        return f"**{_percent(rate)} no**"

    def covers(what: str, one: Rates, rate: float) -> str:
        return judged(f"{what} coverage", one, rate, 0.94, 0.96)

    def shown(one: Rates) -> str:
        return judged("coverage of the interval shown", one, one.shown_covers, 0.95, 1)

    usual = [one for one in rates if one.cell.population in ("undecided", "beta") and one.cell.tests == 3]
    full = [one for one in usual if one.cell.n == N and one.cell.discordance >= REPORTED]
    none = {_setting(one): one for one in full if one.cell.effect == 0}
    margin = [one for one in full if one.cell.effect == MARGIN]
    lines = _table(("machine", ""), facts.items()).strip()
    experiments = rates[0].experiments
    error = 100 * math.sqrt(0.05 * 0.95 / experiments)
    text = HEAD.format(facts=lines, experiments=experiments, error=error, reported=100 * REPORTED)
    text += NONE + _table(
        (*SETTING, "false after Holm", "false, one test", "one interval covers", "shown covers"),
        (
            (
                *_setting(one),
                judged("false effects", one, one.false_any, 0, 0.05),
                _percent(one.false_single),
                covers("score", one, one.score_covers),
                shown(one),
            )
            for one in none.values()
        ),
    )
    text += LEAST + _table(
        (*SETTING, "effect, points", "formula", "found", "one interval covers", "shown covers"),
        (
            (
                *_setting(one),
                f"{100 * one.cell.effect:.2f}",
                _percent(formula := _formula(one)),
                judged("power", one, one.found, formula - 0.02, formula + 0.02)
                if one.cell.population == "undecided"
                else _percent(one.found),
                covers("score", one, one.score_covers),
                shown(one),
            )
            for one in full
            if one.cell.effect not in (0, MARGIN)
        ),
    )
    text += EQUIVALENCE + _table(
        (*SETTING, "equivalent at the margin", "equivalent at 0"),
        (
            (
                *_setting(one),
                judged("false equivalence", one, one.equivalent, 0, 0.05),
                _percent(none[_setting(one)].equivalent),
            )
            for one in margin
        ),
    )
    few = [one for one in rates if one.cell.effect == MARGIN and one.cell.discordance == 0.05]
    text += FEW + _table(
        ("n", "k", "one interval covers", "shown covers"),
        (
            (str(one.cell.n), str(one.cell.k), _percent(one.score_covers), _percent(one.shown_covers))
            for one in sorted(few, key=lambda one: (one.cell.k, one.cell.n))
            if one.cell.population == "undecided"
        ),
    )
    text += HARD + _table(
        (
            *("population", "n", "k", "discordance", "tests", "false, one test", "false after Holm"),
            *("one interval covers", "shown covers"),
        ),
        (
            (
                *(one.cell.population, str(one.cell.n), str(one.cell.k), f"{100 * one.cell.discordance:g}"),
                str(one.cell.tests),
                *(
                    (_percent(one.false_single), _percent(one.false_any))
                    if one.cell.population == "blocks"
                    else (
                        judged("false effects", one, one.false_single, 0, 0.06),
                        judged(
                            "false effects after Holm",
                            one,
                            one.false_any,
                            0,
                            0.06 if one.cell.population == "skewed" else 0.05,
                        ),
                    )
                ),
                _percent(one.score_covers),
                _percent(one.shown_covers),
            )
            for one in rates
            if one not in full and one not in few
        ),
    )
    return text, missed


SETTING = ("population", "k", "discordance")


def _setting(one: Rates) -> tuple[str, str, str]:
    return one.cell.population, str(one.cell.k), f"{100 * one.cell.discordance:g}"


def _formula(one: Rates) -> float:
    cell = one.cell
    return detection_power(cell.effect, n=cell.n, k=cell.k, discordance=cell.discordance)


def _percent(rate: float) -> str:
    return f"{100 * rate:.2f}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n" + "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"
