"""Whether runs may stand in one table: the same problems, versions and, under one label, settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ComparisonError, list_first
from harness.runs.journal import differing
from harness.runs.read_runs import Run

if TYPE_CHECKING:
    import pandas

_ALL = ("prompt_version", "task_version", "grader_version")
"""Facts in which all runs of a table agree."""
_ONE_MODEL = ("model_sha256", "sampling", "engine")
"""Facts in which runs of one model agree, beside their settings."""


def join(runs: Sequence[Run]) -> pandas.DataFrame:
    """The samples of all in one frame.

    Raises:
        ComparisonError: one is given twice, two are of other problems, task or grader versions, or two share a model's
            label and differ in more than the condition.
    """
    import pandas
    from pandas.api.types import union_categoricals

    _refuse_twice(runs)
    for place, one in enumerate(runs):
        for other in runs[:place]:
            if how := _disagreement(other, one):
                told = f"{one.name} cannot be compared with {other.name}: {how}"
                raise ComparisonError(f"{told}. Give them to separate commands.")
    if len(runs) == 1:
        return runs[0].samples
    columns: dict[str, Any] = {}
    # a run without several draws of examples has one
    frames = [one.samples.assign(draw=one.samples.get("draw", 1)) for one in runs]
    for name in frames[0].columns:
        parts = [frame[name] for frame in frames]
        if all(isinstance(part.dtype, pandas.CategoricalDtype) for part in parts):
            columns[name] = pandas.Series(union_categoricals(parts, ignore_order=True))
        else:
            columns[name] = pandas.concat(parts, ignore_index=True)
    return pandas.DataFrame(columns)


def by_table(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs in groups that may stand in one table and have no sample in common, in order.

    Raises:
        ComparisonError: one is given twice.
    """
    _refuse_twice(runs)
    samples = {one.name: _samples(one) for one in runs}
    groups: list[list[Run]] = []
    for one in runs:
        for group in groups:
            if not any(
                samples[one.name] & samples[other.name] or _disagreement(other, one)
                for other in group
            ):
                group.append(one)
                break
        else:
            groups.append([one])
    return groups


def other_settings(one: Run, other: Run) -> str:
    """The versions and, under one model's label, the settings in which two runs differ; empty if there are none.

    What one of them does not know agrees with anything.
    """
    same_model = one.about["model"] == other.about["model"]
    names = _ALL + (_ONE_MODEL if same_model else ())
    ours, theirs = (
        {name: run.about[name] for name in names if run.about.get(name) is not None}
        | ((run.about.get("settings") or {}) if same_model else {})
        for run in (one, other)
    )
    return differing(ours, theirs)


def _refuse_twice(runs: Sequence[Run]) -> None:
    names = [str(Path(one.name).resolve()) for one in runs]
    if twice := next(
        (one.name for place, one in enumerate(runs) if names[place] in names[:place]), None
    ):
        raise ComparisonError(f"{twice} is given twice.")


def _samples(one: Run) -> set[tuple[str, ...]]:
    """Which problems it asked of which model, and how."""
    keys = one.samples[["model", "layout", "condition", "problem_id"]].drop_duplicates()
    return set(keys.astype(str).itertuples(index=False, name=None))


def _disagreement(one: Run, other: Run) -> str:
    """Why the two may not stand in one table; empty if they may."""
    return other_problems(one, other) or other_settings(one, other)


def other_problems(one: Run, other: Run) -> str:
    """In what their problems differ, in words; empty if they are the same, as far as is known."""
    ours, theirs = one.about.get("dataset"), other.about.get("dataset")
    if ours is not None and theirs is not None:
        return "" if ours == theirs else f"another dataset: {ours[:12]} -> {theirs[:12]}"
    if not one.problems or not other.problems:
        return ""
    shared = [name for name in one.problems if name in other.problems]
    if changed := [name for name in shared if one.problems[name] != other.problems[name]]:
        return f"other problems under the ids {list_first(changed)}"
    return "" if shared else "no problem is in both"
