"""Statistics of runs: accuracies, paired differences with tests and intervals, noise, power, flips, published numbers.

`compare` makes the table of all comparisons. The functions that it is made of can be used alone. They take and return
shares of the problems (0.02 is 2 points); tables are in percent and points. Needs numpy, scipy and pandas only.
"""

from harness.faces import lazy_face

__getattr__, __dir__, __all__ = lazy_face(
    __name__,
    {
        "accuracy": ["accuracy_table", "clustered_error"],
        "comparison": ["COLUMNS", "compare"],
        "intervals": [
            "difference_bounds",
            "hold_zero",
            "score_interval",
            "score_statistic",
        ],
        "paired_tests": ["count_flips", "mcnemar_test", "paired_test", "sign_flip_test"],
        "power": ["detection_power", "minimal_detectable_effect"],
        "pooled": ["estimate_new_models", "pool_changes"],
        "verdicts": ["equivalence_p", "fewest_problems", "holm", "verdict"],
        "yardsticks": ["find_broken"],
        "leaderboard": ["make_leaderboard"],
        "selection": ["Selection", "select"],
    },
)
