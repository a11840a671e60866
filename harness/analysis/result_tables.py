"""All tables of one run or several."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas

from harness.analysis.answer_shares import answer_table
from harness.analysis.baseline_comparison import Design, compare_outcomes
from harness.analysis.joint_outcomes import together_table
from harness.analysis.mediators_and_audit import audit_table, mediator_table
from harness.analysis.other_texts import place_contrasts, text_table
from harness.analysis.outcomes import Outcomes, count_outcomes, group_by_setting
from harness.analysis.sample_scores import choose_score
from harness.constants import BASELINE, GOLD_FIRST, Row
from harness.errors import ComparisonError, ConfigError
from harness.experiment.conditions import Condition, ReferenceConditions, read_contrast
from harness.runs.joined_runs import join
from harness.runs.run_reader import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Leaderboard(Design):
    """All tables of some runs, with the design of their comparison.

    If the endpoint of the runs is `answer_logprob`, the score is `gold_first`.

    Attributes:
        comparison: `analysis.compare`.
        side_tables: All other tables, by their name in JSON and in `display.side_tables`. Some have
            no rows.
        clusters: The number of clusters of problems; 0 if each problem is a cluster.
        copies: The number of problems whose question is that of an earlier problem.
        omitted: The number of problems that are left out, because not all models have them.
        receipt: An entry for each run: source, versions, hashes, settings.
    """

    comparison: pandas.DataFrame
    side_tables: Mapping[str, pandas.DataFrame]
    clusters: int
    copies: int
    omitted: int
    receipt: tuple[Mapping[str, Any], ...]


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
        ComparisonError: the runs cannot be compared; see `joined_runs.join` and `analysis.compare`.
    """
    by = [*by, *runs[0].about.get("by", ())]
    frame, omitted_problems = _keep_shared_problems(join(runs), common=common)
    score = choose_score(frame, score)
    references = _join_reference_conditions(runs)
    design = _make_design(runs, references, baseline=baseline, by=by)
    design = replace(design, score=score)
    omitted_conditions = references.keys() - {design.baseline, *design.reference_conditions}
    # this table cannot compare conditions of another baseline
    if omitted_conditions:
        frame = frame[~frame["condition"].isin(omitted_conditions)]
    for name in by:
        if name not in frame or frame[name].isna().all():
            raise ConfigError(f"--by {name}: these runs have no {name}.")
    if by:
        frame = frame.sort_values(list(by), kind="stable", ignore_index=True)
    # a problem's text is that of the first run: in logs of other tasks it may differ by model
    problems = frame.drop_duplicates("problem_id")
    clusters, questions = (
        problems.get(name, problems["problem_id"]).nunique() for name in ("cluster", "question")
    )
    outcomes = count_outcomes(frame, by, score)
    # made before the other tables, because its errors say best what cannot be compared
    comparison = compare_outcomes(outcomes, design)
    side_tables = {
        "answers": answer_table(frame, comparison, design),
        **_make_side_tables(frame, outcomes, design, join_conditions(runs)),
    }
    return Leaderboard(
        **vars(design),
        comparison=place_contrasts(comparison, side_tables["texts"]),
        side_tables=side_tables,
        clusters=clusters if clusters < len(problems) else 0,
        copies=len(problems) - questions,
        omitted=omitted_problems,
        receipt=tuple(receipt for run in runs for receipt in run.receipts),
    )


def _keep_shared_problems(frame: pandas.DataFrame, *, common: bool) -> tuple[pandas.DataFrame, int]:
    """The samples of the problems that all models have in all layouts, and how many others exist.

    With `common`, all conditions have these problems.

    Raises:
        ComparisonError: two models have no problem in common.
    """
    keys = ["model", "layout", "condition"] if common else ["model", "layout"]
    ids = frame.groupby(keys, observed=True)["problem_id"]
    ids_by_setting = [set(names) for names in ids.unique()]
    shared_ids = set.intersection(*ids_by_setting)
    omitted_ids = set.union(*ids_by_setting) - shared_ids
    if not shared_ids:
        raise ComparisonError("The runs have no problem in common.")
    if omitted_ids:
        frame = frame[frame["problem_id"].isin(shared_ids)].reset_index(drop=True)
    return frame, len(omitted_ids)


def _make_design(
    runs: Sequence[Run],
    references: ReferenceConditions,
    *,
    baseline: str | None,
    by: Sequence[str],
) -> Design:
    """What `make_leaderboard` compares, from its arguments and from what the runs registered."""
    baselines = {run.baseline for run in runs}
    runs_baseline = baselines.pop() if len(baselines) == 1 else BASELINE
    design = Design(baseline=baseline or runs_baseline, by=by)
    if design.baseline != runs_baseline:
        # a reference condition of another baseline says nothing about this baseline
        return design
    contrasts, primary = (None, None) if by else _join_contrasts(runs)
    looks: dict[str, int] = {}
    for run in runs:
        model = str(run.about["model"])
        looks[model] = max(looks.get(model, 1), run.about.get("looks", 1))
    return replace(
        design,
        looks=looks,
        contrasts=contrasts,
        primary=primary,
        unregistered=_find_unregistered(runs, contrasts or ()),
        reference_conditions={
            name: fields for name, fields in references.items() if name != design.baseline
        },
    )


def _make_side_tables(
    frame: pandas.DataFrame,
    outcomes: Sequence[Outcomes],
    design: Design,
    conditions: Mapping[str, Condition],
) -> dict[str, pandas.DataFrame]:
    """All tables except the comparison and that of answers.

    Args:
        frame: All samples.
        outcomes: `outcomes.count_outcomes` of the frame.
        design: What is compared with what.
        conditions: The conditions of the configs, by name.
    """
    # this table is about all problems, so with a split it stays empty
    by_setting = group_by_setting([] if design.by else outcomes)
    # runs with log-probabilities and tables of other programs have no completions
    has_no_completions = design.score == GOLD_FIRST or frame["next_question"].isna().all()
    completions = frame[:0] if has_no_completions else frame
    is_reference = frame["condition"].isin([*design.reference_conditions])
    # with a score single samples are not right or wrong
    single_samples = frame[:0] if design.score else frame[~is_reference]
    return {
        "together": together_table(single_samples, by=design.by),
        "texts": text_table(by_setting, conditions, design.reference_conditions, design.baseline),
        "mediators": mediator_table(completions, by=design.by),
        "audit": audit_table(completions, baseline=design.baseline, by=design.by),
    }


def join_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """The conditions of all configs, by name, except reference conditions. Logs have none."""
    conditions: dict[str, Condition] = {}
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
    fields_by_name: dict[str, Mapping[str, Any]] = {}
    run_by_name: dict[str, str] = {}
    for run in runs:
        for name in _list_conditions(run):
            fields = run.reference_conditions.get(name, {})
            first_run = run_by_name.setdefault(name, run.name)
            if fields_by_name.setdefault(name, fields) != fields:
                raise ComparisonError(
                    f"{run.name}: the condition {name!r} differs from the one in {first_run}."
                )
    return {name: fields for name, fields in fields_by_name.items() if fields}


def _join_contrasts(runs: Sequence[Run]) -> tuple[tuple[str, ...] | None, str | None]:
    """The contrasts that the runs registered, and the primary contrast if all name the same.

    Both are None if no run registered any.
    """
    receipts = [run.about for run in runs if run.about.get("contrasts") is not None]
    if not receipts:
        return None, None
    names: dict[str, None] = {}
    for facts in receipts:
        names |= dict.fromkeys(map(str, facts["contrasts"]))
    conditions: set[str] = set().union(*map(_list_conditions, runs))
    contrasts = tuple(name for name in names if set(read_contrast(name)) <= conditions)
    primaries = {facts.get("primary") for facts in receipts}
    # runs that name different primary contrasts have no common one
    primary = primaries.pop() if len(primaries) == 1 else None
    return contrasts, primary if primary in contrasts else None


def _find_unregistered(runs: Sequence[Run], contrasts: Iterable[str]) -> set[tuple[str, str]]:
    """Models with contrasts that their run did not register. A log registers none."""
    unregistered = set()
    for name in contrasts:
        condition, baseline_name = read_contrast(name)
        for run in runs:
            conditions = _list_conditions(run)
            # a run without `wo` may be compared with the `wo` of another run
            has_both = condition in conditions and baseline_name in [*conditions, BASELINE]
            if has_both and name not in (run.about.get("contrasts") or ()):
                unregistered.add((str(run.about["model"]), name))
    return unregistered


def _list_conditions(run: Run) -> list[str]:
    return list(run.samples["condition"].astype(str).unique())


def records(frame: pandas.DataFrame) -> list[Row]:
    """Rows as mappings, with None for missing values."""
    values: Any = frame.astype(object)
    # JSON has no NaN
    return list(values.where(frame.notna(), None).to_dict("records"))
