"""`compare`: every condition against the baseline, with tests, intervals and verdicts.

A contrast is the difference between two conditions, `mless - wo`. Runs register contrasts before
they start. A/A columns compare a condition with its repeat run, which differs from it by noise
alone. A reference condition, such as a positive control, is a yardstick that is not tested itself.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas

from harness.analysis.crossed_effects import Difference, estimate_over_draws, to_points
from harness.analysis.outcomes import (
    Outcomes,
    OutcomesByCondition,
    Setting,
    count_outcomes,
    group_by_setting,
    measure_accuracy,
    refuse_unpaired,
)
from harness.analysis.paired_tests import average_clusters, count_needed_problems
from harness.analysis.sample_scores import NUMBER, TABLE_NUMBERS
from harness.analysis.score_interval import t_interval
from harness.analysis.verdicts import FEWEST_CLUSTERS_OF_NUMBERS, explain_unmeasured, judge
from harness.constants import ALPHA, BASELINE, GOLD_FIRST, MARGIN, Row
from harness.errors import ComparisonError, ConfigError, list_first, list_near
from harness.experiment.conditions import ReferenceConditions, contrast_name, read_contrast

COMPARISON_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "condition": "the condition, or a contrast such as mless - random",
    "baseline": "the condition that it is compared with",
    "problems": "number of problems",
    "repeats": "samples of each problem",
    "draws": "draws of examples; from 4 on, intervals and p are for new draws",
    "accuracy": "percent of correct samples (avg@k), or the score of --score",
    "accuracy_low": "lower end of the accuracy's score interval, percent",
    "accuracy_high": "upper end",
    "difference": "accuracy minus the baseline's, paired by problem",
    "low": "lower end of its 95 % interval, not adjusted for several tests",
    "high": "upper end",
    "p": "two-sided p-value of the sign-flip test, not adjusted",
    "answered_difference": "difference among answered samples",
    "answered_low": "lower end of its 95 % interval",
    "answered_high": "upper end",
    "by_format": "whether format or unfinished reasoning alone can explain better or worse",
    "graded": "percent of samples with a graded answer",
    "wrong_to_right": "problems that become right; of several samples the mean over pairs",
    "right_to_wrong": "problems that become wrong, counted in the same way",
    "role": "baseline, tested, exploratory, or reference (positive control)",
    "primary": "whether this is the primary contrast",
    "tests": "tests that share the 5 percent",
    "looks": "how often the growing run was looked at; at look j the level is 5 / j percent",
    "p_adjusted": "p adjusted by Holm for these tests, times looks; at least that of the primary",
    "equivalence_low": "lower end of the difference's 90 % interval (95 % at the second look)",
    "equivalence_high": "upper end",
    "within_margin": "whether the 90 % interval is within the margin, on enough clusters",
    "margin": "equivalence margin, points",
    "aa_difference": "difference of the repeat runs minus that of the first runs",
    "aa_flips": "problems that flip between the runs of a condition, mean of both conditions",
    "aa_samples": "completions in the repeat runs of both conditions",
    "aa_changed": "number of them that differ from the first run",
    "verdict": "better, worse, equivalent, inconclusive or unmeasured; missing if not tested",
    "unmeasured": "reason why equivalence cannot be shown",
    "other_texts": "above, among, below or not shown: place among other texts, in each family",
}
"""Meaning of each column of `compare`."""
_COUNT_COLUMNS = ("problems", "repeats", "draws", "tests", "looks", "aa_samples", "aa_changed")
_TYPE_BY_COLUMN = {
    **dict.fromkeys(_COUNT_COLUMNS, "Int64"),
    **dict.fromkeys(("primary", "within_margin", "by_format"), "boolean"),
}
"""The pandas types that allow missing values, by column."""


@dataclass(frozen=True, kw_only=True)
class Design:
    """What is compared with what, and which differences are tested.

    Attributes:
        baseline: The condition that the others are compared with.
        margin: Equivalence margin in points; in nats for a score in nats.
        by: Further columns to split by, such as subject or level.
        contrasts: Differences to test, registered before the run, such as `mless - wo`; all others
            are exploratory. A contrast with another baseline, such as `mless - random`, has a row
            of its own. By default the difference of every condition from the baseline is tested.
        primary: The contrast that the run is about. It is tested first, at full alpha. The others
            are tested only if it is significant.
        unregistered: Models with contrasts that their runs did not register: exploratory there.
        looks: How often each model's contrasts are tested, while its run grows; by default once.
        reference_conditions: Conditions that are not tested, by name, as in
            `Run.reference_conditions`.
        score: avg@K, pass@K or maj@K, which replaces the share of right samples; by default the
            share of all samples.

    Raises:
        ComparisonError: the margin is out of range, or the primary contrast is not a contrast over
            all problems.
    """

    baseline: str = BASELINE
    margin: float = MARGIN
    by: Sequence[str] = ()
    contrasts: Sequence[str] | None = None
    primary: str | None = None
    unregistered: Collection[tuple[str, str]] = ()
    looks: Mapping[str, int] = field(default_factory=dict)
    reference_conditions: ReferenceConditions = field(default_factory=dict)
    score: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.margin < 100:
            raise ComparisonError(
                f"margin: expected points above 0 and below 100, got {self.margin}."
            )
        if self.primary is not None and (self.by or self.primary not in (self.contrasts or ())):
            raise ComparisonError(
                f"primary: expected one of the contrasts, over all problems, got {self.primary}."
            )

    def name_row(self, contrast: str) -> str:
        """A contrast in the column `condition`: its condition alone if the baseline is usual."""
        condition, baseline_name = read_contrast(contrast)
        return (
            condition if baseline_name == self.baseline else contrast_name(condition, baseline_name)
        )

    def read_contrasts(self) -> dict[str, tuple[str, str]]:
        """The condition of each contrast, and what it is compared with, by the name of its row."""
        return {
            self.name_row(contrast): read_contrast(contrast) for contrast in self.contrasts or ()
        }

    @property
    def primary_row_name(self) -> str | None:
        """The name of the primary contrast's row, if there is one."""
        return None if self.primary is None else self.name_row(self.primary)

    def describe_role(self, model: str, row_name: str) -> Row:
        """The columns role and primary of a difference.

        A registered contrast is tested, and any other difference is exploratory. A contrast that
        the model's run did not register counts as any other. The difference of a reference
        condition is always a reference.
        """
        unregistered_row_names = [
            self.name_row(contrast) for name, contrast in self.unregistered if name == model
        ]
        is_registered = row_name not in unregistered_row_names
        is_contrast = self.contrasts is None or row_name in self.read_contrasts()
        role = "tested" if is_contrast and is_registered else "exploratory"
        if row_name in self.reference_conditions:
            role = "reference"
        return {"role": role, "primary": is_registered and row_name == self.primary_row_name}


_REQUIRED_COLUMNS = "model layout condition problem_id sample_index correct".split()
"""The columns that a frame of samples needs."""


def compare(frame: pandas.DataFrame, **options: Any) -> pandas.DataFrame:
    """Compare all conditions with the baseline: one row for each model, layout and condition.

    A verdict depends only on the adjusted p-value and the equivalence interval. Intervals are not
    adjusted for several tests, so the interval of a difference may exclude 0 although its verdict
    is `inconclusive`.

    Args:
        frame: One row per sample, as `mless.load_run` returns it, of one run or several.
            The first runs are compared. Repeat runs of both sides of a contrast give the A/A
            columns.
        options: The fields of `Design`: baseline, margin, by, contrasts, primary, unregistered,
            looks, reference_conditions, score.

    Returns:
        A frame with the columns of `COMPARISON_COLUMNS`, those of `by` after the layout, in the
        frame's order.

    Raises:
        ComparisonError: there is no baseline, problems differ, samples are missing or occur twice,
            or see `Design`.
        ConfigError: a contrast is not written as one, or the frame lacks columns.

    Example:
        >>> samples = mless.load_run("results/example")
        >>> table = mless.compare(samples[samples["condition"].isin(["wo", "mless"])])
        >>> table[["condition", "baseline", "verdict"]].iloc[1].tolist()
        ['mless', 'wo', 'better']
    """
    if missing_columns := [name for name in _REQUIRED_COLUMNS if name not in frame]:
        raise ConfigError(
            f"The frame has no column {', '.join(missing_columns)}. Of a table of scores "
            "mless.Run.load(frame).samples makes such a frame."
        )
    design = Design(**options)
    return compare_outcomes(count_outcomes(frame, design.by, design.score), design)


def compare_outcomes(outcomes: Iterable[Outcomes], design: Design) -> pandas.DataFrame:
    """The table of `compare`, from counted outcomes instead of samples."""
    outcomes_by_setting = group_by_setting(outcomes)
    _refuse_unknown(outcomes_by_setting, design)
    rows: list[Row] = []
    for outcomes_by_condition in outcomes_by_setting.values():
        rows += _compare_conditions(outcomes_by_condition, design)
    judge(rows, primary=design.primary_row_name)
    model_column, layout_column, *further_columns = COMPARISON_COLUMNS
    columns = [model_column, layout_column, *design.by, *further_columns]
    return pandas.DataFrame(rows, columns=columns).astype(_TYPE_BY_COLUMN)


def _compare_conditions(outcomes_by_condition: OutcomesByCondition, design: Design) -> list[Row]:
    """The rows of one setting: all conditions, then contrasts with another baseline.

    A contrast of a condition that the setting lacks has no row.
    """
    pair_by_row_name = {name: (name, design.baseline) for name in outcomes_by_condition}
    pair_by_row_name |= design.read_contrasts()
    rows = []
    for row_name, (condition, baseline_name) in pair_by_row_name.items():
        replicates = outcomes_by_condition.get(condition)
        baseline_replicates = outcomes_by_condition.get(baseline_name)
        if replicates and baseline_replicates:
            rows.append(_make_row(row_name, replicates, baseline_replicates, design))
    # all outcomes of a setting have the same score and percentage by chance
    first_outcomes, *_ = next(iter(outcomes_by_condition.values()))
    chance_percent = (
        first_outcomes.chance_percent if first_outcomes.score_name == GOLD_FIRST else None
    )
    for row in rows:
        row["unmeasured"] = explain_unmeasured(
            row, rows, design.reference_conditions, chance_percent
        )
    return rows


def _make_row(
    row_name: str,
    replicates: Sequence[Outcomes],
    baseline_replicates: Sequence[Outcomes],
    design: Design,
) -> Row:
    """The row of a condition or contrast, without its verdict."""
    outcomes = replicates[0]
    baseline_outcomes = baseline_replicates[0]
    row = dict(outcomes.setting) | {"condition": row_name, "baseline": baseline_outcomes.condition}
    model = str(row["model"])
    look_count = design.looks.get(model, 1)
    row |= {"margin": design.margin, "looks": look_count, **measure_accuracy(outcomes)}
    if outcomes is baseline_outcomes:
        return row | {"role": "baseline"}
    row |= design.describe_role(model, row_name)
    row |= _compare_pair(baseline_outcomes, outcomes, design.margin, look_count)
    return row | _compare_replicates(baseline_replicates, replicates)


def _compare_pair(
    baseline_outcomes: Outcomes, outcomes: Outcomes, margin: float, look_count: int
) -> Row:
    """The difference of a condition from another, with intervals in points, p and flips."""
    refuse_unpaired(baseline_outcomes, outcomes)
    changes = outcomes.right_by_draw - baseline_outcomes.right_by_draw
    difference = estimate_over_draws(
        changes, baseline_outcomes.samples_by_draw, baseline_outcomes.clusters
    )
    # a score that is a number needs no answer, so all samples count as answered
    answered_difference = (
        difference if outcomes.has_numbers else _estimate_answered(baseline_outcomes, outcomes)
    )
    gains, losses = _count_flips(baseline_outcomes, outcomes)
    row = {
        "draws": len(changes),
        **to_points(difference),
        **to_points(answered_difference, ("answered_difference", "answered_low", "answered_high")),
        "wrong_to_right": gains,
        "right_to_wrong": losses,
        # `judge` reads it for the words of the verdict; the table has no such column
        "is_direction_unknown": outcomes.score_name in TABLE_NUMBERS,
    }
    # the sign-flip test errs on few numbers, so the row gets no p, and its interval is replaced
    if outcomes.has_numbers and difference.cluster_count < FEWEST_CLUSTERS_OF_NUMBERS:
        problem_differences = 100 * changes.sum(axis=0) / baseline_outcomes.sample_counts
        row["low"], row["high"] = t_interval(
            *average_clusters(problem_differences, baseline_outcomes.clusters)
        )
        return row | {"p": math.nan, "within_margin": False}
    return row | _test_difference(difference, outcomes, margin / 100, look_count)


def _test_difference(
    difference: Difference, outcomes: Outcomes, margin_share: float, look_count: int
) -> Row:
    """The p-value of a difference, its equivalence interval, and whether it is within the margin.

    Both one-sided tests of equivalence (TOST) reject at alpha if the interval of level 1 - 2 alpha
    lies within the margin. Look j at a growing run has the share 1 / j of
    alpha, because each look can find equivalence by chance.
    """
    low, high = difference.interval(1 - 2 * ALPHA / look_count)
    is_within_margin = -margin_share < low and high < margin_share
    # numbers of too few clusters are not tested at all
    has_enough_clusters = outcomes.has_numbers or difference.cluster_count >= count_needed_problems(
        margin_share
    )
    return {
        "p": difference.p,
        "equivalence_low": 100 * low,
        "equivalence_high": 100 * high,
        # a margin in points says nothing about numbers of another unit
        "within_margin": is_within_margin and has_enough_clusters and outcomes.score_name != NUMBER,
    }


def _estimate_answered(baseline_outcomes: Outcomes, outcomes: Outcomes) -> Difference:
    """The difference among answered samples.

    Samples are not matched across conditions. So the mean is over all pairs of a sample of each
    condition in which both are graded: samples**2 pairs of a problem with each draw.
    """
    gained_pairs = outcomes.right_by_draw * baseline_outcomes.graded_by_draw
    lost_pairs = baseline_outcomes.right_by_draw * outcomes.graded_by_draw
    return estimate_over_draws(
        gained_pairs - lost_pairs, baseline_outcomes.samples_by_draw**2, baseline_outcomes.clusters
    )


def _count_flips(baseline_outcomes: Outcomes, outcomes: Outcomes) -> tuple[float, float]:
    """Numbers of problems that change from wrong to right, and from right to wrong.

    With several samples per problem, both are means over the pairs of a sample before and a sample
    after that have the same prompt. The first less the second is always the number of problems
    times the difference in accuracy. Numbers have no flips.

    Source:
        The off-diagonal cells of McNemar (1947), doi:10.1007/BF02295996, averaged over the choice
        of samples.
    """
    if outcomes.has_numbers:
        return math.nan, math.nan
    sample_counts = baseline_outcomes.samples_by_draw
    right_counts = outcomes.right_by_draw
    baseline_right_counts = baseline_outcomes.right_by_draw
    # Each problem has draws x n x n pairs: in a draw, each of its n samples on one side makes a
    # pair with each of the n on the other side. `samples_per_problem` is draws x n.
    pairs_per_problem = baseline_outcomes.samples_per_problem * sample_counts.max()
    gains = ((sample_counts - baseline_right_counts) * right_counts).sum() / pairs_per_problem
    losses = (baseline_right_counts * (sample_counts - right_counts)).sum() / pairs_per_problem
    return gains, losses


def _compare_replicates(
    baseline_replicates: Sequence[Outcomes], replicates: Sequence[Outcomes]
) -> Row:
    """The A/A columns: what changes if both sides are run again. Empty if a side was run once."""
    if min(len(baseline_replicates), len(replicates)) < 2:
        return {}
    first_outcomes, repeat_outcomes, *_ = replicates
    baseline_outcomes, baseline_repeat_outcomes, *_ = baseline_replicates
    refuse_unpaired(baseline_outcomes, baseline_repeat_outcomes)
    refuse_unpaired(baseline_outcomes, repeat_outcomes)
    changes = first_outcomes.right_counts - baseline_outcomes.right_counts
    repeat_changes = repeat_outcomes.right_counts - baseline_repeat_outcomes.right_counts
    flips = sum(_count_flips(first_outcomes, repeat_outcomes))
    flips += sum(_count_flips(baseline_outcomes, baseline_repeat_outcomes))
    row: Row = {
        "aa_difference": 100
        * (repeat_changes - changes).mean()
        / first_outcomes.samples_per_problem,
        "aa_flips": flips / 2,
    }
    completion_counts = repeat_outcomes.completion_counts
    baseline_completion_counts = baseline_repeat_outcomes.completion_counts
    if completion_counts is None or baseline_completion_counts is None:
        return row
    return row | {
        "aa_changed": completion_counts.changed + baseline_completion_counts.changed,
        "aa_samples": completion_counts.total + baseline_completion_counts.total,
    }


def _refuse_unknown(
    outcomes_by_setting: Mapping[Setting, OutcomesByCondition], design: Design
) -> None:
    """Refuse a setting without the baseline, and a contrast of a condition that no setting has."""
    for setting, outcomes_by_condition in outcomes_by_setting.items():
        if design.baseline not in outcomes_by_condition:
            setting_text = ", ".join(f"{column} {value}" for column, value in setting)
            raise ComparisonError(
                f"{setting_text}: no baseline condition {design.baseline!r} among "
                f"{list_first([*outcomes_by_condition], 6)}. Name one of them as --baseline."
            )
    conditions = set().union(*outcomes_by_setting.values())
    for condition_pair in design.read_contrasts().values():
        for name in condition_pair:
            if name not in conditions:
                raise ComparisonError(
                    f"There is no condition {name!r}: expected one of "
                    f"{list_near(name, sorted(conditions))}."
                )
