"""Which runs may stand in one table: they agree in problems, versions and, per model, settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ComparisonError, list_first
from harness.runs.journal import describe_differences
from harness.runs.read_runs import VERSIONS, Run

if TYPE_CHECKING:
    import pandas

_MODEL_FACTS = ("model_sha256", "sampling", "engine")
"""Facts that must be equal in all runs of one model, besides the settings."""


def join(runs: Sequence[Run]) -> pandas.DataFrame:
    """The samples of all runs in one frame.

    Raises:
        ComparisonError: a run is given twice, two runs are of different problems, task or grader
            versions, or two runs share a model's label and differ in more than the condition.
    """
    import pandas
    from pandas.api.types import union_categoricals

    for index, later in enumerate(runs):
        for earlier in runs[:index]:
            if Path(later.name).resolve() == Path(earlier.name).resolve():
                raise ComparisonError(f"{later.name} is given twice.")
            if reason := _describe_disagreement(earlier, later):
                raise ComparisonError(
                    f"{later.name} cannot be compared with {earlier.name}: {reason}. "
                    "Use a separate command for each."
                )
    if len(runs) == 1:
        return runs[0].samples
    # a run with a single draw of examples has no column `draw`
    frames = [run.samples.assign(draw=run.samples.get("draw", 1)) for run in runs]
    joined: dict[str, Any] = {}
    for name in frames[0].columns:
        columns = [frame[name] for frame in frames]
        if isinstance(columns[0].dtype, pandas.CategoricalDtype):
            # `concat` would make objects of columns whose categories differ, which take far more
            # memory
            joined[name] = pandas.Series(union_categoricals(columns, ignore_order=True))
        else:
            joined[name] = pandas.concat(columns, ignore_index=True)
    return pandas.DataFrame(joined)


def describe_problem_differences(old: Run, new: Run) -> str:
    """In what the problems or endpoints of two runs differ.

    Empty if they are the same, as far as is known.
    """
    if old.endpoint != new.endpoint:
        return f"another endpoint: {old.endpoint} -> {new.endpoint}"
    old_dataset, new_dataset = old.about.get("dataset"), new.about.get("dataset")
    if old_dataset is not None and new_dataset is not None:
        if old_dataset == new_dataset:
            return ""
        return f"another dataset: {old_dataset[:12]} -> {new_dataset[:12]}"
    if not old.problems or not new.problems:
        return ""
    shared_ids = [name for name in old.problems if name in new.problems]
    if not shared_ids:
        return "they have no problem in common"
    changed_ids = [name for name in shared_ids if old.problems[name] != new.problems[name]]
    return f"different problems have the ids {list_first(changed_ids)}" if changed_ids else ""


def _describe_disagreement(old: Run, new: Run) -> str:
    """Why two runs may not stand in one table; empty if they may."""
    if reason := describe_problem_differences(old, new):
        return reason
    is_same_model = old.about["model"] == new.about["model"]
    return describe_differences(
        _comparable_facts(old, is_same_model), _comparable_facts(new, is_same_model)
    )


def _comparable_facts(run: Run, is_same_model: bool) -> dict[str, Any]:
    """The versions of a run, its examples and, for a comparison within one model, its settings."""
    names = VERSIONS + _MODEL_FACTS if is_same_model else VERSIONS
    facts = {name: run.about[name] for name in names if run.about.get(name) is not None}
    if run.receipt:  # logs of lm-eval do not name their examples
        facts["examples"] = run.receipt.get("examples")
    if is_same_model:
        facts |= run.about.get("settings") or {}
    return facts
