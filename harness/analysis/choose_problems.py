"""Choose problems by flip, subject, level, ids or at random, with the hash of every prompt.

Problems chosen for their outcome cannot show what a filler does on average. Such a selection is marked, and can have
matched controls: problems that did not flip.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, get_args

from pydantic import Field, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, STUDIED, Choice, Flip
from harness.errors import ConfigError, PromptMismatchError, list_first
from harness.runs.prompts_of_run import Problem, RunPrompt, Source
from harness.yaml_settings import Strict

FLIPS: tuple[Flip, ...] = get_args(Flip)
CHANGES: tuple[Flip, ...] = ("wrong_to_right", "right_to_wrong")
CHANGED = "changed"
UNDECIDED = "undecided"
"""The outcome of a problem that lacks a verdict in one of the two conditions, as it was not asked there."""


class Criterion(Strict):
    """Which problems to select.

    Raises:
        ConfigError: a condition compared with itself, or controls without a flip.
    """

    flip: Choice | None = None
    """Only problems with this outcome between `baseline` and `condition`; `changed` for either direction."""
    baseline: str = BASELINE
    """The condition to flip from."""
    condition: str = STUDIED
    """The condition to flip to: of several samples of a problem more are right than before, or fewer."""
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
            raise ConfigError(f"Controls are matched to problems that flipped, got the flip {self.flip}.")
        return self

    def wants(self, outcome: str | None) -> bool:
        """Whether problems of this outcome are selected."""
        return self.flip in (None, outcome) or (self.flip == CHANGED and outcome in CHANGES)

    def outcome(self, problem: Problem) -> str:
        """One of `FLIPS`, or `UNDECIDED`."""
        before, after = (_share_right(problem.prompts.get(name)) for name in (self.baseline, self.condition))
        if before is None or after is None:
            return UNDECIDED
        if before == after:
            return "both_right" if before > 0.5 else "both_wrong"
        return "right_to_wrong" if before > after else "wrong_to_right"


def _share_right(prompt: RunPrompt | None) -> float | None:
    """The share of a problem's samples that is right; None without verdicts. An unsettled verdict is not right."""
    if prompt is None or not prompt.verdicts:
        return None
    return sum(verdict == "correct" for verdict in prompt.verdicts) / len(prompt.verdicts)


class SelectedProblem(Strict):
    """One chosen problem.

    Attributes:
        problem_id, subject, level: Of the problem.
        outcome: From the criterion's baseline to its condition; None if nothing was graded.
        matched_to: For a control, the flipped problem that it is matched to.
        prompts: SHA-256 of the prompt's text by condition.
    """

    problem_id: str
    subject: str
    level: int
    outcome: str | None
    matched_to: str | None = None
    prompts: dict[str, str]

    @property
    def control(self) -> bool:
        """Whether it is a control."""
        return self.matched_to is not None


class Selection(Strict):
    """Chosen problems, with all that is needed to check that later prompts are the same.

    Attributes:
        source, layout: The source's name and layout.
        criterion: How they were chosen.
        on_outcome: Whether they were chosen by how they were answered.
        outcomes: How many problems had each outcome before n was drawn; empty if nothing was graded.
        problems: The problems in the source's order, then the controls.
    """

    source: str
    layout: str
    criterion: Criterion
    on_outcome: bool
    outcomes: dict[str, int]
    problems: tuple[SelectedProblem, ...]


def select(source: Source, criterion: Criterion) -> Selection:
    """Choose problems of a source by a criterion.

    Raises:
        ConfigError: the source lacks something that the criterion names, or fewer problems match than were asked for.
    """
    wanted: dict[str, tuple[Any, ...]] = {
        "subject": () if criterion.subject is None else (criterion.subject,),
        "level": () if criterion.level is None else (criterion.level,),
        "id": criterion.ids,
    }
    for name, values in wanted.items():
        known = {getattr(problem, name) for problem in source.problems}
        if unknown := [value for value in values if value not in known]:
            there = list_first(sorted(map(str, known)), 8)
            raise ConfigError(f"{source.name} has no problem of the {name} {unknown[0]!r}: expected one of {there}.")
    require_verdicts(source, criterion)
    graded = source.metric is not None and {criterion.baseline, criterion.condition} <= set(source.conditions)
    outcomes = {problem.id: criterion.outcome(problem) for problem in source.problems} if graded else {}
    candidates = [
        problem
        for problem in source.problems
        if all(not values or getattr(problem, name) in values for name, values in wanted.items())
    ]
    matching = [problem for problem in candidates if criterion.wants(outcomes.get(problem.id))]
    counts = Counter(outcomes[problem.id] for problem in candidates if graded)
    counted = {name: counts[name] for name in (*FLIPS, UNDECIDED)} if graded else {}
    if len(matching) < (criterion.n or 1):
        what = (criterion.flip or "in the selection").replace("_", " ")
        said = f"expected {criterion.n} problems {what}, got {len(matching)}" if matching else f"no problem {what}"
        told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items())
        raise ConfigError(f"{source.name}: {said}: {told or 'nothing was graded'}.")
    draw = random.Random(criterion.seed)
    if criterion.n is not None:
        drawn = {problem.id for problem in draw.sample(matching, criterion.n)}
        matching = [problem for problem in matching if problem.id in drawn]
    rows: list[tuple[Problem, str | None]] = [(problem, None) for problem in matching]
    if criterion.controls:
        unflipped = [p for p in source.problems if outcomes[p.id] in ("both_right", "both_wrong")]
        rows += [(control, flipped.id) for control, flipped in match_controls(matching, unflipped, outcomes, draw)]
    return Selection(
        source=source.name,
        layout=source.layout,
        criterion=criterion,
        on_outcome=criterion.flip is not None,
        outcomes=counted,
        problems=tuple(
            SelectedProblem(
                problem_id=problem.id,
                subject=problem.subject,
                level=problem.level,
                outcome=outcomes.get(problem.id),
                matched_to=matched_to,
                prompts={condition: prompt.sha256 for condition, prompt in problem.prompts.items()},
            )
            for problem, matched_to in rows
        ),
    )


def selected_problems(selection: Selection, source: Source) -> tuple[Problem, ...]:
    """The chosen problems with their prompts, which are checked by hash.

    Raises:
        PromptMismatchError: a problem or a prompt is not in the source, or differs from the selected one.
    """
    known = {problem.id: problem for problem in source.problems}
    chosen = []
    for wanted in selection.problems:
        there = known[wanted.problem_id].prompts if wanted.problem_id in known else {}
        for condition, expected in wanted.prompts.items():
            got = there[condition].sha256[:12] if condition in there else "none"
            if expected[:12] != got:
                raise PromptMismatchError(
                    f"{source.name}, {source.layout}: problem {wanted.problem_id}, condition {condition!r} has another "
                    f"prompt than was selected from {selection.source}, {selection.layout}: expected SHA-256 "
                    f"{expected[:12]}, got {got}."
                )
        chosen.append(replace(known[wanted.problem_id], prompts={name: there[name] for name in wanted.prompts}))
    return tuple(chosen)


def require_verdicts(source: Source, criterion: Criterion) -> None:
    """Refuse a source that lacks a condition which was named, or in which the flips that are wanted cannot be found.

    Raises:
        ConfigError: it lacks one of the two conditions, or has no verdicts.
    """
    for name, default in ((criterion.baseline, BASELINE), (criterion.condition, STUDIED)):
        if name not in source.conditions and (criterion.flip or name != default):
            raise ConfigError(
                f"{source.name}: the condition {name!r} is not one of {list_first(source.conditions, 6)}."
            )
    if criterion.flip and source.metric is None:
        raise ConfigError(f"{source.name} holds no verdicts, so {criterion.flip} cannot be told.")


def match_controls(
    flipped: Sequence[Problem], unflipped: Sequence[Problem], outcomes: Mapping[str, str], draw: random.Random
) -> list[tuple[Problem, Problem]]:
    """Match each flipped problem with a control, an unflipped problem of the same subject. No control is used twice.

    The same problem after other examples is the last choice. Controls with the same verdict without filler are
    preferred, then those of the nearest level. `draw` decides between equally near ones. Returns pairs of control and
    flipped problem.

    Raises:
        ConfigError: a subject has too few problems that did not flip.
    """
    left = draw.sample(unflipped, len(unflipped))  # `min` takes the first of equals
    pairs = []
    for problem in flipped:
        stayed = "both_wrong" if outcomes[problem.id] == "wrong_to_right" else "both_right"
        alike = [one for one in left if one.subject == problem.subject]
        if not alike:
            raise ConfigError(f"Subject {problem.subject!r} has too few problems that did not flip to be controls.")
        asked = problem.id.partition("#")[0]
        nearest = min(
            alike,
            key=lambda one: (
                one.id.partition("#")[0] == asked,
                outcomes[one.id] != stayed,
                abs(one.level - problem.level),
            ),
        )
        left.remove(nearest)
        pairs.append((nearest, problem))
    return pairs
