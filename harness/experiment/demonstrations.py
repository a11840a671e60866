"""Worked examples before the question: which problems they are, and in how many draws.

All problems share a draw, and each is asked once with each. Draws have no example in common, so that their effects are
as independent as one set of problems allows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError
from harness.experiment.problems import DatasetConfig, Problem, open_dataset
from harness.yaml_settings import Strict


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The examples that all prompts of a draw show.

    Attributes:
        number: From 1; 0 if it is the only draw.
        examples: In order.
        frame: What stands before an example's problem, between problem and answer, and behind the answer.
    """

    number: int
    examples: tuple[Problem, ...]
    frame: tuple[str, str, str]


def _check_format(text: str) -> str:
    if (text.count("{problem}"), text.count("{answer}")) != (1, 1) or text.index("{answer}") < text.index("{problem}"):
        raise ValueError("expected {problem} before {answer}, each once")
    return text


class Demonstrations(Strict):
    """Examples with their answers that stand before the question."""

    count: int = Field(default=8, ge=1)
    """How many examples a prompt shows. Those of a file are all shown."""
    draws: int = Field(default=1, ge=1)
    """How many sets of examples are drawn. Each problem is asked with each."""
    seed: int = DEFAULT_SEED
    """Draws them from the problems. Those drawn are never asked."""
    path: Path | None = None
    """A JSONL file of examples, in place of drawn ones."""
    format: Annotated[str, AfterValidator(_check_format)] = "Q: {problem}\nA: {answer}"
    """How an example and the question are written. In the layout `chat` they are turns."""

    @property
    def frame(self) -> tuple[str, str, str]:
        """The format's text before the problem, between problem and answer, and behind the answer."""
        before, _, rest = self.format.partition("{problem}")
        between, _, behind = rest.partition("{answer}")
        return before, between, behind

    def split(self, problems: Sequence[Problem]) -> tuple[Sequence[Problem], list[Draw]]:
        """The problems that are asked, and the draws of examples.

        Whole clusters are set aside, and one problem of each is shown: no draw shows the same fact twice, or another's.

        Raises:
            ConfigError: there are too few problems.
            DataError: the file of examples cannot be read, or an example has no answer.
        """
        if self.path is not None:
            fixed = open_dataset(DatasetConfig(path=self.path, id=None)).problems
            shown = {one.problem for one in fixed}
            whole = Draw(number=0, examples=fixed, frame=self.frame)
            return [one for one in problems if one.problem not in shown], [whole]
        clusters: dict[str, list[Problem]] = {}
        for one in problems:
            clusters.setdefault(one.counts_with, []).append(one)
        order, needed = list(clusters), self.count * self.draws
        if needed >= len(order):
            told = f"{self.draws} x {self.count} examples and one problem to ask, got {len(problems)} problems"
            raise ConfigError(f"demonstrations: expected {told} in {len(clusters)} clusters.")
        draw = random.Random(self.seed)
        draw.shuffle(order)
        aside = [draw.choice(clusters[order.pop()]) for _ in range(needed)]
        dealt = [tuple(aside[place :: self.draws]) for place in range(self.draws)]
        one_draw = self.draws == 1
        drawn = [Draw(number=0 if one_draw else n, examples=one, frame=self.frame) for n, one in enumerate(dealt, 1)]
        return [one for one in problems if one.counts_with in order], drawn
