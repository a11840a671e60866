"""All tables of one run or many: the comparison, mediators and graders; and how they are written as JSON and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas

from harness.analysis.compare_with_baseline import compare, effects_by_draw
from harness.analysis.count_correct import Outcomes, by_setting, count_outcomes
from harness.analysis.filler_parts import causes_table
from harness.analysis.mediators_and_audit import audit_table, mediator_table
from harness.analysis.other_texts_and_instructions import (
    instructions_table,
    merge_instructions,
    text_table,
)
from harness.analysis.pool_models import pool
from harness.analysis.sweeps import sweep_table
from harness.constants import BASELINE, DEFAULT_SEED, MARGIN
from harness.errors import ComparisonError
from harness.experiment.conditions import Condition, read_contrast
from harness.runs.join_runs import join
from harness.runs.read_runs import Run

SCHEMA = "mless-table/1"
"""Name and version of the JSON that `as_json` writes: docs/tables.md."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaderboard:
    """All tables of some runs.

    Attributes:
        comparison: `analysis.compare`.
        side_tables: What stands beside it, by the name that JSON and `display.side_tables` use. Some have no rows.
        baseline: The condition that others are compared with.
        contrasts: The tests that were named before the runs. None if none were; then all tests are one family.
        primary: The contrast that the runs are about, named before them. None if they name none or different ones.
        reference_conditions: Those of the runs, by name, each with its kind, `of` and number.
        by: Columns that the rows are split by, beside model, layout and condition.
        clusters: How many clusters the problems are in; 0 where none has a cluster.
        draws: The difference of the primary contrast, else of the first, with each draw of examples. Empty where there
            is one draw.
        receipt: One entry per run: where it is from, versions, hashes, settings.
    """

    comparison: pandas.DataFrame
    side_tables: Mapping[str, pandas.DataFrame]
    baseline: str
    contrasts: tuple[str, ...] | None
    primary: str | None
    reference_conditions: Mapping[str, Mapping[str, Any]]
    by: tuple[str, ...]
    clusters: int
    draws: Sequence[Mapping[str, Any]]
    receipt: tuple[Mapping[str, Any], ...]


def make_leaderboard(
    runs: Sequence[Run],
    *,
    baseline: str | None = None,
    margin: float | None = None,
    by: Sequence[str] = (),
) -> Leaderboard:
    """Compare all conditions of all runs with the baseline.

    The contrasts that the runs registered are one family, over all models; what a model's runs did not register is
    exploratory there. Nothing is registered if no run registered anything, another baseline is named than the runs', or
    the table is split; then all tests are the family, and none is primary.

    Args:
        runs: From `Run.load`.
        baseline: The condition that others are compared with; None for the runs' own, `wo` if they differ.
        margin: Equivalence margin in points; by default that of `analysis.compare`.
        by: `subject`, `level`, or both.

    Raises:
        ComparisonError: the runs cannot be compared; see `join_runs.join` and `analysis.compare`.
    """
    frame = join(runs)
    design = _read_design(runs, baseline, is_split=bool(by))
    if design.omitted:
        frame = frame[~frame["condition"].isin(design.omitted)]
    if by:
        frame = frame.sort_values(list(by), kind="stable", ignore_index=True)
    merged = merge_instructions(frame, design.reference_conditions)
    counted = count_outcomes(merged, by=by)
    comparison = compare(  # first, since it says best what cannot be compared
        merged,
        baseline=design.baseline,
        margin=MARGIN if margin is None else margin,
        by=by,
        contrasts=design.contrasts,
        primary=design.primary,
        left_out=_left_out(runs, design.contrasts or ()),
        reference_conditions=design.reference_conditions,
        counted=counted,
    )
    counted_apart = counted if merged is frame else count_outcomes(frame)
    first = read_contrast(design.primary) if design.primary else None
    if first is None:
        first = next(iter(_pair_conditions(counted, design).values()), None)
    if by:  # tables over conditions or models are about all problems, so a split page has none
        counted, counted_apart = [], []
    side_tables = {
        **_make_tables_over_conditions(counted, counted_apart, design, join_conditions(runs)),
        "mediators": mediator_table(merged, by=by),
        "audit": audit_table(merged, baseline=design.baseline, by=by),
    }
    return Leaderboard(
        comparison=comparison,
        side_tables=side_tables,
        baseline=design.baseline,
        contrasts=design.contrasts,
        primary=design.primary,
        reference_conditions=design.reference_conditions,
        by=tuple(by),
        clusters=merged["cluster"].nunique() if "cluster" in merged else 0,
        draws=[*effects_by_draw(merged, first)] if first and not by else [],
        receipt=tuple({"name": one.name, **one.about} for one in runs),
    )


class _Design(NamedTuple):
    """What is compared with what.

    Attributes:
        baseline, contrasts, primary, reference_conditions: As of `Leaderboard`.
        omitted: Reference conditions of the runs' own baseline, where another one was named.
    """

    baseline: str
    contrasts: tuple[str, ...] | None
    primary: str | None
    reference_conditions: Mapping[str, Mapping[str, Any]]
    omitted: Collection[str]


def _read_design(runs: Sequence[Run], baseline: str | None, *, is_split: bool) -> _Design:
    """What `make_leaderboard` compares, by its arguments and by what the runs registered.

    Raises:
        ComparisonError: see `_join_reference_conditions`.
    """
    baselines = {run.baseline for run in runs}
    usual = baselines.pop() if len(baselines) == 1 else BASELINE
    baseline = baseline or usual
    references = _join_reference_conditions(runs)
    references.pop(baseline, None)
    if baseline != usual:  # a control of another baseline says nothing about this one
        return _Design(baseline, None, None, {}, references)
    contrasts, primary = (None, None) if is_split else _registered(runs)
    return _Design(baseline, contrasts, primary, references, ())


def _make_tables_over_conditions(
    counted: Sequence[Outcomes],
    counted_apart: Sequence[Outcomes],
    design: _Design,
    conditions: Mapping[str, Condition],
) -> dict[str, pandas.DataFrame]:
    """The side tables whose rows are about several models, instructions or conditions.

    Args:
        counted: `count_correct.count_outcomes`, not split any further.
        counted_apart: The same with each instruction as a condition of its own.
        design: What is compared with what.
        conditions: The configs', by name.
    """
    pairs = _pair_conditions(counted, design)
    settings = by_setting(counted)
    return {
        "pooled": pool(counted, pairs),
        "instructions": instructions_table(
            by_setting(counted_apart), pairs, design.reference_conditions
        ),
        "texts": text_table(settings, conditions),
        "sweeps": sweep_table(counted, conditions, baseline=design.baseline),
        "causes": causes_table(settings, conditions),
    }


def _pair_conditions(counted: Sequence[Outcomes], design: _Design) -> dict[str, tuple[str, str]]:
    """Each condition with the baseline, and the contrasts that have another baseline, by name."""
    baseline = design.baseline
    names = dict.fromkeys(outcomes.condition for outcomes in counted)
    pairs = {
        name: (name, baseline)
        for name in names
        if name not in (baseline, *design.reference_conditions)
    }
    for name in design.contrasts or ():
        if read_contrast(name)[1] != baseline:
            pairs[name] = read_contrast(name)
    return pairs


def join_conditions(runs: Sequence[Run]) -> dict[str, Condition]:
    """The conditions of all configs, by name, without reference conditions. Logs do not record them."""
    conditions = [condition for run in runs for condition in run.conditions.values()]
    return {condition.name: condition for condition in conditions if condition.kind is None}


def _join_reference_conditions(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """The reference conditions of all runs that have samples, by name.

    Raises:
        ComparisonError: a name stands for a reference condition in one run, and for something else in another.
    """
    known: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for run in runs:
        for name in _conditions(run):
            fields = run.reference_conditions.get(name, {})
            other, known_fields = known.setdefault(name, (run.name, fields))
            if fields != known_fields:
                raise ComparisonError(
                    f"{run.name}: the condition {name!r} is another one than in {other}."
                )
    return {name: fields for name, (_, fields) in known.items() if fields}


def task_name(facts: Iterable[Mapping[str, Any]]) -> str:
    """What a table's task is called: its dataset's name or, where that is not known, the hash of its problems.

    Args:
        facts: Of each of its runs.
    """
    names = (one.get("dataset_name") or (one.get("dataset") or "")[:8] for one in facts)
    return next(filter(None, names), "a dataset without a name")


def _registered(runs: Sequence[Run]) -> tuple[tuple[str, ...] | None, str | None]:
    """The contrasts that the runs registered, and the primary one if all that registered any name the same.

    Both are None if no run registered anything.
    """
    registered = [one.about for one in runs if one.about.get("contrasts") is not None]
    if not registered:
        return None, None
    every = dict.fromkeys(str(name) for facts in registered for name in facts["contrasts"])
    primaries = {facts.get("primary") for facts in registered}
    kept = tuple(
        name for name in every if set(read_contrast(name)) <= set().union(*map(_conditions, runs))
    )
    return kept, primaries.pop() if len(primaries) == 1 and primaries <= set(kept) else None


def _left_out(runs: Sequence[Run], contrasts: Iterable[str]) -> set[tuple[str, str]]:
    """Models with contrasts that their run did not register. A log registers none."""
    pairs = {name: read_contrast(name) for name in contrasts}
    return {
        (str(one.about["model"]), name)
        for one in runs
        for name, (condition, against) in pairs.items()
        if name not in (one.about.get("contrasts") or ())
        and condition in _conditions(one)
        and against in {*_conditions(one), BASELINE}
    }


def _conditions(one: Run) -> set[str]:
    return {str(name) for name in one.samples["condition"].unique()}


def as_json(board: Leaderboard, reference: Mapping[str, Any] | None = None) -> str:
    """All tables as JSON in ASCII, with published numbers if they were asked for. docs/tables.md has the schema."""
    values = {
        "schema": SCHEMA,
        "baseline": board.baseline,
        "contrasts": board.contrasts,
        "primary": board.primary,
        "by": board.by,
        "seed": DEFAULT_SEED,
        "rows": records(board.comparison),
        **{key: records(table) for key, table in board.side_tables.items()},
        **({"draws": board.draws} if board.draws else {}),
        **({"reference": reference} if reference else {}),
        "receipt": board.receipt,
    }
    return json.dumps(values, indent=2, allow_nan=False, default=str)


def as_csv(table: pandas.DataFrame, board: Leaderboard) -> str:
    """One table as CSV with words in quotes. The receipt follows in lines that begin with `#`, as no row does."""
    notes = [f"# {json.dumps(entry, sort_keys=True, default=str)}" for entry in board.receipt]
    return "\n".join([table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).rstrip("\n"), *notes])


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings, with None for missing values."""
    plain: Any = frame.astype(object)
    return list(plain.where(frame.notna(), None).to_dict("records"))
