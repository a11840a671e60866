"""All that a run will do, settled before any weight is loaded: arms, checked prompts, requests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

from harness import resources
from harness.errors import ConfigError, PromptMismatchError
from harness.experiment.conditions import BASELINE, Condition
from harness.experiment.config import RunConfig
from harness.experiment.documents import Model, build_documents, check_documents, document_prompt
from harness.experiment.problems import Dataset
from harness.experiment.prompt import Layout, hash_text
from harness.experiment.requests import Request, hash_prompts
from harness.experiment.rewordings import first_edits
from harness.experiment.sampling import Sampling, sample_seed
from harness.experiment.token_checks import ConditionCheck
from harness.experiment.tokens import encode, hash_token_ids, render


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One part of a run that several processes share: every `count`-th problem, so that conditions stay paired."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`2/4` is the second of four.

        Raises:
            ConfigError: it is not of that form, or out of range.
        """
        index, slash, count = text.partition("/")
        if not (slash and index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
            raise ConfigError(f"--shard expects I/N with I from 1 to N, such as 2/4, got {text!r}.")
        return cls(index=int(index), count=int(count))

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One condition in one layout: a task for lm-eval.

    Attributes:
        task: Its name in results and logs.
        check: What its prompts look like; None where the model's tokenizer is not known.
        replicates: How often it is run.
    """

    task: str
    condition: Condition
    layout: Layout
    check: ConditionCheck | None
    replicates: int = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run will do.

    Attributes:
        dataset: The problems, limit and shard taken into account.
        whole: All problems that there are.
        model: What of the model the prompts depend on; None where its tokenizer is not known.
        limit: Only the first so many problems.
        shard: Only this part of them.
    """

    config: RunConfig
    dataset: Dataset
    whole: Dataset
    model: Model | None
    arms: tuple[Arm, ...]
    limit: int | None = None
    shard: Shard | None = None

    @property
    def size(self) -> int:
        """Completions to generate."""
        return sum(self.totals.values())

    @property
    def totals(self) -> dict[str, int]:
        """Completions to generate, by task."""
        each = len(self.dataset.problems) * self.config.samples_per_problem
        return {arm.task: arm.replicates * each for arm in self.arms}

    @property
    def lines(self) -> dict[str, str]:
        """Under what name each task is shown while it runs: all edits of a prompt null are one line."""
        return {arm.task: "prompt null" if arm.condition.edit else arm.task for arm in self.arms}

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """Every prompt with its document, as `prompts.jsonl` keeps it: problems outside, arms inside.

        Raises:
            PromptMismatchError: a prompt's token ids are not those that were checked.
        """
        columns = [self._arm_prompts(arm) for arm in self.arms]
        return [row for rows in zip(*columns, strict=True) for row in rows]

    @cached_property
    def prompts_sha256(self) -> str:
        """Hash over all prompts, texts and token ids."""
        return hash_prompts(self.prompts)

    def requests(self, sampling: Sampling) -> Iterator[Request]:
        """All requests in the order in which they are scheduled.

        The first sample of every problem comes before the second of any, and the conditions of a problem stand
        together: a run that is stopped early has the whole comparison, with fewer samples or problems. Replicates
        come last, each in an order of its own, so that they share batches with other prompts than the first time.
        """
        seeded = not sampling.greedy and self.config.model.takes_seeds
        again = {arm.task: arm.replicates for arm in self.arms}
        for replicate in range(max(again.values())):
            rows = [row for row in self.prompts if again[row["task"]] > replicate]
            if replicate:
                random.Random(f"{self.config.seed}:{replicate}").shuffle(rows)
            for index, row in product(range(self.config.samples_per_problem), rows):
                problem = row["doc"]["id"]
                chat_api = row["layout"] == Layout.CHAT and self.config.model.templates_itself
                yield Request(
                    task=row["task"],
                    problem_id=problem,
                    sample_index=index,
                    replicate=replicate,
                    seed=sample_seed(self.config.seed, problem, index, replicate) if seeded else None,
                    prompt=row["prompt"],
                    prompt_token_ids=self._token_ids[row["prompt"]],
                    prompt_sha256=row["prompt_sha256"],
                    prompt_token_sha256=row["prompt_token_sha256"],
                    sampling=sampling,
                    turns=tuple(document_prompt(row["doc"]).messages) if chat_api else None,
                    replay=self._replay(row["doc"]),
                )

    def _replay(self, document: Mapping[str, Any]) -> tuple[int, ...] | None:
        """The reference solution as tokens, if the config asks the engine to replay these."""
        if self.model is None or not self.config.model.arguments.get("replay_solutions"):
            return None
        return encode(document["solution"] or document["answer"], self.model.tokenizer)[0]

    def _arm_prompts(self, arm: Arm) -> list[dict[str, Any]]:
        documents = build_documents(
            self.dataset, arm.condition, arm.layout, model=self.model, instruction=self.config.instruction
        )
        rows = []
        for place, document in enumerate(documents):
            prompt = document_prompt(document)
            text = prompt.text if self.model is None else render(prompt, arm.layout, self.model.tokenizer)
            ids = None if self.model is None else encode(text, self.model.tokenizer)[0]
            self._token_ids[text] = ids
            token_sha256 = None if ids is None else hash_token_ids(ids)
            if arm.check is not None and token_sha256 != arm.check.prompt_sha256[place]:
                raise PromptMismatchError(
                    f"Problem {document['id']}, {arm.task}: the prompt to be run is not the one that was checked. This "
                    "is a bug in mless: please report it with the run config."
                )
            rows.append(
                {
                    "task": arm.task,
                    "condition": arm.condition.name,
                    "layout": str(arm.layout),
                    "prompt": text,
                    "prompt_sha256": hash_text(text),
                    "prompt_token_sha256": token_sha256,
                    "prompt_tokens": None if ids is None else len(ids),
                    "doc": document,
                }
            )
        return rows

    @cached_property
    def _token_ids(self) -> dict[str, tuple[int, ...] | None]:
        """Token ids by prompt text, filled as the prompts are built; not part of what is written."""
        return {}


def make_plan(config: RunConfig, *, limit: int | None = None, shard: Shard | None = None) -> Plan:
    """Load data and tokenizer, build and check every prompt.

    Raises:
        HarnessError: anything about config, data, tokenizer or prompts that would spoil the run.
    """
    whole = config.load_dataset()
    problems = whole.problems[:limit]
    if shard is not None:
        problems = problems[shard.index - 1 :: shard.count]
        if not problems:
            raise ConfigError(f"Shard {shard} holds no problem: there are fewer problems than shards. Use fewer.")
    dataset = Dataset(name=whole.name, source=whole.source, problems=problems)
    model = Model.from_arguments(config.model_arguments())
    arms = []
    for layout in config.layouts:
        for condition in (*config.conditions, *first_edits(config.prompt_null)):
            check = None
            if model is not None:
                check = check_documents(
                    dataset,
                    condition,
                    (layout,),
                    model,
                    max_gen_toks=config.max_gen_toks,
                    instruction=config.instruction,
                )[0]
            task = config.task_name(dataset.name, condition.name, layout)
            again = config.replicates if condition.name == BASELINE else 1
            arms.append(Arm(task=task, condition=condition, layout=layout, check=check, replicates=again))
    return Plan(config=config, dataset=dataset, whole=whole, model=model, arms=tuple(arms), limit=limit, shard=shard)


def task_version() -> float:
    """The version of the task template: it goes up when a prompt or its grading changes."""
    import yaml

    class Loader(yaml.SafeLoader):
        """Reads over `!function`: only the metadata is wanted."""

    Loader.add_constructor("!function", lambda loader, node: None)
    text = (resources.folder("tasks") / "math500" / "_math500.yaml").read_text(encoding="utf-8")
    return float(yaml.load(text, Loader)["metadata"]["version"])
