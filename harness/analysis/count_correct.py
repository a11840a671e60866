"""Right samples of each problem under each condition, counted; accuracy of one condition alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas

from harness.analysis.paired_tests import Integers, by_cluster, cluster_terms, score_interval
from harness.errors import ComparisonError, list_first
from harness.grading import GRADED

Setting = tuple[tuple[str, Any], ...]
"""Names and values of the columns that a table is split by, beginning with model and layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """Counts of one condition in one replicate, by problem.

    Attributes:
        setting: Where.
        condition: The condition.
        replicate: Number of the repetition of the condition, from 0.
        problem_ids: [problem] In an order that all outcomes of a frame share.
        clusters: [problem] The number of its cluster, from 0. Most problems are clusters by themselves.
        draws: [prompt] Under each instruction and with each draw of examples, the number of the draw.
        right_by_prompt: [prompt, problem] Right samples.
        graded_by_prompt: [prompt, problem] Samples with a graded answer, right or wrong; all where the frame has no
            verdicts.
        samples_by_prompt: [prompt, problem] Samples.
    """

    setting: Setting
    condition: str
    replicate: int
    problem_ids: npt.NDArray[Any]
    clusters: Integers
    draws: Integers
    right_by_prompt: Integers
    graded_by_prompt: Integers
    samples_by_prompt: Integers

    @property
    def right(self) -> Integers:
        """[problem] Right samples."""
        return np.asarray(self.right_by_prompt.sum(axis=0))

    @property
    def graded(self) -> Integers:
        """[problem] Samples with a graded answer."""
        return np.asarray(self.graded_by_prompt.sum(axis=0))

    @property
    def samples(self) -> Integers:
        """[problem] Samples."""
        return np.asarray(self.samples_by_prompt.sum(axis=0))

    def by_draw(self, table: Integers) -> Integers:
        """A table [prompt, problem] as sums [draw, problem]."""
        return np.array([table[self.draws == draw].sum(axis=0) for draw in np.unique(self.draws)])

    @property
    def k(self) -> int:
        """Samples per problem; the most of any problem, if some are missing."""
        return int(self.samples.max())

    @property
    def name(self) -> str:
        """Setting, condition and replicate, for messages."""
        words = [
            f"{column} {value}" for column, value in (*self.setting, ("condition", self.condition))
        ]
        return ", ".join([*words, f"replicate {self.replicate}"] if self.replicate else words)


def count_outcomes(frame: pandas.DataFrame, *, by: Sequence[str] = ()) -> list[Outcomes]:
    """Count the outcomes of every model, layout, condition and replicate, in the frame's order.

    Args:
        frame: One row per sample, as `harness.load_run` gives it: model, layout, condition, problem_id, sample_index
            and correct; replicate is 0 where there is no such column, and a problem its own cluster.
        by: Further columns to split by, such as subject or level.

    Raises:
        ComparisonError: a sample occurs twice or has no verdict.
    """
    if "replicate" not in frame:
        frame = frame.assign(replicate=0)
    split = ["model", "layout", *by]
    keys = [*split, "condition", "replicate"]
    place = [*keys, "problem_id", "sample_index"]
    for wrong, what in (
        (frame["correct"].isna(), "has no verdict; grade the run again with `mless regrade`"),
        (
            frame.duplicated(place),
            "occurs more than once; models of different runs need different labels",
        ),
    ):
        if wrong.any():
            first = frame.loc[wrong.to_numpy(), place].iloc[0]
            raise ComparisonError(
                f"{', '.join(f'{name} {value}' for name, value in first.items())}: {what}."
            )
    numbers, names = pandas.factorize(frame["problem_id"])
    clusters = frame.get("cluster", frame["problem_id"]).to_numpy()[
        np.unique(numbers, return_index=True)[1]
    ]
    counts = {
        "correct": frame["correct"].to_numpy(dtype=np.int64),
        "graded": frame["verdict"].isin(GRADED).to_numpy(dtype=np.int64)
        if "verdict" in frame
        else 1,
        "samples": 1,
    }
    prompt = {name: frame.get(name, 0) for name in ("instruction", "draw")}
    frame = frame[keys].assign(problem=numbers, **prompt, **counts)
    problems = frame.groupby([*keys, "problem", *prompt], observed=True, sort=False, dropna=False)[
        [*counts]
    ]
    counted = []
    arms: Any = problems.sum().groupby(level=keys, observed=True, sort=False, dropna=False)
    for key, unordered in arms:
        *setting, condition, replicate = key
        part = unordered.droplevel(keys).unstack([*prompt], fill_value=0).sort_index()
        part = part.sort_index(axis="columns")
        places = part.index
        counted.append(
            Outcomes(
                setting=tuple(zip(split, setting, strict=True)),
                condition=str(condition),
                replicate=int(replicate),
                problem_ids=np.asarray(names[places]),
                clusters=pandas.factorize(clusters[places])[0],
                draws=part["samples"].columns.get_level_values("draw").to_numpy(),
                right_by_prompt=part["correct"].to_numpy().T,
                graded_by_prompt=part["graded"].to_numpy().T,
                samples_by_prompt=part["samples"].to_numpy().T,
            )
        )
    return counted


def by_setting(counted: Iterable[Outcomes]) -> dict[Setting, dict[str, list[Outcomes]]]:
    """The outcomes of each setting by condition, its replicates in order."""
    found: dict[Setting, dict[str, list[Outcomes]]] = {}
    for one in sorted(counted, key=lambda one: one.replicate):
        found.setdefault(one.setting, {}).setdefault(one.condition, []).append(one)
    return found


def refuse_unpaired(baseline: Outcomes, other: Outcomes) -> None:
    """Refuse two conditions with different problems, different numbers of samples or other draws of examples.

    Raises:
        ComparisonError: one lacks problems or samples, which the message names, or was asked with other draws.
    """
    for one in (baseline, other):
        if (lacking := one.samples < one.k).any():
            named = list_first([str(name) for name in one.problem_ids[lacking]])
            raise ComparisonError(
                f"{one.name}: samples are missing: expected {one.k} of each problem, not of {named}."
            )
    ours, theirs = set(baseline.problem_ids.tolist()), set(other.problem_ids.tolist())
    if only_one := list_first(sorted(map(str, ours ^ theirs))):
        raise ComparisonError(
            f"{other.name}: its problems are not those of the baseline {baseline.condition}: {len(theirs)} against "
            f"{len(ours)}; only one has {only_one}."
        )
    if baseline.k != other.k:
        expected = f"{baseline.k} samples a problem as the baseline {baseline.condition} has"
        raise ComparisonError(f"{other.name}: expected {expected}, got {other.k}.")
    if not np.array_equal(baseline.samples_by_prompt, other.samples_by_prompt):
        raise ComparisonError(
            f"{other.name}: its draws of examples are not those of the baseline {baseline.condition}."
        )


def clustered_error(scores: npt.ArrayLike) -> float:
    """Standard error of the mean of `scores` [problem], where a score is the mean of a problem's samples.

    Averaging a problem's samples first means that asking a problem again does not count as asking another one. NaN for
    a single problem.

    Source:
        Miller (2024), Adding Error Bars to Evals, arXiv:2411.00640, sections 2.2 and 3.1; the cluster-robust variance
        with equal cluster sizes: Liang and Zeger (1986), doi:10.1093/biomet/73.1.13.
    """
    values = np.asarray(scores, dtype=float)
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def measure_accuracy(one: Outcomes) -> dict[str, Any]:
    """The comparison's columns that one condition has by itself."""
    scores = one.right / one.samples
    means, weights = by_cluster(scores, one.clusters)
    low, high = score_interval(means, weights=weights)
    return {
        "problems": len(scores),
        "repeats": one.k,
        "accuracy": 100 * float(scores.mean()),
        "standard_error": 100 * clustered_error(cluster_terms(scores, one.clusters)),
        "accuracy_low": 100 * low,
        "accuracy_high": 100 * high,
        "graded": 100 * float(one.graded.sum() / one.samples.sum()),
    }


def accuracy_table(frame: pandas.DataFrame) -> pandas.DataFrame:
    """Accuracy in percent with its error and interval, by model, layout and condition.

    The columns problems to accuracy_high are those of `analysis.compare`. Use it for runs without the baseline, which
    `compare` refuses. Whether two conditions differ is a paired question that this table does not answer. Replicates of
    the baseline are left out.
    """
    counted = count_outcomes(frame[frame["replicate"] == 0])
    return pandas.DataFrame(
        [
            {**dict(one.setting), "condition": one.condition, **measure_accuracy(one)}
            for one in counted
        ]
    )
