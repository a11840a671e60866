"""Simulate sweeps with a known truth and test the sweep's test of `mless table`. Writes SWEEPS.md.

    python -m benchmarks.sweep_calibration [--small]

A sweep has a baseline and eight lengths of one filler on the same problems. `coins`: a problem is
certain, or its chance is even and the filler changes it. `logits`: log-odds are normal, and the
filler changes all alike. `skewed`: one problem in a hundred changes to certain success and all
others lose a little, so the mean effect is 0. With --small there are few experiments, and nothing
is written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from benchmarks.report import table
from benchmarks.runs import ROOT, make_parser, say
from harness.analysis.paired_tests import holm, sign_flip_test

Integers = npt.NDArray[np.int64]
POPULATIONS = ("coins", "logits", "skewed")
SIZES = ((100, 1), (200, 1), (500, 1), (100, 20), (200, 20), (500, 20))
PROBLEMS, DISCORDANCE, ALPHA, SEED = 500, 0.1, 0.05, 20_264
EXPERIMENTS, SMALL_EXPERIMENTS = 1000, 10
"""For each setting; the second number with --small."""
TEXT = """\
# Sweeps, simulated

Written by `python -m benchmarks.sweep_calibration`: {experiments:,} experiments of each kind, with
eight lengths and seed {seed}; the populations are described at the top of that file. Sweep: the
test of a sweep. Holm: any of the eight single tests. Alpha is 0.05.

No effect: the rate at which the sweep's test detects one, for problems x samples (target: at most
6 %).

{false_effects}
Effects, {problems} problems with one sample each: the rate at which the sweep's test detects them,
and that of Holm in brackets.

{effects}"""
NONE = [0.0] * 8
EFFECTS: dict[str, list[float]] = {
    "2 points at all lengths": [0.02] * 8,
    "monotone, 0 to 4 points": [0.04 * length / 7 for length in range(8)],
    "saturating at 3 points": [0.01, 0.02, 0.025, 0.03, 0.03, 0.03, 0.03, 0.03],
    "a step to 3 points": [0.0] * 4 + [0.03] * 4,
    "harm of the longest, to -6 points": [0.0] * 5 + [-0.02, -0.04, -0.06],
    "U, 3 points at the ends": [0.03, 0.015, 0, -0.015, -0.015, 0, 0.015, 0.03],
    "hump to 3 points": [0, 0.01, 0.02, 0.03, 0.03, 0.02, 0.01, 0],
    "3 points at one length": [0, 0, 0, 0.03, 0, 0, 0, 0],
}


def simulate(
    effect: list[float], population: str, rng: np.random.Generator, n: int = PROBLEMS, k: int = 1
) -> Integers:
    """Simulate one experiment: changes of the number of right samples, [problem, length]."""
    gains = np.array(effect)
    if population == "coins":
        is_even = rng.random(n) < 2 * DISCORDANCE
        before = np.where(is_even, 0.5, (rng.random(n) < 0.6).astype(float))
        after = before[:, None] + is_even[:, None] * gains / (2 * DISCORDANCE)
    elif population == "logits":
        logit = 0.6 + 3.5 * rng.normal(size=n)
        before = expit(logit)
        after = expit(logit[:, None] + gains / (before * (1 - before)).mean())
    else:
        share = 0.01
        before, wins = np.full(n, 0.5), rng.random(n) < share
        chances = np.where(wins, 1.0, 0.5 - 0.5 * share / (1 - share))
        after = np.repeat(chances[:, None], len(gains), axis=1)
    return np.asarray(rng.binomial(k, np.clip(after, 0, 1)) - rng.binomial(k, before)[:, None])


def measure(
    effect: list[float], population: str, experiments: int, n: int = PROBLEMS, k: int = 1
) -> tuple[float, float]:
    """Measure how often the sweep's test detects an effect, and Holm over lengths does."""
    rng = np.random.default_rng([SEED, n, k])
    counts = np.zeros(2)
    for _ in range(experiments):
        changes = simulate(effect, population, rng, n, k)
        # As in `sweeps.sweep_table`: the mean of all lengths, and the longest minus the shortest.
        mean_p = sign_flip_test(changes.sum(axis=1))
        trend_p = sign_flip_test(changes[:, -1] - changes[:, 0])
        adjusted = holm([sign_flip_test(change) for change in changes.T])
        counts += 2 * min(mean_p, trend_p) < ALPHA, adjusted.min() < ALPHA
    sweep, single = (counts / experiments).tolist()
    return sweep, single


def page(experiments: int) -> str:
    """Format the page in Markdown."""
    rows = []
    for population in POPULATIONS:
        rates = [measure(NONE, population, experiments, n, k)[0] for n, k in SIZES]
        rows.append([population, *(f"{100 * rate:.1f} %" for rate in rates)])
        say(" | ".join(rows[-1]))
    sizes = ["problems", *(f"{n} x {k}" for n, k in SIZES)]
    false_effects = table(sizes, rows, ["---", *["---:"] * len(SIZES)])
    rows = []
    for name, effect in EFFECTS.items():
        rates = [measure(effect, population, experiments) for population in POPULATIONS[:2]]
        rows.append(
            [name, *(f"{100 * sweep:.0f} % ({100 * single:.0f})" for sweep, single in rates)]
        )
        say(" | ".join(rows[-1]))
    effects = table(("truth", *POPULATIONS[:2]), rows, ("---", "---:", "---:"))
    return TEXT.format(
        experiments=experiments,
        seed=SEED,
        problems=PROBLEMS,
        false_effects=false_effects,
        effects=effects,
    )


if __name__ == "__main__":
    if make_parser(__doc__).parse_args().small:
        print(page(SMALL_EXPERIMENTS))
    else:
        Path(ROOT, "benchmarks", "SWEEPS.md").write_text(page(EXPERIMENTS), encoding="utf-8")
