"""All tables of one run or many: the comparison, mediators and graders; and how they are written as JSON and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.constants import DEFAULT_SEED
from harness.experiment.conditions import BASELINE, read_contrast
from harness.runs.comparable import join, refuse_one_task
from harness.runs.run import Run
from harness.runs.sample_frame import read_factors

if TYPE_CHECKING:
    import pandas

SCHEMA = "mless-table/1"
"""Name and version of the JSON that `as_json` writes: docs/tables.md."""
TASKS_SCHEMA = "mless-tasks/1"
"""The same of `tasks_as_json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The study that all runs of a table were registered in.

    Attributes:
        name: The study's.
        missing: Its models that have no run here.
    """

    name: str
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaderboard:
    """All tables of some runs.

    Attributes:
        comparison: `analysis.compare`.
        mediators: `side_tables.mediator_table`.
        audit: `side_tables.audit_table`.
        pooled: `pooled.pool`: one effect over all models, of each contrast. Empty for one model.
        sweeps: `sweeps.sweep_table`. Empty where no filler was run in several lengths.
        study: The study that all runs were registered in, if they are of one.
        behind: By layout, the p-value of the study's pooled contrast, which all tests wait behind. Empty if there is
            none.
        baseline: The condition that others are compared with.
        contrasts: The tests that were named before the runs. None if none were; then all tests are one family.
        primary: The contrast that the runs are about, named before them. None if they name none or different ones.
        yardsticks: Conditions that the others are held against, with the kind of each.
        by: Columns that the rows are split by, beside model, layout and condition.
        receipt: One entry per run: where it is from, versions, hashes, settings.
        seed: Seed of random sign flips.
    """

    comparison: pandas.DataFrame
    mediators: pandas.DataFrame
    audit: pandas.DataFrame
    pooled: pandas.DataFrame
    sweeps: pandas.DataFrame
    study: Study | None
    behind: Mapping[str, float]
    baseline: str
    contrasts: tuple[str, ...] | None
    primary: str | None
    yardsticks: Mapping[str, str]
    by: tuple[str, ...]
    receipt: tuple[Mapping[str, Any], ...]
    seed: int = DEFAULT_SEED

    @property
    def greedy(self) -> frozenset[str]:
        """Models that decoded greedily."""
        return frozenset(str(entry["model"]) for entry in self.receipt if entry.get("greedy"))


def make_leaderboard(
    runs: Sequence[Run],
    *,
    baseline: str = "wo",
    margin: float | None = None,
    by: Sequence[str] = (),
) -> Leaderboard:
    """Compare all conditions of all runs with the baseline.

    The contrasts that the runs registered are one family, over all models; what a model's runs did not register is
    exploratory there. Nothing is registered if no run registered anything, the baseline is not `wo`, or the table is
    split; then all tests are the family, and none is primary.

    Args:
        runs: From `read_run.read_run`.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; by default that of `analysis.compare`.
        by: `subject`, `level`, or both.

    Raises:
        ComparisonError: the runs cannot be compared; see `comparable.join` and `analysis.compare`.
    """
    from harness.analysis.comparison import MARGIN, compare
    from harness.analysis.pooled import pool
    from harness.analysis.sample_counts import count_outcomes
    from harness.analysis.side_tables import audit_table, mediator_table
    from harness.analysis.sweeps import find_sweeps, sweep_table

    frame = join(runs)
    if by:
        frame = frame.sort_values(list(by), kind="stable", ignore_index=True)
    yardsticks = _yardsticks(runs, baseline)
    if baseline != BASELINE:  # what rewords another prompt tells nothing of this one
        frame, yardsticks = frame[~frame["condition"].isin(yardsticks)], {}
    contrasts, primary = _registered(runs) if baseline == BASELINE and not by else (None, None)
    study = None if primary is None else _study(runs)
    factors = join_factors(runs)
    swept = not by and bool(find_sweeps(factors))
    models = frame["model"].nunique()
    counted = count_outcomes(frame) if swept or (models > 1 and not by) else []
    pooled = pool(
        counted if models > 1 else [],
        _pairs(frame["condition"].unique(), contrasts, baseline, yardsticks),
        registered=_pooled_name(primary, baseline) if study and not study.missing else None,
        models=models,
    )
    first = pooled[pooled["registered"]]
    behind = dict(zip(first["layout"], first["p_adjusted"], strict=True))
    return Leaderboard(
        comparison=compare(
            frame,
            baseline=baseline,
            margin=MARGIN if margin is None else margin,
            by=by,
            contrasts=contrasts,
            primary=primary,
            left_out=_left_out(runs, contrasts or ()),
            yardsticks=yardsticks,
            behind=behind,
        ),
        mediators=mediator_table(frame, baseline=baseline, by=by),
        audit=audit_table(frame, baseline=baseline, by=by),
        pooled=pooled,
        sweeps=sweep_table(counted if swept else [], factors, baseline=baseline),
        study=study,
        behind=behind,
        baseline=baseline,
        contrasts=contrasts,
        primary=primary,
        yardsticks=yardsticks,
        by=tuple(by),
        receipt=tuple({"name": one.name, **one.facts} for one in runs),
    )


def join_factors(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """What can be swept of the conditions of all runs of ours, as of `Condition.factors`; of logs nothing is known."""
    configs = [one.receipt["config"] for one in runs if one.facts.get("source") == "run"]
    return {name: factors for config in configs for name, factors in read_factors(config).items()}


def pool_tasks(groups: Sequence[Sequence[Run]], *, baseline: str = "wo") -> pandas.DataFrame:
    """One effect over several tasks and all their models, as `pooled.pool` gives it; always exploratory.

    Args:
        groups: The runs of each task, as `comparable.by_table` groups them.
        baseline: The condition that others are compared with.

    Raises:
        ComparisonError: two groups have problems in common, or runs under one label differ in more than the task.
    """
    from harness.analysis.pooled import join_tasks, pool
    from harness.analysis.sample_counts import count_outcomes

    refuse_one_task(groups)
    runs = [one for group in groups for one in group]
    joined = join_tasks({str(place): count_outcomes(join(group)) for place, group in enumerate(groups)})
    conditions = dict.fromkeys(one.condition for one in joined)
    contrasts, _ = _registered(runs) if baseline == BASELINE else (None, None)
    return pool(joined, _pairs(conditions, contrasts, baseline, _yardsticks(runs, baseline)), fewest=1)


def task_name(facts: Iterable[Mapping[str, Any]]) -> str:
    """What a table's task is called: its dataset's name or, where that is not known, the hash of its problems.

    Args:
        facts: Of each of its runs.
    """
    names = (one.get("dataset_name") or (one.get("dataset") or "")[:8] for one in facts)
    return next(filter(None, names), "a dataset without a name")


def _yardsticks(runs: Sequence[Run], baseline: str) -> dict[str, str]:
    """Conditions of the runs that others are held against, with the kind of each."""
    named = {name: kind for one in runs for name, kind in (one.facts.get("yardsticks") or {}).items()}
    there = {str(name) for one in runs for name in one.frame["condition"].unique()}
    return {name: kind for name, kind in named.items() if name in there and name != baseline}


def _pairs(
    conditions: Iterable[Any], contrasts: Collection[str] | None, baseline: str, yardsticks: Collection[str]
) -> dict[str, tuple[str, str]]:
    """What stands under `condition` in a pooled table, with the condition and what it is compared with."""
    pairs = {str(name): (str(name), baseline) for name in conditions if name not in (baseline, *yardsticks)}
    return pairs | {name: pair for name in contrasts or () if (pair := read_contrast(name))[1] != baseline}


def _pooled_name(primary: str | None, baseline: str) -> str | None:
    """What the primary contrast is called in a pooled table."""
    if primary is None:
        return None
    condition, against = read_contrast(primary)
    return condition if against == baseline else primary


def _registered(runs: Sequence[Run]) -> tuple[tuple[str, ...] | None, str | None]:
    """The contrasts that the runs registered, and the primary one if all that registered any name the same.

    Both are None if no run registered anything.
    """
    registered = [one.facts for one in runs if one.facts.get("contrasts") is not None]
    if not registered:
        return None, None
    every = dict.fromkeys(str(name) for facts in registered for name in facts["contrasts"])
    primaries = {facts.get("primary") for facts in registered}
    kept = tuple(name for name in every if set(read_contrast(name)) <= set().union(*map(_conditions, runs)))
    return kept, primaries.pop() if len(primaries) == 1 and primaries <= set(kept) else None


def _left_out(runs: Sequence[Run], contrasts: Iterable[str]) -> set[tuple[str, str]]:
    """Models with contrasts that a run of theirs could have registered and did not, such as every one of a log."""
    pairs = {name: read_contrast(name) for name in contrasts}
    return {
        (str(one.facts["model"]), name)
        for one in runs
        for name, (condition, against) in pairs.items()
        if name not in (one.facts.get("contrasts") or ())
        and condition in _conditions(one)
        and against in {*_conditions(one), BASELINE}
    }


def _conditions(one: Run) -> set[str]:
    return {str(name) for name in one.frame["condition"].unique()}


def _study(runs: Sequence[Run]) -> Study | None:
    """The one study that all runs are of; None if there is no such study."""
    studies = [study for one in runs if (study := one.facts.get("study"))]
    if len(studies) < len(runs) or len({(study["name"], frozenset(study["models"])) for study in studies}) > 1:
        return None
    there = {one.facts["model"] for one in runs}
    return Study(name=studies[0]["name"], missing=tuple(name for name in studies[0]["models"] if name not in there))


def as_json(board: Leaderboard, **more: Any) -> str:
    """All tables as JSON in ASCII, and further ones from `more`. docs/tables.md has the schema."""
    return _dump(
        {
            "schema": SCHEMA,
            "baseline": board.baseline,
            "contrasts": board.contrasts,
            "primary": board.primary,
            "by": board.by,
            "seed": board.seed,
            "rows": records(board.comparison),
            "mediators": records(board.mediators),
            "audit": records(board.audit),
            "pooled": records(board.pooled),
            **({"sweeps": records(board.sweeps)} if len(board.sweeps) else {}),
            **more,
            "receipt": board.receipt,
        }
    )


def tasks_as_json(pooled: pandas.DataFrame, tasks: Sequence[str], baseline: str) -> str:
    """One effect over several tasks as JSON in ASCII. It follows the tasks' tables."""
    return _dump({"schema": TASKS_SCHEMA, "tasks": tasks, "baseline": baseline, "pooled": records(pooled)})


def _dump(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, allow_nan=False, default=_plain)


def as_csv(table: pandas.DataFrame, board: Leaderboard) -> str:
    """One table as CSV with words in quotes. The receipt follows in lines that begin with `#`, as no row does."""
    notes = [f"# {json.dumps(entry, sort_keys=True, default=_plain)}" for entry in board.receipt]
    return "\n".join([table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).rstrip("\n"), *notes])


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings, with None for missing values."""
    rows, missing = frame.to_dict("records"), frame.isna().to_dict("records")
    return [
        {str(name): None if gone[name] else value for name, value in row.items()}
        for row, gone in zip(rows, missing, strict=True)
    ]


def _plain(value: Any) -> Any:
    """A numpy number as a Python number."""
    return value.item() if hasattr(value, "item") else str(value)
