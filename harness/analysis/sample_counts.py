"""Samples counted: how many of each problem's samples are right under each condition, and whether any are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from harness.analysis.accuracy import majority_vote
from harness.errors import ComparisonError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

NAMED = 3
"""So many problems are named in an error; of the others it says how many they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What one condition did in one replicate, problem by problem.

    Attributes:
        setting: Model, layout and what else the table is split by, by column.
        condition: Its condition.
        replicate: Which repetition of the condition, from 0.
        problem_ids: [problem] In an order that all outcomes of a frame share.
        right: [problem] Right samples.
        samples: [problem] Samples.
        majority: [problem] Score of the majority answer, in [0, 1]; NaN if the frame has no answers.
        tied: [problem] Whether the majority is a tie.
    """

    setting: tuple[tuple[str, Any], ...]
    condition: str
    replicate: int
    problem_ids: npt.NDArray[Any]
    right: IntArray
    samples: IntArray
    majority: FloatArray
    tied: npt.NDArray[np.bool_]

    @property
    def k(self) -> int:
        """Samples of each problem; the most, where some are missing."""
        return int(self.samples.max())

    @property
    def name(self) -> str:
        """For messages: what it is outcomes of."""
        words = [f"{column} {value}" for column, value in self.setting]
        again = f", replicate {self.replicate}" if self.replicate else ""
        return ", ".join([*words, f"condition {self.condition}"]) + again


def count_outcomes(frame: pandas.DataFrame, *, by: Sequence[str] = ()) -> list[Outcomes]:
    """The outcomes of every model, layout, condition and replicate in a frame of samples, in its own order.

    Args:
        frame: One row a sample, as `harness.load_run` gives it: model, layout, condition, problem_id, sample_index and
            correct; replicate (else 0) and answer if there are any.
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
    groups = frame.groupby(keys, observed=True, sort=False, dropna=False)
    group = np.asarray(groups.ngroup(), dtype=np.int64)
    problem, problem_ids = _numbered(frame["problem_id"])
    _refuse_unusable(frame, keys, group, problem)
    correct = frame["correct"].to_numpy(dtype=bool)
    cells, cell = np.unique(group * len(problem_ids) + problem, return_inverse=True)
    samples = np.bincount(cell)
    right = np.bincount(cell, weights=correct).astype(np.int64)
    majority, tied = np.full(len(cells), np.nan), np.zeros(len(cells), dtype=bool)
    if "answer" in frame and frame["answer"].notna().any():
        answer, _ = _numbered(frame["answer"])
        vote = majority_vote(cell, answer, correct, problems=len(cells))
        majority, tied = vote.scores, vote.ties
    firsts = np.unique(group, return_index=True)[1]
    starts = np.searchsorted(cells // len(problem_ids), np.arange(len(firsts) + 1))
    counted = []
    for number, values in enumerate(frame.iloc[firsts][keys].itertuples(index=False, name=None)):
        here = slice(starts[number], starts[number + 1])
        counted.append(
            Outcomes(
                setting=tuple(zip(split, values[: len(split)], strict=True)),
                condition=str(values[-2]),
                replicate=int(values[-1]),
                problem_ids=np.asarray(problem_ids[cells[here] % len(problem_ids)]),
                right=right[here],
                samples=samples[here],
                majority=majority[here],
                tied=tied[here],
            )
        )
    return counted


def _numbered(column: pandas.Series[Any]) -> tuple[IntArray, pandas.Index[Any]]:
    """Each value's number, -1 for a missing one, and the values by number."""
    numbers, values = pandas.factorize(column)
    return numbers.astype(np.int64, copy=False), pandas.Index(values)


def _refuse_unusable(frame: pandas.DataFrame, keys: list[str], group: IntArray, problem: IntArray) -> None:
    def name(row: int) -> str:
        values = frame.iloc[row]
        words = [f"{key} {values[key]}" for key in keys if key != "replicate" or values[key]]
        return f"{', '.join(words)}: sample {values['sample_index']} of problem {values['problem_id']}"

    if (unknown := frame["correct"].isna().to_numpy()).any():
        raise ComparisonError(
            f"{name(int(unknown.argmax()))} has no verdict: expected correct to be true or false everywhere, got "
            f"{unknown.sum()} without. Grade the run again with `mless regrade`."
        )
    index, _ = _numbered(frame["sample_index"])
    key = pandas.Series((group * (problem.max() + 1) + problem) * (index.max() + 1) + index)
    if (again := key.duplicated().to_numpy()).any():
        raise ComparisonError(
            f"{name(int(again.argmax()))} occurs more than once: expected every sample once, got {again.sum()} again. "
            "Give each run once, and let models of different runs have different labels (model.label)."
        )


def refuse_unpaired(frame: pandas.DataFrame, baseline: Outcomes, other: Outcomes) -> None:
    """Refuse conditions that differ in their problems, or in the number of samples of one.

    Args:
        frame: The samples that they were counted from, to find out which are missing.
        baseline: What is compared with.
        other: What is compared.

    Raises:
        ComparisonError: naming the problems or samples that one of them lacks.
    """
    for one in (baseline, other):
        _refuse_missing_samples(frame, one)
    ours, theirs = set(baseline.problem_ids.tolist()), set(other.problem_ids.tolist())
    if ours != theirs:
        lacks = [
            f"{who.condition} lacks {_list(sorted(map(str, which)))}"
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
    here = frame["condition"] == one.condition
    for column, value in (*one.setting, ("replicate", one.replicate)):
        if column in frame:
            here &= frame[column] == value
    index = frame.loc[here].groupby("problem_id", observed=True)["sample_index"].agg(set)
    every = set().union(*index)
    short = one.problem_ids[one.samples < one.k].tolist()
    words = [f"{name} (no {', '.join(map(str, sorted(every - index[name])))})" for name in short[:NAMED]]
    raise ComparisonError(
        f"{one.name}: samples are missing: expected {one.k} of each problem, got fewer of "
        f"{_list(words, len(short))}. Continue the run by the command that began it."
    )


def _list(names: Sequence[str], count: int | None = None) -> str:
    count = len(names) if count is None else count
    more = f" and {count - NAMED} more" if count > NAMED else ""
    return ", ".join(names[:NAMED]) + more
