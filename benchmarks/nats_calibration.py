"""Simulate differences of log-probabilities without an effect: how often is one found by mistake?

    python -m benchmarks.nats_calibration [--small]

The mean of every population is 0. The sign-flip test is that of `mless table`. The standard error
is 1.3 points near 5 percent and 2.6 near 30, at 300 experiments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.report import table
from benchmarks.runs import make_parser
from harness.analysis.paired_tests import sign_flip_test
from harness.array_types import Floats
from harness.constants import ALPHA

PROBLEMS = (8, 15, 50, 100, 300)
EXPERIMENTS = {"full": 300, "small": 5}
SEED = 20262

Population = Callable[[np.random.Generator, int], Floats]
POPULATIONS: Mapping[str, Population] = {
    "normal": lambda rng, n: rng.normal(size=n),
    "exponential": lambda rng, n: rng.exponential(size=n) - 1,
    "lognormal": lambda rng, n: rng.lognormal(size=n) - math.exp(0.5),
    # the others gain what these lose on average
    "1 in 20 loses 3 nats": lambda rng, n: rng.normal(0.15, 0.5, n) - 3 * (rng.random(n) < 0.05),
    "1 in 20 loses 8 nats": lambda rng, n: rng.normal(0.4, 0.5, n) - 8 * (rng.random(n) < 0.05),
}


def measure_false_rate(population: Population, n: int, experiments: int) -> float:
    """The share of experiments with p < 0.05."""
    rng = np.random.default_rng(SEED)
    p_values = [sign_flip_test((10_000 * population(rng, n)).round()) for _ in range(experiments)]
    return float(np.mean(np.array(p_values) < ALPHA))


def main() -> None:
    """Print a row for each population."""
    arguments = make_parser(__doc__).parse_args()
    experiments = EXPERIMENTS["small" if arguments.small else "full"]
    rows = []
    for name, population in POPULATIONS.items():
        row = [name]
        for n in PROBLEMS:
            row.append(f"{100 * measure_false_rate(population, n, experiments):.1f}")
        rows.append(row)
    heading = [f"{n} problems" for n in PROBLEMS]
    print("False, percent\n")
    print(table(["population", *heading], rows))


if __name__ == "__main__":
    main()
