"""All tables of one run or many: the comparison, mediators and graders; and how they are written as JSON and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas

from harness.analysis.causes import causes_table
from harness.analysis.comparison import compare, effects_by_draw
from harness.analysis.controls import audit_table, mediator_table
from harness.analysis.other_prompts import merge_instructions, text_table, wording_table
from harness.analysis.outcomes import by_setting, count_outcomes
from harness.analysis.pooled import pool
from harness.analysis.sweeps import sweep_table
from harness.constants import BASELINE, DEFAULT_SEED, MARGIN
from harness.errors import ComparisonError
from harness.experiment.conditions import Condition, read_contrast
from harness.runs.read import Run
from harness.runs.same_settings import join

SCHEMA = "mless-table/1"
"""Name and version of the JSON that `as_json` writes: docs/tables.md."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaderboard:
    """All tables of some runs.

    Attributes:
        comparison: `analysis.compare`.
        mediators: `controls.mediator_table`.
        audit: `controls.audit_table`.
        pooled: `pooled.pool`: one effect over all models, of each contrast. Empty for one model.
        texts: `other_prompts.text_table`: each condition against other texts. Empty where there are few.
        wordings: `other_prompts.wording_table`: each contrast over all instructions. Empty where there is one.
        sweeps: `sweeps.sweep_table`. Empty where no filler was run in several lengths.
        causes: `causes.causes_table`. Empty without interventions.
        baseline: The condition that others are compared with.
        contrasts: The tests that were named before the runs. None if none were; then all tests are one family.
        primary: The contrast that the runs are about, named before them. None if they name none or different ones.
        reference_conditions: Those of the runs, by name, each with its kind, `of` and number.
        by: Columns that the rows are split by, beside model, layout and condition.
        clusters: How many clusters the problems are in; 0 where none has a cluster.
        draws: The difference of the primary contrast with each draw of examples. Empty where there is one draw.
        receipt: One entry per run: where it is from, versions, hashes, settings.
    """

    comparison: pandas.DataFrame
    mediators: pandas.DataFrame
    audit: pandas.DataFrame
    pooled: pandas.DataFrame
    texts: pandas.DataFrame
    wordings: pandas.DataFrame
    sweeps: pandas.DataFrame
    causes: pandas.DataFrame
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
        ComparisonError: the runs cannot be compared; see `same_settings.join` and `analysis.compare`.
    """
    frame = join(runs)
    own = {one.baseline for one in runs}
    usual = own.pop() if len(own) == 1 else BASELINE
    baseline = baseline or usual
    if by:
        frame = frame.sort_values(list(by), kind="stable", ignore_index=True)
    references = _join_reference_conditions(runs)
    references.pop(baseline, None)
    if baseline != usual:  # a control of another baseline says nothing about this one
        frame, references = frame[~frame["condition"].isin(references)], {}
    contrasts, primary = _registered(runs) if baseline == usual and not by else (None, None)
    others = (str(name) for name in frame["condition"].unique() if name not in (baseline, *references))
    pairs = {name: (name, baseline) for name in others}
    pairs |= {name: pair for name in contrasts or () if (pair := read_contrast(name))[1] != baseline}
    conditions = join_conditions(runs)
    draws = [*effects_by_draw(frame, read_contrast(primary))] if primary else []
    each, frame = frame, merge_instructions(frame, references)
    counted = count_outcomes(frame, by=by)
    apart = counted if each is frame else count_outcomes(each)
    whole = [] if by else counted
    return Leaderboard(
        comparison=compare(
            frame,
            baseline=baseline,
            margin=MARGIN if margin is None else margin,
            by=by,
            contrasts=contrasts,
            primary=primary,
            left_out=_left_out(runs, contrasts or ()),
            reference_conditions=references,
            counted=counted,
        ),
        mediators=mediator_table(frame, by=by),
        audit=audit_table(frame, baseline=baseline, by=by),
        pooled=pool(whole, pairs),
        texts=text_table(by_setting(whole), conditions),
        wordings=wording_table({} if by else by_setting(apart), pairs, references),
        sweeps=sweep_table(whole, conditions, baseline=baseline),
        causes=causes_table(by_setting(whole), conditions),
        baseline=baseline,
        contrasts=contrasts,
        primary=primary,
        reference_conditions=references,
        by=tuple(by),
        clusters=frame["cluster"].nunique() if "cluster" in frame else 0,
        draws=draws,
        receipt=tuple({"name": one.name, **one.about} for one in runs),
    )


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
                raise ComparisonError(f"{run.name}: the condition {name!r} is another one than in {other}.")
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
    kept = tuple(name for name in every if set(read_contrast(name)) <= set().union(*map(_conditions, runs)))
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


def as_json(board: Leaderboard, **more: Any) -> str:
    """All tables as JSON in ASCII, and further ones from `more`. docs/tables.md has the schema."""
    values = {
        "schema": SCHEMA,
        "baseline": board.baseline,
        "contrasts": board.contrasts,
        "primary": board.primary,
        "by": board.by,
        "seed": DEFAULT_SEED,
        "rows": records(board.comparison),
        "mediators": records(board.mediators),
        "audit": records(board.audit),
        "pooled": records(board.pooled),
        **{
            name: records(table)
            for name in ("texts", "wordings", "sweeps", "causes")
            if len(table := getattr(board, name))
        },
        **({"draws": board.draws} if board.draws else {}),
        **more,
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
