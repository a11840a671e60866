"""Simulated sweeps with a known truth: what the tests and the estimate of `mless table` keep. Writes SWEEPS.md.

    python -m benchmarks.sweep_calibration [--experiments N]

A baseline and eight lengths of one filler on the same 500 problems, one greedy answer each. In half of the settings a
problem is settled or a coin, in the others its chance comes from a U-shaped beta distribution, as in CALIBRATION.md.
Before that, the time that it takes to plan a large sweep.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.runs import ROOT, TOY, say
from harness.analysis.sweeps import trend
from harness.analysis.tests import holm, paired_test
from harness.experiment.config import RunConfig
from harness.experiment.plan import make_plan

Floats = npt.NDArray[np.float64]
PROBLEMS, DISCORDANCE, ALPHA, SEED = 500, 0.1, 0.05, 20_264
EFFECTS: dict[str, list[float]] = {
    "none": [0.0] * 8,
    "2 points at all lengths": [0.02] * 8,
    "-2 points at all lengths": [-0.02] * 8,
    "up to 3 points, in the middle": [0, 0.01, 0.02, 0.03, 0.03, 0.02, 0.01, 0],
    "3 points at one length": [0, 0, 0, 0.03, 0, 0, 0, 0],
}
PLANNING_TARGET = 60
"""Seconds."""


def simulate(effect: list[float], population: str, rng: np.random.Generator) -> Floats:
    """Differences [problem, length] of one experiment."""
    if population == "coins":
        coin = rng.random(PROBLEMS) < 2 * DISCORDANCE
        chance = np.where(coin, 0.5, (rng.random(PROBLEMS) < 0.6).astype(float))
        moved = chance[:, None] + coin[:, None] * np.array(effect) / (2 * DISCORDANCE)
    else:
        chance = rng.beta(0.35, 0.19, PROBLEMS)
        room = chance * (1 - chance)
        moved = chance[:, None] + room[:, None] * np.array(effect) / room.mean()
    moved = np.clip(moved, 0, 1)
    changes = rng.binomial(1, moved) - rng.binomial(1, chance)[:, None]
    return changes.astype(float)


def measure(effect: list[float], population: str, experiments: int) -> list[float]:
    """Shares of the experiments in which the trend is found, and in which Holm over lengths finds any."""
    rng, test_rng = np.random.default_rng(SEED), np.random.default_rng(SEED)
    found = []
    for _ in range(experiments):
        changes = simulate(effect, population, rng)
        single = holm([paired_test(arm.astype(int), 1, rng=test_rng) for arm in changes.T])
        found.append([trend(changes)[1] < ALPHA, single.min() < ALPHA])
    return [float(mean) for mean in np.mean(np.array(found, dtype=float), axis=0)]


def time_planning() -> float:
    """Seconds to build and check every prompt of a baseline and 128 other arms of the toy's 500 problems."""
    sweep = {"unit": ["/", "he"], "count": [*range(1, 65)]}
    model, data = {"arguments": {"pretrained": str(TOY / "model")}}, {"path": TOY / "demo.jsonl"}
    config = RunConfig.model_validate({"name": "large", "model": model, "dataset": data, "sweep": sweep})
    begun = time.perf_counter()
    plan = make_plan(config)
    seconds = time.perf_counter() - begun
    assert (len(plan.arms), len(plan.dataset.problems)) == (129, PROBLEMS)
    return seconds


def page(experiments: int) -> str:
    """The whole page."""
    seconds, cores = time_planning(), len(os.sched_getaffinity(0))
    planned = (
        f"A plan of 128 arms and a baseline, {PROBLEMS} problems each, took {seconds:.0f} s on {cores} cores (target: "
        f"{PLANNING_TARGET} s): every prompt built and checked, with the toy's tokenizer."
    )
    say(planned)
    lines = [
        "# Sweeps, simulated",
        "",
        f"Written by `python -m benchmarks.sweep_calibration --experiments {experiments}`: that many of each, "
        f"{PROBLEMS} problems, eight lengths, one answer each, {100 * DISCORDANCE:.0f} % discordance, seed {SEED}.",
        "Trend: the test over all lengths. Holm: any of the eight single tests. Alpha is 0.05.",
        "",
        "| truth | problems | trend | Holm | ratio |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for name, effect in EFFECTS.items():
        for population in ("coins", "beta"):
            one = measure(effect, population, experiments)
            ratio = f"{one[0] / one[1]:.2f}" if any(effect) else ""
            trend_found, holm_found = (f"{100 * share:.1f} %" for share in one)
            lines.append(f"| {name} | {population} | {trend_found} | {holm_found} | {ratio} |")
            say(lines[-1])
    return "\n".join([*lines, "", planned, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=2000)
    target = Path(ROOT, "benchmarks", "SWEEPS.md")
    target.write_text(page(parser.parse_args().experiments), encoding="utf-8")
    say(str(target))
