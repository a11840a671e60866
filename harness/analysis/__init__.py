"""Statistics of runs: accuracies, paired differences with tests and intervals, noise, power, flips, published numbers.

`compare` makes the table of all comparisons. The functions that it is made of can be used alone. They take and return
shares of the problems (0.02 is 2 points); tables are in percent and points. Needs numpy, scipy and pandas only.
"""

from harness.analysis.accuracy import accuracy_table, clustered_error
from harness.analysis.comparison import COLUMNS, compare
from harness.analysis.intervals import difference_bounds, hold_zero, score_interval, score_statistic
from harness.analysis.leaderboard import make_leaderboard
from harness.analysis.paired_tests import count_flips, mcnemar_test, paired_test, sign_flip_test
from harness.analysis.pooled import estimate_new_models, pool_changes
from harness.analysis.power import detection_power, minimal_detectable_effect
from harness.analysis.selection import Selection, select
from harness.analysis.verdicts import equivalence_p, fewest_problems, holm, verdict
from harness.analysis.yardsticks import find_broken

__all__ = [
    "COLUMNS",
    "Selection",
    "accuracy_table",
    "clustered_error",
    "compare",
    "count_flips",
    "detection_power",
    "difference_bounds",
    "equivalence_p",
    "estimate_new_models",
    "fewest_problems",
    "find_broken",
    "hold_zero",
    "holm",
    "make_leaderboard",
    "mcnemar_test",
    "minimal_detectable_effect",
    "paired_test",
    "pool_changes",
    "score_interval",
    "score_statistic",
    "select",
    "sign_flip_test",
    "verdict",
]
