"""Unflipped problems to set beside flipped ones: what a selection on outcome must be compared with."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from harness.errors import ConfigError
from harness.runs.run_prompts import Problem


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
