"""All that a run will do, settled before any weight is loaded: arms and checked prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

from harness.experiment.conditions import BASELINE, group_name, yardstick
from harness.experiment.config import RunConfig
from harness.experiment.documents import ModelTokenizer, build_checked_prompts, make_document
from harness.experiment.problems import Dataset, Problem
from harness.experiment.prompt import hash_prompts
from harness.experiment.token_checks import BuiltPrompt, ConditionPrompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One condition in one layout: a task for lm-eval.

    Attributes:
        task: Its name in results and logs.
        built: Its prompts, as they were checked and as they will run.
        replicates: How often it is run.
        by_sample: The prompts of each sample. Empty, unless they differ from sample to sample.
    """

    task: str
    built: ConditionPrompts
    replicates: int = 1
    by_sample: tuple[ConditionPrompts, ...] = ()


class Row(NamedTuple):
    """A prompt with its arm and problem, and the one sample that it is for; None where all samples have it."""

    arm: Arm
    problem: Problem
    prompt: BuiltPrompt
    sample: int | None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run will do.

    Attributes:
        dataset: The problems, the limit taken into account.
        whole: All problems that there are.
        model: What of the model the prompts depend on; None where its tokenizer is not known.
        limit: Only the first so many problems.
    """

    config: RunConfig
    dataset: Dataset
    whole: Dataset
    model: ModelTokenizer | None
    arms: tuple[Arm, ...]
    limit: int | None = None

    @property
    def size(self) -> int:
        """Completions to generate."""
        each = len(self.dataset.problems) * self.config.samples_per_problem
        return each * sum(arm.replicates for arm in self.arms)

    @property
    def lines(self) -> dict[str, str]:
        """Under what name each task is shown while it runs: yardsticks of one kind are one line."""
        names = {arm.task: arm.built.condition.name for arm in self.arms}
        return {task: group_name(name) if yardstick(name) else task for task, name in names.items()}

    @cached_property
    def prompts(self) -> list[dict[str, Any]]:
        """Every prompt with its document, as `prompts.jsonl` keeps it: problems outside, arms inside."""
        return [
            {
                "task": arm.task,
                "condition": arm.built.condition.name,
                "layout": str(arm.built.layout),
                "prompt": prompt.text,
                "prompt_sha256": prompt.sha256,
                "prompt_token_sha256": prompt.token_sha256,
                "prompt_tokens": None if prompt.token_ids is None else len(prompt.token_ids),
                "doc": make_document(problem, prompt.prompt, arm.built.condition, arm.built.layout),
                "thinking_opened": prompt.text.rstrip().endswith("<think>"),
                **({"answer_prefix": prompt.answer_prefix} if prompt.answer_prefix else {}),
                **({} if sample is None else {"sample_index": sample}),
            }
            for arm, problem, prompt, sample in self.rows
        ]

    @cached_property
    def prompts_sha256(self) -> str:
        """Hash over all prompts, texts and token ids."""
        return hash_prompts(self.prompts)

    @property
    def rows(self) -> list[Row]:
        """Every prompt: problems outside, arms inside."""
        return [
            Row(arm, problem, built.prompts[place], number if arm.by_sample else None)
            for place, problem in enumerate(self.dataset.problems)
            for arm in self.arms
            for number, built in enumerate(arm.by_sample or [arm.built])
        ]


def make_plan(config: RunConfig, *, limit: int | None = None) -> Plan:
    """Load data and tokenizer, build and check every prompt.

    Raises:
        HarnessError: anything about config, data, tokenizer or prompts that would spoil the run.
    """
    whole = config.load_dataset()
    dataset = Dataset(name=whole.name, source=whole.source, problems=whole.problems[:limit])
    model = ModelTokenizer.from_arguments(config.model_arguments())
    conditions = (*config.conditions, *config.yardsticks)
    samples = config.samples_per_problem
    arms = []
    for layout in config.layouts:
        build = partial(
            build_checked_prompts,
            dataset,
            layout=layout,
            model=model,
            max_gen_toks=config.max_gen_toks,
            instruction=config.instruction,
        )
        arms += [
            Arm(
                task=config.task_name(dataset.name, built.condition.name, layout),
                built=built,
                replicates=config.replicates if built.condition.name == BASELINE else 1,
                by_sample=tuple(build(drawn)) if (drawn := built.condition.for_samples(samples)) else (),
            )
            for built in build(conditions)
        ]
    return Plan(config=config, dataset=dataset, whole=whole, model=model, arms=tuple(arms), limit=limit)
