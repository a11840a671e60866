"""Choose problems by flip, subject, level, ids or at random.

Problems chosen for their outcome cannot show what a filler does on average. Such a selection is
marked, and can have matched controls: problems that did not flip.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, get_args

from pydantic import Field, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, STUDIED, Choice, Flip
from harness.errors import ConfigError, list_near
from harness.runs.answered_prompts import AnsweredPrompt, Problem, Source
from harness.yaml_settings import Strict

FLIPS: tuple[Flip, ...] = get_args(Flip)
CHANGES: tuple[Flip, ...] = ("wrong_to_right", "right_to_wrong")
CHANGED = "changed"
UNDECIDED = "undecided"
"""The outcome of a problem that lacks a verdict in one of the two conditions, as it was not asked
there."""


class Criterion(Strict):
    """Which problems to select.

    Raises:
        ConfigError: a condition compared with itself, or controls without a flip.
    """

    flip: Choice | None = None
    """Only problems with this outcome between `baseline` and `condition`; `changed` for either
    direction."""
    baseline: str = BASELINE
    """The condition to flip from."""
    condition: str = STUDIED
    """The condition to flip to: of several samples of a problem more are right than before, or
    fewer."""
    subject: str | None = None
    """Only this subject."""
    level: int | None = None
    """Only this level."""
    ids: tuple[str, ...] = ()
    """Only these problems."""
    n: int | None = Field(default=None, ge=1)
    """Draw so many of them."""
    seed: int = DEFAULT_SEED
    """Draws them."""
    controls: bool = False
    """Whether matched problems that did not flip are added."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.flip is not None and self.baseline == self.condition:
            raise ConfigError(f"A flip compares two conditions, got {self.baseline!r} twice.")
        if self.controls and self.flip not in (*CHANGES, CHANGED):
            raise ConfigError(
                f"Controls are matched to problems that flipped, got the flip {self.flip}."
            )
        return self

    @property
    def on_outcome(self) -> bool:
        """Whether problems are selected by how they were answered."""
        return self.flip is not None

    def wants(self, outcome: str | None) -> bool:
        """Whether problems of this outcome are selected."""
        return self.flip in (None, outcome) or (self.flip == CHANGED and outcome in CHANGES)

    def outcome(self, problem: Problem) -> str:
        """One of `FLIPS`, or `UNDECIDED`."""
        before, after = (
            _share_right(problem.prompts.get(name)) for name in (self.baseline, self.condition)
        )
        if before is None or after is None:
            return UNDECIDED
        if before == after:
            return "both_right" if before > 0.5 else "both_wrong"
        return "right_to_wrong" if before > after else "wrong_to_right"


def _share_right(prompt: AnsweredPrompt | None) -> float | None:
    """The share of a problem's samples that is right; None without verdicts. An unsettled verdict is not right."""
    if prompt is None or not prompt.verdicts:
        return None
    return sum(verdict == "correct" for verdict in prompt.verdicts) / len(prompt.verdicts)


def select(source: Source, criterion: Criterion) -> tuple[Problem, ...]:
    """Choose problems of a source by a criterion: in the source's order, then the controls, each with its outcome.

    Raises:
        ConfigError: the source lacks something that the criterion names, or fewer problems match
            than were asked for.
    """
    require_verdicts(source, criterion)
    outcomes = _outcomes(source, criterion)
    matching = [
        problem
        for problem in _candidates(source, criterion)
        if criterion.wants(outcomes.get(problem.id))
    ]
    if len(matching) < (criterion.n or 1):
        kind = (criterion.flip or "in the selection").replace("_", " ")
        message = (
            f"expected {criterion.n} problems {kind}, got {len(matching)}"
            if matching
            else f"no problem {kind}"
        )
        counts = [
            f"{name.replace('_', ' ')} {n}" for name, n in count_outcomes(source, criterion).items()
        ]
        raise ConfigError(f"{source.name}: {message}: {', '.join(counts) or 'nothing was graded'}.")
    draw = random.Random(criterion.seed)
    if criterion.n is not None:
        drawn = {problem.id for problem in draw.sample(matching, criterion.n)}
        matching = [problem for problem in matching if problem.id in drawn]
    controls = []
    if criterion.controls:
        unflipped = [p for p in source.problems if outcomes[p.id] in ("both_right", "both_wrong")]
        controls = [
            replace(control, matched_to=flipped.id)
            for control, flipped in match_controls(matching, unflipped, outcomes, draw)
        ]
    return tuple(
        replace(problem, outcome=outcomes.get(problem.id)) for problem in (*matching, *controls)
    )


def count_outcomes(source: Source, criterion: Criterion) -> dict[str, int]:
    """How many problems of the criterion's subject, level and ids have each outcome; empty if nothing was graded."""
    outcomes = _outcomes(source, criterion)
    counts = Counter(outcomes[problem.id] for problem in _candidates(source, criterion) if outcomes)
    return {name: counts[name] for name in (*FLIPS, UNDECIDED)} if outcomes else {}


def _outcomes(source: Source, criterion: Criterion) -> dict[str, str]:
    """The outcome of every problem; empty if nothing was graded."""
    if source.metric is None or not {criterion.baseline, criterion.condition} <= set(
        source.conditions
    ):
        return {}
    return {problem.id: criterion.outcome(problem) for problem in source.problems}


def _candidates(source: Source, criterion: Criterion) -> list[Problem]:
    """The problems of the criterion's subject, level and ids.

    Raises:
        ConfigError: the source has no problem with one of these.
    """
    required: dict[str, tuple[Any, ...]] = {
        "subject": () if criterion.subject is None else (criterion.subject,),
        "level": () if criterion.level is None else (criterion.level,),
        "id": criterion.ids,
    }
    for name, values in required.items():
        known = {getattr(problem, name) for problem in source.problems}
        if unknown := [value for value in values if value not in known]:
            near = list_near(str(unknown[0]), sorted(map(str, known)))
            raise ConfigError(
                f"{source.name} has no problem of the {name} {unknown[0]!r}: expected one of {near}."
            )
    return [
        problem
        for problem in source.problems
        if all(not values or getattr(problem, name) in values for name, values in required.items())
    ]


def require_verdicts(source: Source, criterion: Criterion) -> None:
    """Refuse a source that lacks a condition which was named, or in which the flips that are wanted cannot be found.

    Raises:
        ConfigError: it lacks one of the two conditions, or has no verdicts.
    """
    for name, default in ((criterion.baseline, BASELINE), (criterion.condition, STUDIED)):
        if name not in source.conditions and (criterion.flip or name != default):
            near = list_near(name, source.conditions)
            raise ConfigError(f"{source.name} has no condition {name!r}: expected one of {near}.")
    if criterion.flip and source.metric is None:
        raise ConfigError(f"{source.name} holds no verdicts, so {criterion.flip} cannot be told.")


def match_controls(
    flipped: Sequence[Problem],
    unflipped: Sequence[Problem],
    outcomes: Mapping[str, str],
    draw: random.Random,
) -> list[tuple[Problem, Problem]]:
    """Match each flipped problem with a control, an unflipped problem of the same subject. No control is used twice.

    A problem of the same cluster, such as itself after other examples, is the last choice. Controls
    with the same verdict without filler are preferred, then those of the nearest level. `draw`
    decides between equally near ones. Returns pairs of control and flipped problem.

    Raises:
        ConfigError: a subject has too few problems that did not flip.
    """
    left = draw.sample(unflipped, len(unflipped))  # `min` takes the first of equals
    pairs = []
    for problem in flipped:
        stayed = "both_wrong" if outcomes[problem.id] == "wrong_to_right" else "both_right"
        alike = [one for one in left if one.subject == problem.subject]
        if not alike:
            raise ConfigError(
                f"Subject {problem.subject!r} has too few problems that did not flip to be controls."
            )
        nearest = min(
            alike,
            key=lambda one: (
                one.cluster == problem.cluster,
                outcomes[one.id] != stayed,
                abs(one.level - problem.level),
            ),
        )
        left.remove(nearest)
        pairs.append((nearest, problem))
    return pairs
