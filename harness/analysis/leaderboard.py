"""All tables of one run or many: the comparison, mediators and graders; and how they are written as JSON and CSV."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.experiment.conditions import BASELINE, DEFAULT_SEED, read_contrast
from harness.runs.comparable import join
from harness.runs.run import Run

if TYPE_CHECKING:
    import pandas

SCHEMA = "mless-table/1"
"""Name and version of the JSON that `as_json` writes: docs/tables.md."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaderboard:
    """All tables of some runs.

    Attributes:
        comparison: `analysis.compare`.
        mediators: `mediators.mediator_table`.
        audit: `grader_agreement.audit_table`.
        pooled: `pooled.pool`: one effect over all models, of each contrast. Empty for one model.
        study: The study that all runs were registered in, if they are of one, and its models that have no run here.
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
    study: tuple[str, tuple[str, ...]] | None
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

    The contrasts that the runs registered are one family, over all models. Nothing is registered if the baseline is not
    `wo` or the table is split; then all tests are the family, and none is primary.

    Args:
        runs: From `read_run.read_run`.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; by default that of `analysis.compare`.
        by: `subject`, `level`, or both.

    Raises:
        ComparisonError: the runs cannot be compared; see `comparable.join` and `analysis.compare`.
    """
    from harness.analysis.comparison import MARGIN, compare
    from harness.analysis.grader_agreement import audit_table
    from harness.analysis.mediators import mediator_table
    from harness.analysis.pooled import pool
    from harness.analysis.sample_counts import count_outcomes

    frame = join(runs)
    if by:
        frame = frame.sort_values(list(by), kind="stable", ignore_index=True)
    named = {name: kind for one in runs for name, kind in (one.facts.get("yardsticks") or {}).items()}
    yardsticks = {name: named[name] for name in frame["condition"].unique() if name in named and name != baseline}
    if baseline != BASELINE:  # what rewords another prompt tells nothing of this one
        frame, yardsticks = frame[~frame["condition"].isin(yardsticks)], {}
    contrasts, primary = _registered(runs) if baseline == BASELINE and not by else (None, None)
    study = None if primary is None else _study(runs)
    pairs = {
        str(name): (str(name), baseline)
        for name in frame["condition"].unique()
        if name != baseline and name not in yardsticks
    }
    pairs |= {name: pair for name in contrasts or () if (pair := read_contrast(name))[1] != baseline}
    about = None if primary is None else read_contrast(primary)
    pooled = pool(
        [] if by or frame["model"].nunique() < 2 else count_outcomes(frame),
        pairs,
        registered=next((name for name, pair in pairs.items() if pair == about and study and not study[1]), None),
        models=frame["model"].nunique(),
    )
    first = pooled[pooled["registered"]]
    return Leaderboard(
        comparison=compare(
            frame,
            baseline=baseline,
            margin=MARGIN if margin is None else margin,
            by=by,
            contrasts=contrasts,
            primary=primary,
            yardsticks=yardsticks,
            behind=dict(zip(first["layout"], first["p_adjusted"], strict=True)),
        ),
        mediators=mediator_table(frame, baseline=baseline, by=by),
        audit=audit_table(frame, baseline=baseline, by=by, yardsticks=yardsticks),
        pooled=pooled,
        study=study,
        baseline=baseline,
        contrasts=contrasts,
        primary=primary,
        yardsticks=yardsticks,
        by=tuple(by),
        receipt=tuple({"name": one.name, **one.facts} for one in runs),
    )


def _registered(runs: Sequence[Run]) -> tuple[tuple[str, ...] | None, str | None]:
    """The contrasts that all runs together registered, and the primary one if all name the same.

    Both are None if a run registered nothing, or left out a contrast that it could test and another registered.
    """
    registered = [one.facts.get("contrasts") for one in runs]
    ran = [{str(name) for name in one.frame["condition"].unique()} for one in runs]
    every = dict.fromkeys(str(name) for names in registered for name in names or ())
    for names, there in zip(registered, ran, strict=True):
        left_out = [] if names is None else [read_contrast(name) for name in every if name not in names]
        if names is None or any(one in there and other in {*there, BASELINE} for one, other in left_out):
            return None, None
    primaries = {one.facts.get("primary") for one in runs}
    kept = tuple(name for name in every if set(read_contrast(name)) <= set.union(*ran))
    return kept, primaries.pop() if len(primaries) == 1 and primaries <= set(kept) else None


def _study(runs: Sequence[Run]) -> tuple[str, tuple[str, ...]] | None:
    """The one study that all runs are of, and its models that are missing; None if there is no such study."""
    studies = [study for one in runs if (study := one.facts.get("study"))]
    if len(studies) < len(runs) or len({(study["name"], frozenset(study["models"])) for study in studies}) > 1:
        return None
    there = {one.facts["model"] for one in runs}
    return studies[0]["name"], tuple(model for model in studies[0]["models"] if model not in there)


def as_json(board: Leaderboard, **more: Any) -> str:
    """All tables as JSON in ASCII, and further ones from `more`. docs/tables.md has the schema."""
    return json.dumps(
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
            **more,
            "receipt": board.receipt,
        },
        indent=2,
        allow_nan=False,
        default=_plain,
    )


def as_csv(table: pandas.DataFrame, board: Leaderboard) -> str:
    """One table as CSV with words in quotes. The receipt follows in lines that begin with `#`, as no row does."""
    notes = [f"# {json.dumps(entry, sort_keys=True, default=_plain)}" for entry in board.receipt]
    return "\n".join([table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).rstrip("\n"), *notes])


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings, with None for missing values."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """A numpy number as a Python number."""
    return value.item() if hasattr(value, "item") else str(value)
