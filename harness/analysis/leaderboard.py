"""The tables of one run or of many: accuracies, differences with verdicts, what else changed, what graders say."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.grading import COLUMNS as GRADERS
from harness.grading import UNGRADED
from harness.runs.comparable import join
from harness.runs.run import Run

if TYPE_CHECKING:
    import pandas

SCHEMA = "mless-table/1"
"""Name and version of the JSON that `as_json` writes: docs/tables.md."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Leaderboard:
    """Everything that the tables of some runs say.

    Attributes:
        comparison: `analysis.compare`.
        mediators: `mediators.mediator_table`.
        audit: `audit_table`.
        baseline: The condition that others are compared with.
        primary: The condition that the runs are about, named before them; empty if they name none, or not the same.
        family: Conditions whose tests were named before the runs; None if none were, and all tests are the family.
        edits: Conditions that are harmless edits of the prompt (the prompt null).
        by: What the rows are split by, beside model, layout and condition.
        seed: Of the bootstrap and of random sign flips.
        receipt: One entry a run: where it is from, versions, hashes, settings.
    """

    comparison: pandas.DataFrame
    mediators: pandas.DataFrame
    audit: pandas.DataFrame
    baseline: str
    primary: tuple[str, ...]
    family: tuple[str, ...] | None
    edits: tuple[str, ...]
    by: tuple[str, ...]
    seed: int
    receipt: tuple[Mapping[str, Any], ...]

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

    The tests that the runs registered are one family, over all models. Against another baseline than `wo`, or split,
    nothing is registered: then all tests are the family, and none is primary.

    Args:
        runs: From `read_run.read_run`.
        baseline: The condition that others are compared with.
        margin: Equivalence margin in points; by default that of `analysis.compare`.
        by: `subject`, `level`, or both.

    Raises:
        ComparisonError: the runs cannot be compared; see `comparable.join` and `analysis.compare`.
    """
    from harness.analysis.comparison import MARGIN, compare
    from harness.analysis.mediators import mediator_table
    from harness.experiment.conditions import BASELINE, DEFAULT_SEED

    frame = join(runs)
    if by:
        frame = frame.sort_values(list(by), kind="stable", ignore_index=True)
    edits = [name for one in runs for name in one.facts.get("edits") or () if name != baseline]
    if baseline != BASELINE:  # what edits another prompt is no null for this one
        frame = frame[~frame["condition"].isin(edits)]
    there = set(frame["condition"].unique())
    edits = [name for name in dict.fromkeys(edits) if name in there]
    family, primary = _registered(runs) if baseline == BASELINE and not by else (None, None)
    comparison = compare(
        frame,
        baseline=baseline,
        margin=MARGIN if margin is None else margin,
        by=by,
        family=family,
        primary=primary,
        edits=edits,
        seed=DEFAULT_SEED,
    )
    return Leaderboard(
        comparison=comparison,
        mediators=mediator_table(frame, baseline=baseline, by=by),
        audit=audit_table(frame, baseline=baseline, by=by),
        baseline=baseline,
        primary=() if primary is None else (primary,),
        family=family,
        edits=tuple(edits),
        by=tuple(by),
        seed=DEFAULT_SEED,
        receipt=tuple({"name": one.name, **one.facts} for one in runs),
    )


def _registered(runs: Sequence[Run]) -> tuple[tuple[str, ...] | None, str | None]:
    """The family that the runs registered between them, and the primary contrast if they all name the same.

    None if a run registered nothing, or ran what another one registered and left it out of its own family.
    """
    families = [one.facts.get("family") for one in runs]
    ran = [set(one.frame["condition"].unique()) for one in runs]
    every = dict.fromkeys(str(name) for family in families for name in family or ())
    for family, there in zip(families, ran, strict=True):
        if family is None or there & every.keys() - set(family):
            return None, None
    primaries = {one.facts.get("primary") for one in runs}
    kept = tuple(name for name in every if name in set.union(*ran))
    return kept, primaries.pop() if len(primaries) == 1 and primaries <= set(kept) else None


def as_json(board: Leaderboard, **more: Any) -> str:
    """Everything as JSON in ASCII; `more` are further tables. The schema is in docs/tables.md."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "baseline": board.baseline,
            "primary": list(board.primary),
            "family": board.family if board.family is None else list(board.family),
            "by": list(board.by),
            "seed": board.seed,
            "rows": records(board.comparison),
            "mediators": records(board.mediators),
            "audit": records(board.audit),
            **more,
            "receipt": list(board.receipt),
        },
        indent=2,
        allow_nan=False,
        default=_plain,
    )


def as_csv(table: pandas.DataFrame, board: Leaderboard) -> str:
    """One table as CSV, words in quotes; the receipt follows in lines that begin with `#`, which no row does."""
    notes = [f"# {json.dumps(entry, sort_keys=True, default=_plain)}" for entry in board.receipt]
    return "\n".join([table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC).rstrip("\n"), *notes])


def accuracy_table(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Accuracy in percent with its error and interval, and what the rest was, per model, layout and condition.

    The columns n to majority_ties are those of `analysis.compare`, for runs that it cannot compare as well: without
    the baseline, or unfinished. Whether two conditions differ is a paired question that this table does not answer.
    Replicates of the baseline are left out.
    """
    import pandas

    from harness.analysis.comparison import accuracy
    from harness.analysis.sample_counts import count_outcomes

    first = _first(frame)
    counted = {(*(str(v) for _, v in one.setting), one.condition): accuracy(one) for one in count_outcomes(first)}
    keys = ["model", "layout", "condition"]
    rows = []
    for arm, group in first.groupby(keys, observed=True, sort=False):
        verdicts = group["verdict"]
        rows.append(
            {
                **dict(zip(keys, arm, strict=True)),
                **counted[tuple(map(str, arm))],
                "correct": int(group["correct"].sum()),
                "no_box": int((verdicts == "no_box").sum()),
                "truncated": int((verdicts == "truncated").sum()),
                "ungraded": int(verdicts.isin(UNGRADED).sum()),
                "math_verify": _percent(group["math_verify"]),
            }
        )
    return pandas.DataFrame(rows)


def audit_table(frame: pandas.DataFrame, *, baseline: str = "wo", by: Sequence[str] = ()) -> pandas.DataFrame:
    """What every grader says of the same completions, per condition and layout: one column a grader, in percent.

    Beside each stand `..._difference`, points against the baseline as that grader has it, over the problems of which
    it judged a sample under both; and `..._only_ours` and `..._only_theirs`: samples that only one of the two calls
    right, those left out in which one of them did not end. `boxes_after_first` counts samples with a further box after
    the first. Replicates of the baseline are left out.
    """
    import pandas

    frame = _first(frame)
    keys = ["model", "layout", *by, "condition"]
    arms = dict(tuple(frame.groupby(keys, observed=True, sort=False)))
    means = {arm: _problem_means(group) for arm, group in arms.items()}
    rows = []
    for arm, group in arms.items():
        old = means.get((*arm[:-1], baseline)) if arm[-1] != baseline else None
        row = dict(zip(keys, arm, strict=True))
        ours, known = group["correct"].to_numpy(dtype=bool), ~group["verdict"].isin(UNGRADED).to_numpy()
        for name in ("ours", *GRADERS):
            row[name] = 100 * float(ours.mean()) if name == "ours" else _percent(group[name])
            change = None if old is None else (means[arm][name] - old[name]).dropna()
            row[f"{name}_difference"] = math.nan if change is None or not len(change) else 100 * float(change.mean())
            if name != "ours":
                both = known & group[name].notna().to_numpy()
                theirs = group[name].fillna(False).to_numpy(dtype=bool)
                row[f"{name}_only_ours"] = int((both & ours & ~theirs).sum())
                row[f"{name}_only_theirs"] = int((both & ~ours & theirs).sum())
        rows.append({**row, "boxes_after_first": int((group["boxes_after_first"] > 0).sum())})
    return pandas.DataFrame(rows)


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Rows as mappings, with None for what is missing."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _problem_means(group: pandas.DataFrame) -> pandas.DataFrame:
    """Each grader's share of right samples, [problem, grader]; NaN where it judged none."""
    import pandas

    scores = {name: _numbers(group[name]) for name in GRADERS}
    table = pandas.DataFrame({"problem_id": group["problem_id"], "ours": group["correct"].astype(float), **scores})
    return table.groupby("problem_id", observed=True)[["ours", *GRADERS]].mean()


def _numbers(verdicts: pandas.Series[Any]) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = verdicts.fillna(False).to_numpy(dtype=float)
    values[verdicts.isna().to_numpy()] = np.nan
    return values


def _first(frame: pandas.DataFrame) -> pandas.DataFrame:
    return frame[frame["replicate"] == 0] if "replicate" in frame else frame


def _percent(verdicts: pandas.Series[Any]) -> float:
    """The share of right ones among those that a grader gave, in percent; NaN if it gave none."""
    given = verdicts.dropna()
    return 100 * float(given.astype(bool).mean()) if len(given) else math.nan


def _plain(value: Any) -> Any:
    """A numpy number as Python's own."""
    return value.item() if hasattr(value, "item") else str(value)
