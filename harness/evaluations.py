"""What tables compare: the samples of one run or several in one frame, and the facts in which they must agree."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import ComparisonError
from harness.outcomes import read_outcomes
from harness.records import read_receipt

if TYPE_CHECKING:
    import pandas

MUST_AGREE = {
    "dataset": ("another dataset", "Compare runs on one dataset"),
    "task_version": ("another task version", "Run the older one again"),
    "grader_version": ("another grader version", "Grade both alike with `mless regrade`"),
}
"""Facts in which all evaluations of a table agree: what a difference means, and what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """One run, as tables see it.

    Attributes:
        name: The path that it was read from.
        frame: One row a sample, with the columns of `outcomes.read_outcomes`.
        facts: Its part of a table's receipt: model, dataset, task_version, grader_version, sampling and so on. What is
            not known is None, and then agrees with anything.
    """

    name: str
    frame: pandas.DataFrame
    facts: Mapping[str, Any]


def read_evaluation(path: Path) -> Evaluation:
    """Read a run folder.

    Raises:
        RunError: there is no finished run there, or a file of it is missing or damaged.
    """
    receipt = read_receipt(path)
    frame = read_outcomes(path)
    sampling = receipt["sampling"]
    facts = {
        "source": "run",
        "run": receipt["run"],
        "model": str(frame["model"].iloc[0]),
        "model_sha256": _hash(receipt["model"]),
        "dataset": receipt["dataset"]["sha256"],
        "dataset_name": receipt["dataset"]["name"],
        "problems": receipt["problems"],
        "task_version": receipt["task_version"],
        "grader_version": receipt["grader_version"],
        "prompts_sha256": receipt["prompts_sha256"],
        "sampling": {name: sampling[name] for name in sampling if name not in ("from_model", "switched_off")},
        "greedy": sampling["temperature"] == 0,
        "engine": "{name} {version}".format(**receipt["engine"]),
        "primary": receipt["config"].get("primary"),
        "seed": receipt["seed"],
        "created": receipt["created"],
        "versions": receipt["versions"],
        "git_revision": receipt["git_revision"],
    }
    return Evaluation(name=str(path), frame=frame, facts=facts)


def join(evaluations: Sequence[Evaluation]) -> pandas.DataFrame:
    """The samples of all in one frame.

    Raises:
        ComparisonError: one is given twice, two do not agree in what `MUST_AGREE` names, or two share a model's label
            and differ in more than the condition.
    """
    import pandas
    from pandas.api.types import union_categoricals

    names = [str(Path(one.name).resolve()) for one in evaluations]
    if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
        raise ComparisonError(f"{twice} is given twice: expected every run once. Leave one out.")
    for one in evaluations[1:]:
        _refuse_disagreement(evaluations[0], one, MUST_AGREE)
    for place, one in enumerate(evaluations):
        for other in evaluations[:place]:
            if one.facts["model"] == other.facts["model"]:
                _refuse_disagreement(other, one, _ONE_MODEL)
    if len(evaluations) == 1:
        return evaluations[0].frame
    columns: dict[str, Any] = {}
    for name in evaluations[0].frame.columns:
        parts = [one.frame[name] for one in evaluations]
        if all(isinstance(part.dtype, pandas.CategoricalDtype) for part in parts):
            columns[name] = union_categoricals([part.astype(_unordered(part)) for part in parts])
        else:
            columns[name] = pandas.concat(parts, ignore_index=True)
    return pandas.DataFrame(columns)


_ONE_MODEL = {
    name: ("the same model's label, but other " + words, "Give one of them another label (model.label)")
    for name, words in (("model_sha256", "weights"), ("sampling", "sampling"), ("engine", "engine"))
}


def _refuse_disagreement(one: Evaluation, other: Evaluation, facts: Mapping[str, tuple[str, str]]) -> None:
    for name, (what, remedy) in facts.items():
        ours, theirs = one.facts.get(name), other.facts.get(name)
        if None not in (ours, theirs) and ours != theirs:
            raise ComparisonError(
                f"{other.name} has {what} than {one.name}: expected {_short(ours)}, got {_short(theirs)}. {remedy}, "
                "or make two tables."
            )


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] + "..." if len(text) == 64 else text


def _unordered(column: pandas.Series[Any]) -> pandas.CategoricalDtype:
    import pandas

    return pandas.CategoricalDtype(column.cat.categories, ordered=False)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
