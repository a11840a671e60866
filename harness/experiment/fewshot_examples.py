"""Worked examples before the question: which problems they are, in how many draws, and what is asked with each draw.

Examples come from a pool of problems that are never asked. Each draw takes its own from the whole pool, so two draws
may share some: the draws are a random sample of all that the pool allows.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError
from harness.experiment.problems import DatasetConfig, Problem, open_dataset
from harness.yaml_settings import Strict

POOL_FACTOR = 5
"""The pool has so many times the examples of a prompt: with 8 examples, 40 problems. Two draws then share about a third
of theirs, and there are far more draws than any run asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The examples that all prompts of a draw show.

    Attributes:
        number: From 1; 0 if it is the only draw.
        examples: In order.
        clusters: The problems of these are asked with it; None: all are.
        frame: What stands before an example's problem, between problem and answer, and behind the answer.
    """

    number: int
    examples: tuple[Problem, ...]
    frame: tuple[str, str, str]
    clusters: frozenset[str] | None = None

    def select(self, problems: Iterable[Problem]) -> list[Problem]:
        """Those of the problems that are asked with this draw."""
        return [
            problem
            for problem in problems
            if self.clusters is None or problem.counts_with in self.clusters
        ]


def _check_format(text: str) -> str:
    if (text.count("{problem}"), text.count("{answer}")) != (1, 1) or text.index(
        "{answer}"
    ) < text.index("{problem}"):
        raise ValueError("expected {problem} before {answer}, each once")
    return text


class FewshotConfig(Strict):
    """Examples with their answers that stand before the question."""

    num_fewshot: int = Field(default=8, ge=1)
    """How many examples a prompt shows. Those of a file are all shown."""
    draws: int = Field(default=1, ge=1)
    """How many sets of examples are drawn. Each problem is asked with each, or with `repeats` of them."""
    pool: int | None = Field(default=None, ge=1)
    """Problems that examples are drawn from, never asked. By default 5 times `num_fewshot`; for one draw,
    `num_fewshot`."""
    seed: int = DEFAULT_SEED
    """Chooses the pool, and draws from it."""
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

    def split(
        self, problems: Sequence[Problem], *, draws_per_problem: int
    ) -> tuple[Sequence[Problem], list[Draw]]:
        """The problems that are asked, and the draws of examples.

        Whole clusters are set aside, so that no example gives an answer away, and a draw has at most one problem of
        each. The clusters that are asked are dealt to the draws in turn: each is asked with so many, and each draw
        asks about equally many.

        Raises:
            ConfigError: there are too few problems.
            DataError: the file of examples cannot be read, or an example has no answer.
        """
        if self.path is not None:
            examples = open_dataset(DatasetConfig(path=self.path, id=None)).problems
            texts = {example.problem for example in examples}
            draw = Draw(number=0, examples=examples, frame=self.frame)
            return [problem for problem in problems if problem.problem not in texts], [draw]
        clusters: dict[str, list[Problem]] = {}
        for problem in problems:
            clusters.setdefault(problem.counts_with, []).append(problem)
        rng = random.Random(self.seed)
        order = rng.sample(list(clusters), len(clusters))
        size = self.pool or (
            self.num_fewshot if self.draws == 1 else POOL_FACTOR * self.num_fewshot
        )
        pool: list[list[Problem]] = []
        while order and (len(pool) < self.num_fewshot or sum(map(len, pool)) < size):
            pool.append(clusters.pop(order.pop()))
        if not clusters:
            raise ConfigError(
                f"fewshot: expected {self.num_fewshot} examples of different clusters, {size} problems in their pool "
                f"and one to ask, got {len(problems)} problems in {len(pool)} clusters."
            )
        dealt = [frozenset(list(clusters)[number :: self.draws]) for number in range(self.draws)]
        draws = []
        for number in range(self.draws):
            examples = tuple(rng.choice(cluster) for cluster in rng.sample(pool, self.num_fewshot))
            neighbours = [dealt[number - step] for step in range(draws_per_problem)]
            draws.append(
                Draw(
                    number=0 if self.draws == 1 else number + 1,
                    examples=examples,
                    frame=self.frame,
                    clusters=frozenset().union(*neighbours),
                )
            )
        return [problem for problem in problems if problem.counts_with in clusters], draws
