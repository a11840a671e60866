"""Simulate runs that grow after their table was printed: how often is an effect found without one?

    python -m benchmarks.looks_calibration [--small]

Each experiment has three looks, at 100, 200 and 300 problems. A share of the problems changes, as
often to right as to wrong. False: at any look p is below 0.05 (as it is), or below 0.05 divided by
the number of the look (as tables have it). The standard error is 0.3 points at 5,000 experiments.
"""

from __future__ import annotations

import numpy as np

from benchmarks.report import table
from benchmarks.runs import make_parser
from harness.analysis.paired_tests import sign_flip_test
from harness.constants import ALPHA

LOOKS = (100, 200, 300)
DISCORDANCES = (0.05, 0.2, 0.5)
EXPERIMENTS = {"full": 5_000, "small": 20}
SEED = 20261


def measure_false_rates(discordance: float, experiments: int) -> tuple[float, float]:
    """The shares of experiments with a significant look, without and with a correction."""
    rng = np.random.default_rng(SEED)
    uncorrected = corrected = 0
    chances = [discordance / 2, 1 - discordance, discordance / 2]
    for _ in range(experiments):
        changes = rng.choice([-1, 0, 1], size=LOOKS[-1], p=chances)
        p_values = np.array([sign_flip_test(changes[:problems]) for problems in LOOKS])
        uncorrected += bool((p_values < ALPHA).any())
        corrected += bool((p_values * np.arange(1, 1 + len(LOOKS)) < ALPHA).any())
    return uncorrected / experiments, corrected / experiments


def main() -> None:
    """Print a row for each discordance."""
    arguments = make_parser(__doc__).parse_args()
    experiments = EXPERIMENTS["small" if arguments.small else "full"]
    rows = []
    for discordance in DISCORDANCES:
        rates = measure_false_rates(discordance, experiments)
        rows.append([f"{discordance:.0%}", *(f"{rate:.1%}" for rate in rates)])
    print(table(["problems that change", "false, p < 0.05", "false, p < 0.05 / look"], rows))


if __name__ == "__main__":
    main()
