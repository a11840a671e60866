"""Outcomes of a problem from one condition to another, and the criterion by which problems are chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

from pydantic import ConfigDict

from harness.constants import DEFAULT_SEED, Choice, Flip, Repeats
from harness.errors import ConfigError
from harness.runs.prompt_source import BASELINE
from harness.runs.run_prompts import Problem, RunPrompt

FLIPS: tuple[Flip, ...] = get_args(Flip)
CHANGES: tuple[Flip, ...] = ("wrong_to_right", "right_to_wrong")
CHANGED = "changed"
UNDECIDED = "undecided"
"""The outcome of a problem that lacks a verdict in one of the two conditions, as it was not asked there."""


STRICT = ConfigDict(extra="forbid")
"""Refuses saved selections with unknown keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """Which problems to select.

    Attributes:
        flip: The outcome from `baseline` to `condition`: one of `FLIPS`, `changed` for either direction, None for any.
        baseline, condition: The two conditions.
        repeats: By what of its samples a problem changes. `share`: more of them are right than before, or fewer;
            `first`, `majority`, `any`: its first sample, more than half of the graded ones, or any of them is right.
        subject, level, ids: Select only from these; None for all.
        n: Draw this many at random, with `seed`; None for all.
        controls: Add a problem that did not flip for each flipped one: see `selection.match_controls`.

    Raises:
        ConfigError: a condition compared with itself, n below 1, or controls without a flip.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    flip: Choice | None = None
    baseline: str = BASELINE
    condition: str = "mless"
    repeats: Repeats = "share"
    subject: str | None = None
    level: int | None = None
    ids: tuple[str, ...] | None = None
    n: int | None = None
    seed: int = DEFAULT_SEED
    controls: bool = False

    def __post_init__(self) -> None:
        if self.flip is not None and self.baseline == self.condition:
            raise ConfigError(f"A flip compares two conditions, got {self.baseline!r} twice. Name another condition.")
        if self.n is not None and self.n < 1:
            raise ConfigError(f"Expected n from 1 up, got {self.n}. Leave it out for all that match.")
        if self.controls and self.flip not in (*CHANGES, CHANGED):
            raise ConfigError(
                "Controls are problems that did not flip beside ones that did: expected the flip wrong_to_right, "
                f"right_to_wrong or changed, got {self.flip or 'none'}. Choose one of these, or leave the controls out."
            )

    def wants(self, outcome: str | None) -> bool:
        """Whether problems of this outcome are selected."""
        return self.flip in (None, outcome) or (self.flip == CHANGED and outcome in CHANGES)

    def outcome(self, problem: Problem) -> str:
        """One of `FLIPS`, or `UNDECIDED`."""
        before, after = (self._right(problem.prompts.get(name)) for name in (self.baseline, self.condition))
        if before is None or after is None:
            return UNDECIDED
        if before == after:
            return "both_right" if before > 0.5 else "both_wrong"
        return "right_to_wrong" if before > after else "wrong_to_right"

    def _right(self, prompt: RunPrompt | None) -> float | None:
        """How far a problem is right, 0 to 1; None without verdicts. What the grader could not settle is not right."""
        right = [verdict == "correct" for verdict in prompt.verdicts] if prompt is not None else []
        if not right:
            return None
        share = sum(right) / len(right)
        return {"share": share, "first": right[0], "majority": share > 0.5, "any": share > 0}[self.repeats]
