"""Counts of right samples by problem and condition, and the accuracy of a single condition.

A draw of examples is one choice of the solved examples before the question. A replicate is the
first run of a condition or its repeat run. Problems that are not independent share a cluster.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas

from harness.analysis.paired_tests import average_clusters
from harness.analysis.sample_scores import (
    FRACTION,
    MEAN_SCORES,
    TABLE_NUMBERS,
    choose_score,
    sum_samples,
)
from harness.analysis.score_interval import score_interval, t_interval
from harness.array_types import Integers
from harness.constants import ANSWER_LOGPROB, CHANCE_PERCENT, SCORE_COLUMN, Row
from harness.errors import ComparisonError, list_first
from harness.grading import GRADED_VERDICTS

Setting = tuple[tuple[str, Any], ...]
"""Names and values of the columns that a table is split by: model, layout and possibly more."""


class CompletionCounts(NamedTuple):
    """Completions of a repeat run: those that differ from the first run's, and all."""

    changed: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Outcomes:
    """Counts of a condition in its first run or in its repeat run.

    Attributes:
        setting: The columns that the table is split by.
        condition: The condition's name.
        replicate_index: 0 in the first run, 1 in the repeat run.
        problem_ids: [problem] In an order that all outcomes of a frame share.
        clusters: [problem] The number of its cluster, from 0. Most problems are a cluster each.
        right_by_draw: [draw, problem] Right samples, by the draw of examples.
        graded_by_draw: [draw, problem] Samples with a graded answer, right or wrong; all samples if
            the frame has no verdicts.
        samples_by_draw: [draw, problem] Samples.
        repeats: The number of samples of a problem, the largest if some are missing. Messages and
            the column `repeats` show it.
        score_name: What is counted; see `sample_scores.choose_score`.
        chance_percent: The mean percentage of the frame's gold answers that come first by chance.
        completion_counts: Of a repeat run; None in a first run, or if completions are unknown.

    With a score such as pass@4 (`sample_scores`), the three tables count what the score is a share
    of, such as sets of four samples. Only `repeats` is always a number of samples.
    """

    setting: Setting
    condition: str
    replicate_index: int
    problem_ids: npt.NDArray[Any]
    clusters: Integers
    right_by_draw: Integers
    graded_by_draw: Integers
    samples_by_draw: Integers
    repeats: int
    score_name: str | None
    chance_percent: float
    completion_counts: CompletionCounts | None

    @property
    def has_numbers(self) -> bool:
        """Whether the score is a mean of numbers."""
        return self.score_name in MEAN_SCORES

    @property
    def right_counts(self) -> Integers:
        """[problem] The number of right samples, over all draws."""
        return np.asarray(self.right_by_draw.sum(axis=0))

    @property
    def sample_counts(self) -> Integers:
        """[problem] The number of samples, over all draws."""
        return np.asarray(self.samples_by_draw.sum(axis=0))

    @property
    def samples_per_problem(self) -> int:
        """The number of samples of each problem in `right_counts`; the largest if they differ."""
        return int(self.sample_counts.max())

    @property
    def name(self) -> str:
        """Setting, condition and replicate, for messages."""
        fields = dict(self.setting) | {"condition": self.condition}
        if self.replicate_index:
            fields["replicate"] = self.replicate_index
        return ", ".join(f"{column} {value}" for column, value in fields.items())


OutcomesByCondition = Mapping[str, Sequence[Outcomes]]
"""The replicates of each condition of one setting."""


def count_outcomes(
    frame: pandas.DataFrame, by: Sequence[str] = (), score_name: str | None = None
) -> list[Outcomes]:
    """Count the outcomes of all models, layouts, conditions and replicates, in the frame's order.

    Args:
        frame: One row per sample, as `mless.load_run` returns it, with the columns model, layout,
            condition, problem_id, sample_index and correct. Without a column replicate all samples
            are of the first run; without a column cluster each problem is a cluster. The column
            completion shows which completions a repeat run changed.
        by: Further columns to split by, such as subject or level.
        score_name: See `sample_scores.choose_score`; maj@k needs the column answer.

    Raises:
        ComparisonError: a sample occurs twice or has no verdict, or there are fewer samples than
            the score needs.
        ConfigError: there is no such score.
    """
    if "replicate" not in frame:
        frame = frame.assign(replicate=0)
    # users cannot request a score of MEAN_SCORES, so one that is given has been chosen already
    if score_name not in MEAN_SCORES:
        score_name = choose_score(frame, score_name)
    setting_columns = ["model", "layout", *by]
    condition_columns = [*setting_columns, "condition"]
    run_columns = [*condition_columns, "replicate"]
    _check_samples(frame, [*run_columns, "problem_id", "sample_index"])
    completion_counts = _count_changed_completions(frame, condition_columns)
    # The tables below number problems by their rows here. All samples of a problem have the same
    # cluster.
    problems = frame.drop_duplicates("problem_id")
    cluster_names = problems.get("cluster", problems["problem_id"])
    sums = _sum_by_draw(frame, run_columns, score_name)
    groups: Any = sums.groupby(level=run_columns, observed=True, sort=False, dropna=False)
    outcomes = []
    for (*setting, condition, replicate), run_sums in groups:
        # a problem that was not asked with a draw of examples has no samples there: 0, not NaN
        table = run_sums.droplevel(run_columns).unstack("draw", fill_value=0)
        # rows are sorted by problem and columns by draw, so that tables of runs can be subtracted
        table = table.sort_index().sort_index(axis="columns")
        outcomes.append(
            Outcomes(
                setting=tuple(zip(setting_columns, setting, strict=True)),
                condition=str(condition),
                replicate_index=int(replicate),
                problem_ids=problems["problem_id"].iloc[table.index].to_numpy(),
                # numbered anew, because a split by subject or level has only some of the clusters
                clusters=pandas.factorize(cluster_names.iloc[table.index])[0],
                right_by_draw=table["right"].to_numpy().T,
                graded_by_draw=table["graded"].to_numpy().T,
                samples_by_draw=table["samples"].to_numpy().T,
                repeats=int(table["repeats"].sum(axis=1).max()),
                score_name=score_name,
                chance_percent=float(np.mean(frame.get("chance", CHANCE_PERCENT))),
                completion_counts=completion_counts.get((*setting, condition, replicate)),
            )
        )
    return outcomes


def _sum_by_draw(
    frame: pandas.DataFrame, run_columns: list[str], score_name: str | None
) -> pandas.DataFrame:
    """The sums of `sum_samples` for each replicate, problem and draw of examples.

    Problems have their number in the entire frame, in the order of their first samples.
    """
    samples = frame[run_columns].assign(
        problem=pandas.factorize(frame["problem_id"])[0],
        draw=frame.get("draw", 0),
        sample_index=frame["sample_index"],
        answer=frame.get("answer"),
        right=frame["correct"].to_numpy(dtype=np.int64),
        graded=1,
    )
    if score_name in MEAN_SCORES:
        samples[score_name] = frame[SCORE_COLUMN if score_name in TABLE_NUMBERS else score_name]
    if score_name == FRACTION:
        # in percent, because `sum_samples` divides by 100, and tables multiply by 100
        samples[score_name] *= 100
    if "verdict" in frame:
        samples["graded"] = frame["verdict"].isin(GRADED_VERDICTS)
    return sum_samples(samples, [*run_columns, "problem", "draw"], score_name)


def _count_changed_completions(
    frame: pandas.DataFrame, condition_columns: list[str]
) -> dict[Any, CompletionCounts]:
    """The counts of each repeat run, by its setting, condition and replicate.

    Empty if the frame has no completions.
    """
    # where log-probabilities are measured, all completions are empty and would count as unchanged
    if "completion" not in frame or ANSWER_LOGPROB in frame:
        return {}
    sample_columns = [*condition_columns, "problem_id", "sample_index"]
    first_samples, repeat_samples = (
        frame.loc[frame["replicate"] == replicate, [*sample_columns, "completion"]]
        for replicate in (0, 1)
    )
    # an inner join, because a condition that was not run again has nothing to compare
    sample_pairs = first_samples.merge(repeat_samples, on=sample_columns)
    sample_pairs["is_changed"] = sample_pairs["completion_x"] != sample_pairs["completion_y"]
    groups: Any = sample_pairs.groupby(condition_columns, observed=True)["is_changed"]
    # the keys are those of the repeat run, whose replicate is 1
    return {(*key, 1): CompletionCounts(int(group.sum()), len(group)) for key, group in groups}


def _check_samples(frame: pandas.DataFrame, identity_columns: list[str]) -> None:
    """Refuse a sample without a verdict, and one that occurs twice."""
    mask_by_fault = {
        "has no verdict; grade the run again with `mless regrade`": frame["correct"].isna(),
        "occurs more than once; models of different runs need different labels": frame.duplicated(
            identity_columns
        ),
    }
    for fault, is_faulty in mask_by_fault.items():
        if is_faulty.any():
            faulty_sample = frame.loc[is_faulty.to_numpy(), identity_columns].iloc[0]
            description = ", ".join(f"{name} {value}" for name, value in faulty_sample.items())
            raise ComparisonError(f"{description}: {fault}.")


def group_by_setting(outcomes: Iterable[Outcomes]) -> dict[Setting, dict[str, list[Outcomes]]]:
    """The outcomes of each setting by condition, with the replicates in order."""
    outcomes_by_setting: dict[Setting, dict[str, list[Outcomes]]] = {}
    # the sort is stable, so within a replicate the conditions keep the order of the frame
    for condition_outcomes in sorted(outcomes, key=attrgetter("replicate_index")):
        outcomes_by_condition = outcomes_by_setting.setdefault(condition_outcomes.setting, {})
        outcomes_by_condition.setdefault(condition_outcomes.condition, []).append(
            condition_outcomes
        )
    return outcomes_by_setting


def refuse_unpaired(baseline_outcomes: Outcomes, outcomes: Outcomes) -> None:
    """Refuse two conditions that differ in their problems, numbers of samples or draws of examples.

    Raises:
        ComparisonError: they differ, or samples are missing. The message names the first problems.
    """
    # first each condition by itself: one that lacks samples would otherwise be refused below, for
    # another number of samples
    for condition_outcomes in (baseline_outcomes, outcomes):
        is_incomplete = condition_outcomes.sample_counts < condition_outcomes.samples_per_problem
        if is_incomplete.any():
            raise ComparisonError(
                f"{condition_outcomes.name}: samples are missing: expected "
                f"{condition_outcomes.repeats} of each problem, not of "
                f"{list_first([*map(str, condition_outcomes.problem_ids[is_incomplete])])}."
            )
    problem_ids = set(outcomes.problem_ids)
    baseline_ids = set(baseline_outcomes.problem_ids)
    if unshared_text := list_first(sorted(map(str, problem_ids ^ baseline_ids))):
        raise ComparisonError(
            f"{outcomes.name}: its problems are not those of the baseline "
            f"{baseline_outcomes.condition}: {len(problem_ids)} against {len(baseline_ids)}; only "
            f"one has {unshared_text}. --common compares the problems that both have."
        )
    if baseline_outcomes.samples_per_problem != outcomes.samples_per_problem:
        raise ComparisonError(
            f"{outcomes.name}: expected {baseline_outcomes.repeats} samples per problem as "
            f"the baseline {baseline_outcomes.condition} has, got {outcomes.repeats}."
        )
    if not np.array_equal(baseline_outcomes.samples_by_draw, outcomes.samples_by_draw):
        raise ComparisonError(
            f"{outcomes.name}: its draws of examples are not those of the baseline "
            f"{baseline_outcomes.condition}."
        )


def measure_accuracy(outcomes: Outcomes) -> Row:
    """The columns of the comparison that need one condition only."""
    scores = outcomes.right_counts / outcomes.sample_counts
    means, weights = average_clusters(scores, outcomes.clusters)
    if outcomes.has_numbers:
        low, high = t_interval(means, weights)
    else:
        low, high = score_interval(means, weights=weights)
    return {
        "problems": len(scores),
        "repeats": outcomes.repeats,
        "accuracy": 100 * scores.mean(),
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
        "graded": 100 * (outcomes.graded_by_draw.sum() / outcomes.samples_by_draw.sum()),
    }
