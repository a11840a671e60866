"""Examples before the question: which problems they are, and the problems of each draw.

A user's own examples are in all prompts. Others come from a pool of problems that are not
questions of the run. A draw is one choice of examples from the pool, in their order. A cluster is a
group of problems that are never split, such as copies of a problem. Each draw is taken from the
entire pool, so two draws may share examples: the draws are a random sample of all possible draws.
"""

import random
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from msgspec import Struct
from pydantic import Discriminator, Field, Tag, model_validator

from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError, DataError, list_near
from harness.experiment.problems import Dataset, Problem, RequiredText
from harness.yaml_settings import Strict

POOL_FACTOR = 5
"""Size of the pool, as a multiple of the examples in a prompt: 40 problems for 8 examples. Two
draws then share about a fifth of their examples, and there are far more draws than a run uses."""


class ExampleSet(NamedTuple):
    """The examples in all prompts of a draw.

    Attributes:
        examples: The examples in order.
        draw: The number of the draw, from 1; 0 if it is the only draw.
        cluster_keys: The keys of the clusters whose problems have this draw. None: all clusters.
    """

    examples: tuple[Problem, ...]
    draw: int = 0
    cluster_keys: frozenset[str] | None = None

    def select_problems(self, problems: Iterable[Problem]) -> list[Problem]:
        """Select the problems that have this draw."""
        return [
            problem
            for problem in problems
            if self.cluster_keys is None or problem.cluster_key in self.cluster_keys
        ]


class ExampleIds(
    Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"example_sets": "draws"}
):
    """The ids of a run's examples, which stay when its file of problems grows.

    Attributes:
        pool: Problems that are not asked, because examples are taken from them.
        example_sets: The examples of each draw, in order.
        sha256: The hash of examples that are not problems of the run, and so have no ids here.
    """

    pool: tuple[str, ...] = ()
    example_sets: tuple[tuple[str, ...], ...] = ()
    sha256: str | None = None


class ProblemSplit(NamedTuple):
    """The problems of a dataset, split into questions and examples.

    Attributes:
        questions: The problems that are asked.
        example_sets: The examples of each draw.
        example_ids: The ids of the examples, which a run stores; None without `fewshot`.
    """

    questions: Sequence[Problem]
    example_sets: Sequence[ExampleSet]
    example_ids: ExampleIds | None


class FewshotConfig(Strict):
    """Examples before the question, which a run draws at random from its problems."""

    num_fewshot: int = Field(default=8, ge=0)
    """The number of examples in a prompt; 0 only with `instructions`."""
    draws: int = Field(default=1, ge=1)
    """The number of draws. Each problem is asked with all draws, or with `repeats` of them if this
    is less. By default 1, or one for each of `instructions`."""
    instructions: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The instruction of each draw, instead of the run's: effects then hold for new instructions
    and examples."""
    pool: int | None = Field(default=None, ge=1)
    """The number of problems from which draws are taken. By default 5 times `num_fewshot`; for one
    draw, `num_fewshot`."""
    seed: int = DEFAULT_SEED
    """The seed of pool and draws."""

    @property
    def has_examples(self) -> bool:
        """Whether the prompts have examples."""
        return self.num_fewshot > 0

    @model_validator(mode="after")
    def _check_examples(self) -> Self:
        if not (self.has_examples or self.instructions):
            raise ValueError("num_fewshot: expected 1 or more, or `instructions`, got 0")
        if len({*self.instructions}) < len(self.instructions):
            raise ValueError("instructions: expected different texts")
        if self.pool is not None:
            if not self.has_examples:
                raise ValueError("pool: num_fewshot is 0, so no examples are drawn")
            if self.pool < self.num_fewshot:
                raise ValueError(
                    f"pool: expected num_fewshot {self.num_fewshot} or more, got {self.pool}"
                )
        return self

    def split(
        self,
        problems: Sequence[Problem],
        *,
        draws_per_problem: int,
        stored_ids: ExampleIds | None = None,
    ) -> ProblemSplit:
        """Split the problems into questions and examples.

        The clusters of the pool are not asked, so that no example gives an answer away. All other
        problems are questions.

        Args:
            problems: The problems.
            draws_per_problem: The number of draws of each question.
            stored_ids: The ids of the examples of the run that is continued; None for a new run.

        Raises:
            ConfigError: there are too few problems.
            DataError: the problems lack a stored example.
        """
        example_ids = stored_ids
        requested_counts = [self.num_fewshot] * self.draws
        # A new run has no stored examples, so they are chosen. A run with other numbers of draws or
        # examples cannot be continued. For it new examples are chosen as well, so that the later
        # comparison of both configs refuses it and names both numbers.
        if example_ids is None or [*map(len, example_ids.example_sets)] != requested_counts:
            example_ids = self._choose_examples(problems)
        problem_by_id = {problem.id: problem for problem in problems}
        if missing_ids := sorted({*example_ids.pool} - problem_by_id.keys()):
            raise DataError(
                f"the problem {missing_ids[0]}, from which this run takes examples, is no longer "
                "in the dataset. Restore it, or choose another --output."
            )
        pool_keys = {problem_by_id[problem_id].cluster_key for problem_id in example_ids.pool}
        questions = [problem for problem in problems if problem.cluster_key not in pool_keys]
        if not questions:
            raise ConfigError("fewshot: expected fewer examples, so that a question is left.")
        # each cluster once, in the order of the file
        question_keys = dict.fromkeys(question.cluster_key for question in questions)
        example_sets = [
            ExampleSet(
                draw=0 if self.draws == 1 else draw_index + 1,
                examples=tuple(problem_by_id[problem_id] for problem_id in drawn_ids),
                cluster_keys=self._assign_clusters(draw_index, question_keys, draws_per_problem),
            )
            for draw_index, drawn_ids in enumerate(example_ids.example_sets)
        ]
        return ProblemSplit(questions, example_sets, example_ids)

    def _assign_clusters(
        self, draw_index: int, cluster_keys: Iterable[str], draws_per_problem: int
    ) -> frozenset[str]:
        """The keys of the clusters that are asked with the draw of this index.

        Cluster number i has the draws i, i + 1 and so on, `draws_per_problem` in all; draw 0 comes
        after the last. So all draws have about equally many clusters, and problems that are
        appended to the file do not change earlier assignments.
        """
        return frozenset(
            cluster_key
            for cluster_index, cluster_key in enumerate(cluster_keys)
            # the number of draws from the first one of this cluster to this draw
            if (draw_index - cluster_index) % self.draws < draws_per_problem
        )

    def _choose_examples(self, problems: Iterable[Problem]) -> ExampleIds:
        """Choose clusters at random for the pool, and the examples of each draw from the pool."""
        generator = random.Random(self.seed)
        pool_clusters = self._choose_pool(problems, generator)
        example_sets = []
        for _ in range(self.draws):
            # one problem of each sampled cluster, so that no two examples are nearly the same
            example_clusters = generator.sample(pool_clusters, self.num_fewshot)
            example_sets.append(tuple(generator.choice(cluster).id for cluster in example_clusters))
        return ExampleIds(
            pool=tuple(problem.id for cluster in pool_clusters for problem in cluster),
            example_sets=tuple(example_sets),
        )

    def _choose_pool(
        self, problems: Iterable[Problem], generator: random.Random
    ) -> list[list[Problem]]:
        """Choose clusters at random until they have enough problems and enough for one draw.

        Each example of a draw is of another cluster, so a draw needs `num_fewshot` clusters.

        Raises:
            ConfigError: no cluster is left for the questions.
        """
        pool_size = self.pool
        if pool_size is None:
            pool_size = self.num_fewshot if self.draws == 1 else POOL_FACTOR * self.num_fewshot
        problems_by_cluster: dict[str, list[Problem]] = {}
        for problem in problems:
            problems_by_cluster.setdefault(problem.cluster_key, []).append(problem)
        # at random, because a file may list similar problems one after another
        shuffled_clusters = generator.sample(
            [*problems_by_cluster.values()], len(problems_by_cluster)
        )
        pool_clusters: list[list[Problem]] = []
        while len(pool_clusters) < self.num_fewshot or sum(map(len, pool_clusters)) < pool_size:
            pool_clusters.append(shuffled_clusters.pop())
            if not shuffled_clusters:
                raise ConfigError(
                    f"fewshot: expected num_fewshot {self.num_fewshot} examples of different "
                    f"clusters, a pool of {pool_size} problems and one question, got "
                    f"{sum(map(len, pool_clusters))} problems in {len(pool_clusters)} clusters."
                )
        return pool_clusters


class ExamplesConfig(Strict):
    """Your own examples before the question."""

    examples: RequiredText | Annotated[tuple[RequiredText, ...], Field(min_length=1)]
    """A data file with the columns of `dataset`, whose rows are the examples; or a list of ids of
    problems, which are then not asked."""

    # `FewshotConfig` has these names too, so no reader of a config must ask which form it has
    draws: ClassVar = 1
    instructions: ClassVar = ()
    has_examples: ClassVar = True

    def split(self, problems: Sequence[Problem], example_dataset: Dataset | None) -> ProblemSplit:
        """Split the problems into questions and the only examples.

        Examples of a file leave all problems as questions. Listed examples are problems, whose
        clusters are then not asked.

        Args:
            problems: The problems.
            example_dataset: The content of the file of examples; None if they are a list of ids.

        Raises:
            ConfigError: an id is unknown or listed twice, or no question is left.
            DataError: an example of the file is also a problem, or it has choices and the problems
                have none, or the reverse.
        """
        if example_dataset is not None:
            _refuse_faulty_examples(example_dataset, problems)
            return ProblemSplit(
                problems,
                [ExampleSet(example_dataset.problems)],
                ExampleIds(sha256=example_dataset.sha256),
            )
        listed_ids = tuple(self.examples)
        known_ids = [problem.id for problem in problems]
        for problem_id in listed_ids:
            if problem_id not in known_ids or listed_ids.count(problem_id) > 1:
                raise ConfigError(
                    "fewshot.examples: expected a file, or different ids of problems, such as "
                    f"{list_near(problem_id, known_ids)}; got {problem_id}."
                )
        # the listed problems are a pool from which the only draw has already been made
        return FewshotConfig(num_fewshot=len(listed_ids)).split(
            problems,
            draws_per_problem=1,
            stored_ids=ExampleIds(pool=listed_ids, example_sets=(listed_ids,)),
        )


def _refuse_faulty_examples(example_dataset: Dataset, problems: Sequence[Problem]) -> None:
    """Raise DataError if an example of a file is a copy of a problem, or differs in having choices.

    A copy has the question or the cluster of the problem.
    """
    # a text is a question or the name of a cluster
    id_by_text = {problem.question: problem.id for problem in problems}
    id_by_text |= {problem.cluster: problem.id for problem in problems if problem.cluster}
    has_choices = bool(problems[0].choices)
    for example in example_dataset.problems:
        location = f"{example_dataset.source}: the example {example.id}"
        if bool(example.choices) != has_choices:
            choices_text = "no choices" if has_choices else "choices"
            raise DataError(f"{location} has {choices_text}, unlike the problems.")
        for text in (example.question, example.cluster):
            if text in id_by_text:
                raise DataError(
                    f"{location} counts with the problem {id_by_text[text]} of the dataset. "
                    "List such examples by id."
                )


def _name_schema(value: Any) -> str:
    """The schema of a `fewshot`, so that an error message names only the keys of this form."""
    has_examples = "examples" in value if isinstance(value, dict) else hasattr(value, "examples")
    return "ExamplesConfig" if has_examples else "FewshotConfig"


AnyFewshot = Annotated[
    Annotated[FewshotConfig, Tag("FewshotConfig")]
    | Annotated[ExamplesConfig, Tag("ExamplesConfig")],
    Discriminator(_name_schema),
]
"""A config's `fewshot`."""
