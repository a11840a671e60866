"""Simulate runs that grow after their table was printed: how often is an effect found without one?

    python -m benchmarks.looks_calibration [--small]

Each experiment has 3, 10 or 50 looks, one after every 100 or 20 problems. A share of the problems
changes, as often to right as to wrong. False: at any look p is below 0.05 (as it is), or below 0.05
divided by the number of the look (as tables have it). Bound: 5 percent times 1 + 1/2 + ... + 1 /
looks. The standard error is 0.3 points at 5,000 experiments.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from benchmarks.report import table
from benchmarks.runs import make_parser
from harness.analysis.paired_tests import sign_flip_test
from harness.constants import ALPHA

LOOKS = {3: 100, 10: 100, 50: 20}
"""The problems that are added for each look, by the number of looks."""
DISCORDANCES = (0.05, 0.2, 0.5)
EXPERIMENTS = {"full": 5_000, "small": 20}
SEED = 20261


def measure_false_rates(looks: int, discordance: float, experiments: int) -> tuple[float, float]:
    """The shares of experiments with a significant look, without and with a correction."""
    rng = np.random.default_rng(SEED)
    uncorrected = corrected = 0
    chances = [discordance / 2, 1 - discordance, discordance / 2]
    numbers = np.arange(1, 1 + looks)
    sizes = LOOKS[looks] * numbers
    for _ in range(experiments):
        changes = rng.choice([-1, 0, 1], size=sizes[-1], p=chances)
        p_values = np.array([sign_flip_test(changes[:size]) for size in sizes])
        uncorrected += bool((p_values < ALPHA).any())
        corrected += bool((p_values * numbers < ALPHA).any())
    return uncorrected / experiments, corrected / experiments


def main() -> None:
    """Print a row for each number of looks and each discordance."""
    arguments = make_parser(__doc__).parse_args()
    experiments = EXPERIMENTS["small" if arguments.small else "full"]
    rows = []
    for looks, discordance in product(LOOKS, DISCORDANCES):
        rates = measure_false_rates(looks, discordance, experiments)
        bound = ALPHA * (1 / np.arange(1, 1 + looks)).sum()
        percentages = [f"{rate:.1%}" for rate in (*rates, bound)]
        rows.append([str(looks), f"{discordance:.0%}", *percentages])
    headings = ["looks", "problems that change", "false, p < 0.05", "false, p < 0.05 / look"]
    print(table([*headings, "bound"], rows))


if __name__ == "__main__":
    main()
