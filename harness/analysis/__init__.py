"""Statistics of paired samples: accuracies, differences from a baseline with tests and intervals, noise, power.

`compare` makes the table; what it is made of can be used alone. Functions of single comparisons speak in shares of
the problems (0.02 is 2 points), tables in percent and points. Needs numpy, scipy and pandas only.
"""

from harness.analysis.accuracy import Majority, clustered_error, majority_vote, pass_at_k
from harness.analysis.comparison import COLUMNS, compare, noise_floor
from harness.analysis.intervals import (
    bootstrap_interval,
    difference_bounds,
    equivalence_p,
    fewest_problems,
    score_interval,
    score_statistic,
)
from harness.analysis.multiple_testing import holm
from harness.analysis.paired_tests import Flips, count_flips, mcnemar_test, sign_flip_test
from harness.analysis.power import detection_power, minimal_detectable_effect
from harness.analysis.rewording_rank import prompt_null_p
from harness.analysis.verdicts import verdict

__all__ = [
    "COLUMNS",
    "Flips",
    "Majority",
    "bootstrap_interval",
    "clustered_error",
    "compare",
    "count_flips",
    "detection_power",
    "difference_bounds",
    "equivalence_p",
    "fewest_problems",
    "holm",
    "majority_vote",
    "mcnemar_test",
    "minimal_detectable_effect",
    "noise_floor",
    "pass_at_k",
    "prompt_null_p",
    "score_interval",
    "score_statistic",
    "sign_flip_test",
    "verdict",
]
