"""What became of a problem from one condition to another."""

from __future__ import annotations

from typing import get_args

from harness.choices import Flip, Repeats
from harness.runs.run_prompts import Problem, RunPrompt

FLIPS: tuple[Flip, ...] = get_args(Flip)
CHANGES: tuple[Flip, ...] = ("wrong_to_right", "right_to_wrong")
CHANGED = "changed"
UNDECIDED = "undecided"
"""The outcome of a problem without a verdict in one of the two conditions: it was not asked there."""


def outcome(problem: Problem, *, baseline: str, condition: str, repeats: Repeats) -> str:
    """One of `FLIPS`, or `UNDECIDED`; see `selection.Criterion` for `repeats`."""
    before, after = (_is_right(problem.prompts.get(name), repeats) for name in (baseline, condition))
    if before is None or after is None:
        return UNDECIDED
    if before == after:
        return "both_right" if before else "both_wrong"
    return "right_to_wrong" if before else "wrong_to_right"


def _is_right(prompt: RunPrompt | None, repeats: Repeats) -> bool | None:
    """None where there is no verdict. What the grader could not settle is not right, as in the tables."""
    verdicts = prompt.verdicts if prompt is not None else ()
    right = [verdict == "correct" for verdict in (verdicts[:1] if repeats == "first" else verdicts)]
    if not right:
        return None
    return any(right) if repeats == "any" else 2 * sum(right) > len(right)
