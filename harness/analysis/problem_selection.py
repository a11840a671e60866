"""Select problems of a `Source` (a run, logs or a dataset) by flip, ids or at random.

A problem flips if it becomes right or wrong from one condition to another. Problems that are
selected by their outcome cannot show what a filler does on average. Such a selection is marked, and
can have matched controls: problems that did not flip.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Self, get_args

from pydantic import Field, model_validator

from harness.constants import BASELINE, DEFAULT_SEED, STUDY_CONDITION, Flip, FlipChoice
from harness.errors import ConfigError, list_near
from harness.runs.prompt_sources import AnsweredProblem, AnsweredPrompt, Source
from harness.yaml_settings import Strict

FLIP_OUTCOMES = get_args(Flip)
"""What a problem can do from one condition to another: flip in a direction, or stay as it is."""
FLIP_DIRECTIONS = ("wrong_to_right", "right_to_wrong")
EITHER_FLIP = "changed"
"""The value of `flip` for problems that flipped in either direction."""
UNDECIDED = "undecided"
"""The outcome of a problem that has no verdicts under one of the conditions."""


class Criterion(Strict):
    """Which problems to select.

    Raises:
        ConfigError: a condition compared with itself, or controls without a flip.
    """

    flip: FlipChoice | None = None
    """Only problems with this outcome from `baseline` to `condition`; `changed` is either flip."""
    baseline: str = BASELINE
    """The condition before a flip."""
    condition: str = STUDY_CONDITION
    """The condition after a flip. Of several samples, more or fewer are then correct."""
    ids: tuple[str, ...] = ()
    """Only these problems."""
    n: int | None = Field(default=None, ge=1)
    """Only this number of problems, drawn at random."""
    seed: int = DEFAULT_SEED
    """The seed of this draw."""
    controls: bool = False
    """Adds matched problems that did not flip."""

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.flip is not None and self.baseline == self.condition:
            raise ConfigError(f"A flip compares two conditions, got {self.baseline!r} twice.")
        if self.controls and self.flip not in (*FLIP_DIRECTIONS, EITHER_FLIP):
            raise ConfigError(
                f"Controls are matched to problems that flipped, got the flip {self.flip}."
            )
        return self

    def classify(self, problem: AnsweredProblem) -> str:
        """The outcome of a problem: one of `FLIP_OUTCOMES`, or `UNDECIDED`."""
        share_before = _measure_share_right(problem.prompts.get(self.baseline))
        share_after = _measure_share_right(problem.prompts.get(self.condition))
        if share_before is None or share_after is None:
            return UNDECIDED
        if share_before == share_after:
            return "both_right" if share_before > 0.5 else "both_wrong"
        return "right_to_wrong" if share_before > share_after else "wrong_to_right"


def _measure_share_right(prompt: AnsweredPrompt | None) -> float | None:
    """The share of a problem's samples with the verdict `correct`; None without verdicts."""
    if prompt is None or not prompt.verdicts:
        return None
    return prompt.verdicts.count("correct") / len(prompt.verdicts)


def select(source: Source, criterion: Criterion) -> tuple[AnsweredProblem, ...]:
    """The problems of a source that meet a criterion, in the source's order, then the controls.

    Ids and a flip leave out problems, a number draws some of the rest, and controls add others.
    Each problem has its `outcome`.

    Raises:
        ConfigError: the source lacks what the criterion names, or too few problems match.
    """
    _require_verdicts(source, criterion)
    problems = _list_matches(source, criterion)
    # the sample is drawn before the controls, so that it is the same with and without them
    generator = random.Random(criterion.seed)
    if criterion.n:
        # sorted, because tables keep the order of the source
        indices = sorted(generator.sample(range(len(problems)), criterion.n))
        problems = [problems[index] for index in indices]
    if criterion.controls:
        # from all problems, because among those with the ids there may be too few controls
        unflipped_problems = [
            problem
            for problem in _classify_problems(source, criterion)
            if problem.outcome in ("both_right", "both_wrong")
        ]
        problems += match_controls(problems, unflipped_problems, generator)
    return tuple(problems)


def _list_matches(source: Source, criterion: Criterion) -> list[AnsweredProblem]:
    """The candidates whose outcome is the criterion's flip; all without a flip.

    Raises:
        ConfigError: there are fewer than the criterion's number, or none.
    """
    problems = _list_candidates(source, criterion)
    if criterion.flip:
        chosen_outcomes = FLIP_DIRECTIONS if criterion.flip == EITHER_FLIP else (criterion.flip,)
        problems = [problem for problem in problems if problem.outcome in chosen_outcomes]
    least_problem_count = criterion.n or 1
    if len(problems) < least_problem_count:
        counts_text = "".join(
            f", {outcome.replace('_', ' ')} {count}"
            for outcome, count in count_flips(source, criterion).items()
        )
        raise ConfigError(
            f"{source.name}: the selection has {len(problems)} problems, fewer than "
            f"{least_problem_count}{counts_text}."
        )
    return problems


def count_flips(source: Source, criterion: Criterion) -> dict[str, int]:
    """The number of problems of each outcome among those with the criterion's ids.

    Empty if nothing was graded.
    """
    counts = Counter(problem.outcome for problem in _list_candidates(source, criterion))
    # problems have no outcome if nothing was graded
    if None in counts:
        return {}
    return {outcome: counts[outcome] for outcome in (*FLIP_OUTCOMES, UNDECIDED)}


def _classify_problems(source: Source, criterion: Criterion) -> list[AnsweredProblem]:
    """The problems with their outcome, if anything was graded."""
    has_both_conditions = {criterion.baseline, criterion.condition} <= set(source.conditions)
    if source.metric is None or not has_both_conditions:
        return list(source.problems)
    return [replace(problem, outcome=criterion.classify(problem)) for problem in source.problems]


def _list_candidates(source: Source, criterion: Criterion) -> list[AnsweredProblem]:
    """The classified problems with the criterion's ids, by default all.

    Raises:
        ConfigError: there is no problem with one of the ids.
    """
    problems = _classify_problems(source, criterion)
    for problem_id in criterion.ids:
        if not any(problem.has_id(problem_id) for problem in problems):
            raise ConfigError(
                f"{source.name} has no problem with the id {problem_id!r}: expected one of "
                f"{list_near(problem_id, [problem.id for problem in problems])}."
            )
    if not criterion.ids:
        return problems
    return [problem for problem in problems if any(map(problem.has_id, criterion.ids))]


def _require_verdicts(source: Source, criterion: Criterion) -> None:
    """Refuse a source without the conditions or the verdicts that the criterion needs.

    With a flip it needs both conditions and verdicts. Without a flip it needs only a condition that
    is not the default one, because a user has named it.

    Raises:
        ConfigError: the source lacks one of the two conditions, or has no verdicts.
    """
    for name, default_name in (
        (criterion.baseline, BASELINE),
        (criterion.condition, STUDY_CONDITION),
    ):
        if name not in source.conditions and (criterion.flip or name != default_name):
            raise ConfigError(
                f"{source.name} has no condition {name!r}: expected one of "
                f"{list_near(name, source.conditions)}."
            )
    if criterion.flip and source.metric is None:
        raise ConfigError(f"{source.name} holds no verdicts, so {criterion.flip} is unknown.")


def match_controls(
    flipped_problems: Sequence[AnsweredProblem],
    unflipped_problems: Sequence[AnsweredProblem],
    generator: random.Random,
) -> list[AnsweredProblem]:
    """Choose a control for each flipped problem: an unflipped problem of the same subject.

    No control is used twice. A problem of the same cluster, such as the same problem after other
    examples, is the last choice. Controls with the same verdict without filler are preferred, then
    those of the nearest level. `generator` decides between equally near controls.

    Raises:
        ConfigError: a subject has too few problems that did not flip.
    """
    # shuffled, because `min` takes the first of equally near controls
    unused_controls = generator.sample(unflipped_problems, len(unflipped_problems))
    controls = []
    for problem in flipped_problems:
        preferred_outcome = "both_wrong" if problem.outcome == "wrong_to_right" else "both_right"
        candidates = [control for control in unused_controls if control.subject == problem.subject]
        if not candidates:
            raise ConfigError(
                f"Subject {problem.subject!r} has too few problems that did not flip to be "
                "controls."
            )
        nearest_control = min(
            candidates,
            key=lambda control: (
                control.cluster == problem.cluster,
                control.outcome != preferred_outcome,
                abs(control.level - problem.level),
            ),
        )
        unused_controls.remove(nearest_control)
        controls.append(replace(nearest_control, is_control=True))
    return controls
