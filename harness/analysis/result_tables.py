"""All tables of one run or several."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas

from harness.analysis.answer_shares import answer_table
from harness.analysis.baseline_comparison import Design, compare_outcomes
from harness.analysis.joint_outcomes import together_table
from harness.analysis.mediators_and_audit import audit_table, mediator_table
from harness.analysis.other_texts import add_places, text_table
from harness.analysis.outcomes import Outcomes, count_outcomes, group_by_setting
from harness.analysis.sample_scores import choose_score
from harness.constants import BASELINE, GOLD_FIRST, Row
from harness.errors import ComparisonError, ConfigError
from harness.experiment.conditions import Condition, ReferenceConditions, read_contrast
from harness.runs.joined_runs import join_samples
from harness.runs.run_reader import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaderboard(Design):
    """All tables of some runs, with the design of their comparison.

    If the endpoint of the runs is `answer_logprob`, the score is `gold_first`.

    Attributes:
        comparison: `analysis.compare`.
        side_tables: All other tables, by their name in JSON and in `display.side_tables`. Some have
            no rows.
        cluster_count: The number of clusters of problems; 0 if each problem is a cluster.
        copy_count: The number of problems whose question is that of an earlier problem.
        omitted_count: The number of problems that are left out, because not all models have them.
        receipts: An entry for each run: source, versions, hashes, settings.
    """

    comparison: pandas.DataFrame
    side_tables: Mapping[str, pandas.DataFrame]
    cluster_count: int
    copy_count: int
    omitted_count: int
    receipts: tuple[Mapping[str, Any], ...]


def make_leaderboard(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    by: Sequence[str] = (),
    score: str | None = None,
    common: bool = False,
) -> Leaderboard:
    """Compare all conditions of all runs with the baseline.

    The contrasts that the runs registered are one family over all models. A contrast that a model's
    run did not register is exploratory for this model. If no run registered any contrast, if
    `baseline` is not that of the runs, or if the table is split, all tests are the family and none
    is primary.

    Args:
        runs: From `Run.load`.
        baseline: The condition that the others are compared with; by default that of the runs, or
            `wo` if they differ.
        by: `subject`, `level`, or both.
        score: See `Design`.
        common: Whether problems that a condition lacks are left out.

    Raises:
        ComparisonError: the runs cannot be compared; see `join_samples` and `analysis.compare`.
    """
    by = [*by, *runs[0].about.get("by", ())]
    frame, omitted_count = _keep_shared_problems(join_samples(runs), common=common)
    score = choose_score(frame, score)
    reference_conditions = _join_reference_conditions(runs)
    design = replace(
        _make_design(runs, reference_conditions, baseline=baseline, by=by), score=score
    )
    # a reference condition belongs to the baseline of its run and says nothing about another
    omitted_names = reference_conditions.keys() - {design.baseline, *design.reference_conditions}
    frame = _sort_by_columns(frame[~frame["condition"].isin(omitted_names)], by)
    # a problem's text is that of the first run: in logs of other tasks it may differ by model
    problems = frame.drop_duplicates("problem_id")
    cluster_count = problems.get("cluster", problems["problem_id"]).nunique()
    question_count = problems.get("question", problems["problem_id"]).nunique()
    outcomes = count_outcomes(frame, by, score)
    # made before the other tables, because its errors say best what cannot be compared
    comparison = compare_outcomes(outcomes, design)
    side_tables = _make_side_tables(frame, outcomes, comparison, design, join_conditions(runs))
    return Leaderboard(
        **vars(design),  # a leaderboard is a design with tables
        comparison=add_places(comparison, side_tables["texts"]),
        side_tables=side_tables,
        cluster_count=cluster_count if cluster_count < len(problems) else 0,
        copy_count=len(problems) - question_count,
        omitted_count=omitted_count,
        receipts=tuple(receipt for run in runs for receipt in run.receipts),
    )


def _sort_by_columns(frame: pandas.DataFrame, by: list[str]) -> pandas.DataFrame:
    """The samples, sorted by the columns that the tables are split by; as they are without any.

    Raises:
        ConfigError: the runs lack such a column.
    """
    for column in by:
        if column not in frame or frame[column].isna().all():
            raise ConfigError(f"--by {column}: these runs have no {column}.")
    return frame.sort_values(by, kind="stable", ignore_index=True)


def _keep_shared_problems(frame: pandas.DataFrame, *, common: bool) -> tuple[pandas.DataFrame, int]:
    """The samples of the problems that all models have in all layouts, and the number of others.

    With `common`, only problems that all conditions have are kept.

    Raises:
        ComparisonError: two models have no problem in common.
    """
    group_columns = ["model", "layout", "condition"] if common else ["model", "layout"]
    id_sets = [
        set(ids) for ids in frame.groupby(group_columns, observed=True)["problem_id"].unique()
    ]
    shared_ids = set.intersection(*id_sets)
    omitted_ids = set.union(*id_sets) - shared_ids
    if not shared_ids:
        raise ComparisonError("The runs have no problem in common.")
    if omitted_ids:
        frame = frame[frame["problem_id"].isin(shared_ids)].reset_index(drop=True)
    return frame, len(omitted_ids)


def _make_design(
    runs: Sequence[Run],
    reference_conditions: ReferenceConditions,
    *,
    baseline: str | None,
    by: Sequence[str],
) -> Design:
    """What `make_leaderboard` compares, from its arguments and from what the runs registered.

    If the baseline is not that of the runs, nothing that they registered holds. If the tables are
    split, their contrasts do not hold.
    """
    baselines = {run.baseline for run in runs}
    default_baseline = baselines.pop() if len(baselines) == 1 else BASELINE
    design = Design(baseline=baseline or default_baseline, by=by)
    if design.baseline != default_baseline:
        # contrasts and reference conditions of another baseline say nothing about this baseline
        return design
    contrasts, primary = (None, None) if by else _join_contrasts(runs)
    look_count_by_model: dict[str, int] = {}
    for run in runs:
        model = str(run.about["model"])
        look_count_by_model[model] = max(
            look_count_by_model.get(model, 1), run.about.get("looks", 1)
        )
    return replace(
        design,
        looks=look_count_by_model,
        contrasts=contrasts,
        primary=primary,
        unregistered=_find_unregistered(runs, contrasts or ()),
        reference_conditions={
            name: fields for name, fields in reference_conditions.items() if name != design.baseline
        },
    )


def _make_side_tables(
    frame: pandas.DataFrame,
    outcomes: Sequence[Outcomes],
    comparison: pandas.DataFrame,
    design: Design,
    conditions: Mapping[str, Condition],
) -> dict[str, pandas.DataFrame]:
    """All tables except the comparison.

    Args:
        frame: All samples.
        outcomes: `outcomes.count_outcomes` of the frame.
        comparison: `compare_outcomes` of them.
        design: What is compared with what.
        conditions: The conditions of the configs, by name.
    """
    # the table of other texts is about all problems, so it stays empty if the tables are split
    outcomes_by_setting = group_by_setting([] if design.by else outcomes)
    # runs with log-probabilities and tables of other programs have no completions
    lacks_completions = design.score == GOLD_FIRST or frame["next_question"].isna().all()
    samples_with_completions = frame[:0] if lacks_completions else frame
    # a score such as pass@4 judges all samples of a problem together, and none by itself
    judged_samples = (
        frame[:0]
        if design.score
        else frame[~frame["condition"].isin([*design.reference_conditions])]
    )
    return {
        "answers": answer_table(frame, comparison, design),
        "together": together_table(judged_samples, by=design.by),
        "texts": text_table(
            outcomes_by_setting, conditions, design.reference_conditions, design.baseline
        ),
        "mediators": mediator_table(samples_with_completions, by=design.by),
        "audit": audit_table(samples_with_completions, baseline=design.baseline, by=design.by),
    }


def join_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """The conditions of all configs, by name, except reference conditions. Logs have none."""
    conditions = {}
    for run in runs:
        for condition in run.conditions.values():
            if condition.kind is None:
                conditions[condition.name] = condition
    return conditions


def _join_reference_conditions(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """The reference conditions of all runs that have samples, by name.

    Raises:
        ComparisonError: a name is that of a reference condition in one run, and of another
            condition in another run.
    """
    # The first run that has the condition, and its fields as a reference condition of this run. A
    # condition of any other kind has no fields.
    origin_by_condition: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for run in runs:
        for condition in list_conditions(run):
            fields = run.reference_conditions.get(condition, {})
            run_name, first_fields = origin_by_condition.setdefault(condition, (run.name, fields))
            if first_fields != fields:
                raise ComparisonError(
                    f"{run.name}: the condition {condition!r} differs from the one in {run_name}."
                )
    return {name: fields for name, (_, fields) in origin_by_condition.items() if fields}


def _join_contrasts(runs: Sequence[Run]) -> tuple[tuple[str, ...] | None, str | None]:
    """The registered contrasts that have samples, and the primary contrast if all name the same.

    Both are None if no run registered any.
    """
    registrations = [run.about for run in runs if run.about.get("contrasts") is not None]
    if not registrations:
        return None, None
    contrast_names: dict[str, None] = {}
    for registration in registrations:
        contrast_names |= dict.fromkeys(map(str, registration["contrasts"]))
    conditions = set().union(*map(list_conditions, runs))
    contrasts = tuple(name for name in contrast_names if set(read_contrast(name)) <= conditions)
    primary, *other_primaries = {registration.get("primary") for registration in registrations}
    # there is no common primary contrast if the runs name different ones
    if other_primaries:
        return contrasts, None
    # one without samples cannot be tested
    return contrasts, primary if primary in contrasts else None


def _find_unregistered(runs: Sequence[Run], contrasts: Iterable[str]) -> set[tuple[str, str]]:
    """Models with contrasts that their run has samples of, but did not register.

    A log registers none. `Design.describe_role` makes these contrasts exploratory.
    """
    unregistered_contrasts = set()
    for contrast in contrasts:
        condition, baseline = read_contrast(contrast)
        for run in runs:
            conditions = list_conditions(run)
            # a run without the usual baseline is compared with that of another run
            has_both_conditions = condition in conditions and baseline in [*conditions, BASELINE]
            if has_both_conditions and contrast not in (run.about.get("contrasts") or ()):
                unregistered_contrasts.add((str(run.about["model"]), contrast))
    return unregistered_contrasts


def list_conditions(run: Run) -> list[str]:
    """The conditions of which a run has samples."""
    return list(run.samples["condition"].astype(str).unique())


def list_rows(frame: pandas.DataFrame) -> list[Row]:
    """Rows as mappings, with None for missing values."""
    object_frame: Any = frame.astype(object)
    # JSON has no NaN
    return list(object_frame.where(frame.notna(), None).to_dict("records"))
