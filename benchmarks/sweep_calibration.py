"""Simulated sweeps with a known truth: what the test of `mless table` keeps. Writes SWEEPS.md.

    python -m benchmarks.sweep_calibration [--small]

A baseline and eight lengths of one filler on the same problems. `coins`: a problem is settled, or a coin that the
filler weights. `logits`: its log-odds are normal, and the filler moves those of all alike. `skewed`: one problem in a
hundred gains wholly and all others lose a little, so that nothing is true of the mean.
With --small there are few experiments, and nothing is written.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from benchmarks.runs import ROOT, say
from harness.analysis.paired_tests import holm, sign_flip_test

Integers = npt.NDArray[np.int64]
POPULATIONS = ("coins", "logits", "skewed")
SIZES = ((100, 1), (200, 1), (500, 1), (100, 20), (200, 20), (500, 20))
PROBLEMS, DISCORDANCE, ALPHA, SEED = 500, 0.1, 0.05, 20_264
EXPERIMENTS, SMALL_EXPERIMENTS = 1000, 10
"""Of each setting; the second with --small."""
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
    """Changes in right samples [problem, length] of one experiment."""
    gains = np.array(effect)
    if population == "coins":
        coin = rng.random(n) < 2 * DISCORDANCE
        chance = np.where(coin, 0.5, (rng.random(n) < 0.6).astype(float))
        moved = chance[:, None] + coin[:, None] * gains / (2 * DISCORDANCE)
    elif population == "logits":
        logit = 0.6 + 3.5 * rng.normal(size=n)
        chance = expit(logit)
        moved = expit(logit[:, None] + gains / (chance * (1 - chance)).mean())
    else:
        share = 0.01
        chance, wins = np.full(n, 0.5), rng.random(n) < share
        moved = np.repeat(
            np.where(wins, 1.0, 0.5 - 0.5 * share / (1 - share))[:, None], len(gains), axis=1
        )
    return np.asarray(rng.binomial(k, np.clip(moved, 0, 1)) - rng.binomial(k, chance)[:, None])


def measure(
    effect: list[float], population: str, experiments: int, n: int = PROBLEMS, k: int = 1
) -> tuple[float, float]:
    """Shares of the experiments in which the sweep's test finds an effect, and in which Holm over lengths finds any."""
    rng = np.random.default_rng([SEED, n, k])
    found = np.zeros(2)
    for _ in range(experiments):
        changes = simulate(effect, population, rng, n, k)
        # as `sweeps.sweep_table`: the mean over all lengths, and the longest less the shortest
        together = 2 * min(
            sign_flip_test(changes.sum(axis=1)), sign_flip_test(changes[:, -1] - changes[:, 0])
        )
        single = holm([sign_flip_test(arm) for arm in changes.T])
        found += together < ALPHA, single.min() < ALPHA
    swept, singly = (found / experiments).tolist()
    return swept, singly


def page(experiments: int) -> str:
    """The whole page."""
    lines = [
        "# Sweeps, simulated",
        "",
        f"Written by `python -m benchmarks.sweep_calibration`: {experiments:,} experiments of each, eight "
        f"lengths, seed {SEED}; populations as at the top of that file. Sweep: the test of a sweep. Holm: any of the "
        "eight single tests. Alpha is 0.05.",
        "",
        "No effect: how often the sweep's test finds one, for problems x samples (target: at most 6 %).",
        "",
        f"| problems | {' | '.join(f'{n} x {k}' for n, k in SIZES)} |",
        f"| --- |{' ---: |' * len(SIZES)}",
    ]
    for population in POPULATIONS:
        cells = [f"{100 * measure(NONE, population, experiments, n, k)[0]:.1f} %" for n, k in SIZES]
        lines.append(f"| {population} | {' | '.join(cells)} |")
        say(lines[-1])
    lines += [
        "",
        f"Effects, {PROBLEMS} problems, one sample each: how often the sweep's test finds one, and Holm (in brackets).",
        "",
        "| truth | coins | logits |",
        "| --- | ---: | ---: |",
    ]
    for name, effect in EFFECTS.items():
        found = [measure(effect, population, experiments) for population in POPULATIONS[:2]]
        lines.append(
            f"| {name} | {' | '.join(f'{100 * a:.0f} % ({100 * b:.0f})' for a, b in found)} |"
        )
        say(lines[-1])
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="few experiments, nothing written")
    if parser.parse_args().small:
        print(page(SMALL_EXPERIMENTS))
    else:
        Path(ROOT, "benchmarks", "SWEEPS.md").write_text(page(EXPERIMENTS), encoding="utf-8")
