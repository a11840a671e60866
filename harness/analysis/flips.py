"""What became of a problem from one condition to another, and unflipped problems to set beside flipped ones."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from harness.errors import ConfigError
from harness.runs.run_prompts import Problem, RunPrompt

Flip = Literal["wrong_to_right", "right_to_wrong", "both_right", "both_wrong"]
Repeats = Literal["first", "majority", "any"]
FLIPS: tuple[Flip, ...] = get_args(Flip)
CHANGES: tuple[Flip, ...] = ("wrong_to_right", "right_to_wrong")
CHANGED = "changed"
Choice = Literal[Flip, "changed"]
"""What can be chosen: an outcome, or a change in either direction."""
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


def match_controls(
    flipped: Sequence[Problem], unflipped: Sequence[Problem], outcomes: Mapping[str, str], draw: random.Random
) -> list[tuple[Problem, Problem]]:
    """Pairs of a control and the flipped problem that it stands beside; no control twice.

    A control has its problem's subject. Of those left it is one that began as its problem did, right or wrong without
    filler, if there is one, and of these the one of the nearest level; `draw` decides between equally near.

    Raises:
        ConfigError: a subject has too few problems that did not flip.
    """
    pools: dict[str, list[Problem]] = {}
    for problem in draw.sample(unflipped, len(unflipped)):  # `min` takes the first of equals
        pools.setdefault(problem.subject, []).append(problem)
    pairs = []
    for problem in flipped:
        pool = pools.get(problem.subject, [])
        if not pool:
            wanted = sum(other.subject == problem.subject for other in flipped)
            there = sum(other.subject == problem.subject for other in unflipped)
            raise ConfigError(
                f"Subject {problem.subject!r}: {wanted} flipped problems need as many controls that did not flip, and "
                f"there are {there}. Lower n, choose another subject, or leave the controls out."
            )
        stayed = "both_wrong" if outcomes[problem.id] == "wrong_to_right" else "both_right"
        nearest = min(pool, key=lambda p: (outcomes[p.id] != stayed, abs(p.level - problem.level)))
        pool.remove(nearest)
        pairs.append((nearest, problem))
    return pairs


def _is_right(prompt: RunPrompt | None, repeats: Repeats) -> bool | None:
    """None where there is no verdict. What the grader could not settle is not right, as in the tables."""
    verdicts = prompt.verdicts if prompt is not None else ()
    right = [verdict == "correct" for verdict in (verdicts[:1] if repeats == "first" else verdicts)]
    if not right:
        return None
    return any(right) if repeats == "any" else 2 * sum(right) > len(right)
