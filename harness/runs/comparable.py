"""Whether runs may stand in one table: the same problems, versions and, under one model's label, settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ComparisonError, list_first
from harness.runs.journal import other_settings
from harness.runs.run import Run

if TYPE_CHECKING:
    import pandas

_ALL = {
    "prompt_version": ("another version of the prompts", "Run the older one again"),
    "task_version": ("another task version", "Grade both alike with `mless regrade`, or run the older one again"),
    "grader_version": ("another grader version", "Grade both alike with `mless regrade`"),
}
"""Facts in which all runs of a table agree: what a difference means, and what to do about it."""
_ONE_MODEL = {
    name: (f"the same model's label, but other {words},", "Leave one out")
    for name, words in (("model_sha256", "weights"), ("sampling", "sampling"), ("engine", "engine"))
}
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
            if message := _disagreement(other, one):
                raise ComparisonError(message)
    if len(runs) == 1:
        return runs[0].frame
    columns: dict[str, Any] = {}
    for name in runs[0].frame.columns:
        parts = [one.frame[name] for one in runs]
        if all(isinstance(part.dtype, pandas.CategoricalDtype) for part in parts):
            columns[name] = pandas.Series(union_categoricals(parts, ignore_order=True))
        else:
            columns[name] = pandas.concat([part.astype(_plain(part)) for part in parts], ignore_index=True)
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
        mine = samples[one.name]
        fitting = (
            group
            for group in groups
            if not any(mine & samples[other.name] or _disagreement(other, one) for other in group)
        )
        home = next(fitting, None)
        if home is None:
            groups.append([one])
        else:
            home.append(one)
    return groups


def _refuse_twice(runs: Sequence[Run]) -> None:
    names = [str(Path(one.name).resolve()) for one in runs]
    if twice := next((one.name for place, one in enumerate(runs) if names[place] in names[:place]), None):
        raise ComparisonError(f"{twice} is given twice: expected every run once. Leave one out.")


def _samples(one: Run) -> set[tuple[str, ...]]:
    """Which problems it asked of which model, and how."""
    keys = one.frame[["model", "layout", "condition", "problem_id"]].drop_duplicates()
    return set(keys.astype(str).itertuples(index=False, name=None))


def _disagreement(one: Run, other: Run) -> str | None:
    """Why the two may not stand in one table; None if they may."""
    if how := _other_problems(one, other):
        return _refusal(one, other, "another dataset", how, "Compare runs on one dataset")
    return _other_versions(one, other)


def _refusal(one: Run, other: Run, what: str, how: str, remedy: str) -> str:
    return f"{other.name} has {what} than {one.name}: {how}. {remedy}, or give them to separate commands."


def _other_versions(one: Run, other: Run) -> str | None:
    """In which version the two differ or, under one model's label, in which setting; None if in none."""
    same_model = one.facts["model"] == other.facts["model"]
    for name, (what, remedy) in (_ALL | _ONE_MODEL if same_model else _ALL).items():
        ours, theirs = one.facts.get(name), other.facts.get(name)
        if None not in (ours, theirs) and ours != theirs:
            return _refusal(one, other, what, f"expected {_short(ours)}, got {_short(theirs)}", remedy)
    ours, theirs = (run.facts.get("settings") or {} for run in (one, other))
    if same_model and (how := other_settings(ours, theirs)):
        return _refusal(one, other, "the same model's label, but other settings,", how, "Leave one out")
    return None


def _other_problems(one: Run, other: Run) -> str | None:
    """In what their problems differ, in words; None if they are the same, as far as is known."""
    ours, theirs = one.facts.get("dataset"), other.facts.get("dataset")
    if ours is not None and theirs is not None:
        return None if ours == theirs else f"expected {_short(ours)}, got {_short(theirs)}"
    if not one.problems or not other.problems:
        return None
    shared = one.problems.keys() & other.problems.keys()
    changed = [name for name in one.problems if name in shared and one.problems[name] != other.problems[name]]
    if changed:
        return f"expected the same text and answer under the same id, got others for {list_first(changed)}"
    return None if shared else "expected the same problems, got none that is in both"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] + "..." if len(text) == 64 else text


def _plain(column: pandas.Series[Any]) -> Any:
    """The type of what a column holds, categorical or not."""
    import pandas

    return column.cat.categories.dtype if isinstance(column.dtype, pandas.CategoricalDtype) else column.dtype
