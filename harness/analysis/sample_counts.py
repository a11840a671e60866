"""Right samples of each problem under each condition, counted, and refusals if samples or problems are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from harness.errors import ComparisonError, list_first

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Counts of one condition in one replicate, by problem.

    Attributes:
        setting: Names and values of the columns that the table is split by, beginning with model and layout.
        condition: The condition.
        replicate: Number of the repetition of the condition, from 0.
        problem_ids: [problem] In an order that all outcomes of a frame share.
        right: [problem] Right samples.
        samples: [problem] Samples.
    """

    setting: tuple[tuple[str, Any], ...]
    condition: str
    replicate: int
    problem_ids: npt.NDArray[Any]
    right: IntArray
    samples: IntArray

    @property
    def k(self) -> int:
        """Samples per problem; the most of any problem, if some are missing."""
        return int(self.samples.max())

    @property
    def name(self) -> str:
        """Setting, condition and replicate, for messages."""
        words = [f"{column} {value}" for column, value in (*self.setting, ("condition", self.condition))]
        return ", ".join([*words, f"replicate {self.replicate}"] if self.replicate else words)


def count_outcomes(frame: pandas.DataFrame, *, by: Sequence[str] = ()) -> list[Outcomes]:
    """Count the outcomes of every model, layout, condition and replicate, in the frame's order.

    Args:
        frame: One row per sample, as `harness.load_run` gives it: model, layout, condition, problem_id, sample_index
            and correct; replicate is 0 where there is no such column.
        by: Further columns to split by, such as subject or level.

    Raises:
        ComparisonError: a column is missing, there are no samples, a sample occurs twice or has no verdict.
    """
    split = ["model", "layout", *by]
    needed = [*split, "condition", "problem_id", "sample_index", "correct"]
    if absent := [column for column in needed if column not in frame]:
        raise ComparisonError(
            f"The samples lack the column {', '.join(absent)}: expected {', '.join(needed)}, got "
            f"{', '.join(map(str, frame.columns))}. Load them with harness.load_run."
        )
    if frame.empty:
        raise ComparisonError("There are no samples to count: expected at least one. Check the path or the filter.")
    if "replicate" not in frame:
        frame = frame.assign(replicate=0)
    keys = [*split, "condition", "replicate"]
    _refuse_unusable(frame, keys)
    numbers, names = pandas.factorize(frame["problem_id"])
    frame = frame[[*keys, "correct"]].assign(problem=numbers, correct=frame["correct"].to_numpy(dtype=np.int64))
    problems = frame.groupby([*keys, "problem"], observed=True, sort=False, dropna=False)["correct"]
    counted = []
    arms: Any = problems.agg(["sum", "size"]).groupby(level=keys, observed=True, sort=False, dropna=False)
    for key, unordered in arms:
        *setting, condition, replicate = key
        part = unordered.sort_index(level="problem")
        counted.append(
            Outcomes(
                setting=tuple(zip(split, setting, strict=True)),
                condition=str(condition),
                replicate=int(replicate),
                problem_ids=np.asarray(names[part.index.get_level_values("problem")]),
                right=part["sum"].to_numpy(),
                samples=part["size"].to_numpy(),
            )
        )
    return counted


def against_baseline(
    problems: pandas.DataFrame, baseline: str
) -> Iterator[tuple[tuple[Any, ...], pandas.DataFrame, pandas.DataFrame]]:
    """Pair every condition with the baseline of its setting. Yields the key, the condition's rows, the baseline's rows.

    Args:
        problems: Numbers by problem. The index holds the setting (model, layout and further splits), then the
            condition, then the problem's id. Settings without a baseline are skipped.
        baseline: The condition that others are compared with.
    """
    keys = problems.index.names[:-1]
    groups = problems.groupby(level=keys, observed=True, sort=False)
    arms: dict[Any, pandas.DataFrame] = {arm: part.droplevel(keys) for arm, part in groups}
    for arm, new in arms.items():
        old = arms.get((*arm[:-1], baseline))
        if old is not None and arm[-1] != baseline:
            yield arm, new, old


def _refuse_unusable(frame: pandas.DataFrame, keys: list[str]) -> None:
    def name(row: int) -> str:
        values = frame.iloc[row]
        words = [f"{key} {values[key]}" for key in keys if key != "replicate" or values[key]]
        return f"{', '.join(words)}: sample {values['sample_index']} of problem {values['problem_id']}"

    if (unknown := frame["correct"].isna().to_numpy()).any():
        raise ComparisonError(
            f"{name(int(unknown.argmax()))} has no verdict: expected correct to be true or false everywhere, got "
            f"{unknown.sum()} without. Grade the run again with `mless regrade`."
        )
    if (again := frame.duplicated([*keys, "problem_id", "sample_index"]).to_numpy()).any():
        raise ComparisonError(
            f"{name(int(again.argmax()))} occurs more than once: expected every sample once, got {again.sum()} again. "
            "Give each run once, and let models of different runs have different labels (model.label)."
        )


def refuse_unpaired(frame: pandas.DataFrame, baseline: Outcomes, other: Outcomes) -> None:
    """Refuse two conditions with different problems or different numbers of samples.

    Args:
        frame: The samples that they were counted from, in which the missing ones are looked up.
        baseline: The one.
        other: The other.

    Raises:
        ComparisonError: one lacks problems or samples, which the message names.
    """
    for one in (baseline, other):
        _refuse_missing_samples(frame, one)
    ours, theirs = set(baseline.problem_ids.tolist()), set(other.problem_ids.tolist())
    if ours != theirs:
        lacks = [
            f"{who.condition} lacks {list_first(sorted(map(str, which)))}"
            for who, which in ((other, ours - theirs), (baseline, theirs - ours))
            if which
        ]
        raise ComparisonError(
            f"{other.name}: its problems are not those of the baseline {baseline.condition}: expected the same "
            f"{len(ours)}, got {len(theirs)}; {'; '.join(lacks)}. Finish both runs, or compare runs of one dataset."
        )
    if baseline.k != other.k:
        raise ComparisonError(
            f"{other.name}: expected {baseline.k} samples a problem as the baseline {baseline.condition} has, got "
            f"{other.k}. Run one of them again with the other's samples_per_problem."
        )


def _refuse_missing_samples(frame: pandas.DataFrame, one: Outcomes) -> None:
    if (one.samples == one.k).all():
        return
    for column, value in (*one.setting, ("condition", one.condition), ("replicate", one.replicate)):
        if column in frame:
            frame = frame[frame[column] == value]
    known = frame.groupby("problem_id", observed=True)["sample_index"].agg(set)
    every = set().union(*known)
    lacks = [
        f"{name} (no {', '.join(map(str, sorted(every - known[name])))})"
        for name in one.problem_ids[one.samples < one.k]
    ]
    raise ComparisonError(
        f"{one.name}: samples are missing: expected {one.k} of each problem, got fewer of "
        f"{list_first(lacks)}. Continue the run by the command that began it."
    )
