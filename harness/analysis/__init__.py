"""Statistics of runs: accuracies, paired differences, tests, intervals, noise and power.

`compare` makes the table of all comparisons. Its building blocks can be used alone. They take and
return shares of the problems (0.02 is 2 points); tables are in percent and points. Needs numpy,
scipy and pandas only.
"""

from harness.analysis.baseline_comparison import compare
from harness.analysis.paired_tests import estimate_difference, holm
from harness.analysis.power import detection_power, minimal_detectable_effect
from harness.analysis.score_interval import score_interval

__all__ = [
    "compare",
    "detection_power",
    "estimate_difference",
    "holm",
    "minimal_detectable_effect",
    "score_interval",
]
