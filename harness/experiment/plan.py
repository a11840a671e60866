"""All that a run will do, settled before any weight is loaded: checked prompts, and one request a completion.

The key of a sample is made of all that can change it: a stored sample answers every request with its key.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from harness.errors import ConfigError, DataError
from harness.experiment.conditions import OTHER_INSTRUCTION
from harness.experiment.fewshot_examples import Draw, FewshotConfig
from harness.experiment.generation_settings import Sampling, sample_seed
from harness.experiment.problems import Dataset, Problem, open_dataset
from harness.experiment.prompt import Layout, hash_prompts
from harness.experiment.run_config import RunConfig
from harness.experiment.token_checks import BuiltPrompt, ConditionPrompts, build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer, encode, template_switches


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that a run will do.

    Attributes:
        dataset: The problems that are asked, the limit taken into account.
        whole: All problems that there are.
        arms: The prompts of each condition in each layout and draw of examples, by lm-eval's name of the task.
        model_arguments: What the backend is loaded with, from `RunConfig.model_arguments`.
        limit: Only the first so many problems.
        before_raw: The tokens that the tokenizer puts before a text that is no chat, such as BOS.
    """

    config: RunConfig
    dataset: Dataset
    whole: Dataset
    arms: Mapping[str, ConditionPrompts]
    model_arguments: Mapping[str, Any]
    limit: int | None = None
    before_raw: str = ""

    @property
    def size(self) -> int:
        """Completions to generate."""
        prompts = sum(self.replicates(arm) * len(arm.prompts) for arm in self.arms.values())
        return prompts * self.config.repeats_per_draw

    def replicates(self, arm: ConditionPrompts) -> int:
        """How often a condition is run."""
        return self.config.replicates if arm.condition.name in self.config.replicated else 1

    @property
    def lines(self) -> dict[str, str]:
        """The line that shows each task while it runs: one for reference conditions of a kind, one for all draws."""
        lines = {}
        for task, arm in self.arms.items():
            name = self.config.task_name(self.dataset.name, arm.condition.name, arm.layout)
            lines[task] = group_name(arm.condition.kind, name)
        return lines

    @cached_property
    def prompts_sha256(self) -> str:
        """Hash over all prompts, texts and token ids."""
        return hash_prompts(prompt for *_, prompt in self.rows)

    @property
    def rows(self) -> list[tuple[str, ConditionPrompts, Problem, BuiltPrompt]]:
        """Every prompt with its task, arm and problem: problems outside, arms inside."""
        prompts = {
            (task, problem.id): prompt
            for task, arm in self.arms.items()
            for problem, prompt in zip(arm.problems, arm.prompts, strict=True)
        }
        return [
            (task, arm, problem, prompts[task, problem.id])
            for problem in self.dataset.problems
            for task, arm in self.arms.items()
            if (task, problem.id) in prompts
        ]


def make_plan(config: RunConfig, *, limit: int | None = None) -> Plan:
    """Load data and tokenizer, build and check every prompt.

    Raises:
        HarnessError: anything about config, data, tokenizer or prompts that would spoil the run.
    """
    whole = open_dataset(config.dataset)
    shown = config.fewshot
    # without examples too an answer's line is begun by the prompt: else a model's line break would be the whole answer
    begun = (
        Draw(number=0, examples=(), frame=FewshotConfig().frame)
        if config.answer == "line"
        else None
    )
    asked: Sequence[Problem] = whole.problems
    draws: Sequence[Draw | None] = [begun]
    if shown:
        asked, draws = shown.split(whole.problems, draws_per_problem=config.draws_per_problem)
    seen = [*asked, *(one for draw in draws if draw for one in draw.examples)]
    if config.answer == "line" and (
        longer := [one.id for one in seen if "\n" in one.answer.strip()]
    ):
        raise DataError(
            f"{whole.source}: problem {longer[0]} has an answer of several lines; `answer: line` reads one."
        )
    dataset = Dataset(name=whole.name, source=whole.source, problems=tuple(asked[:limit]))
    arguments = config.model_arguments()
    model = ModelTokenizer.from_arguments(arguments)
    templated = config.model.templates_itself or (
        model is not None and model.tokenizer.chat_template
    )
    layouts = config.layouts or (Layout.CHAT if templated else Layout.RAW,)
    if (switches := template_switches(config.model.model_args)) and Layout.CHAT not in layouts:
        named, got = ", ".join(switches), ", ".join(layouts)
        raise ConfigError(
            f"model.model_args sets {named} of the chat template, and the layout is {got}."
        )
    config = config.model_copy(update={"layouts": layouts})
    with_examples = [condition for condition in config.all_conditions if condition.has_examples]
    without_examples = [
        condition for condition in config.all_conditions if not condition.has_examples
    ]
    arms = {
        config.task_name(dataset.name, built.condition.name, layout, built.draw): built
        for layout in layouts
        for draw in draws
        for conditions, examples in (
            (with_examples, draw),
            (without_examples, draw and replace(draw, examples=())),
        )
        if conditions
        for built in build_checked_prompts(
            draw.select(dataset.problems) if draw else dataset.problems,
            conditions,
            layout,
            model,
            max_gen_toks=config.max_gen_toks,
            instruction=config.instruction,
            draw=examples,
        )
    }
    first = (
        model.tokenizer.convert_ids_to_tokens(encode("A", model.tokenizer)[0])[:-1] if model else []
    )
    return Plan(
        config=config,
        dataset=dataset,
        whole=whole,
        arms=arms,
        model_arguments=arguments,
        limit=limit,
        before_raw="".join(first),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to generate.

    Attributes:
        task: Its name, as lm-eval knows it.
        problem_id: Which problem of the dataset.
        sample_index: Which of the samples of this problem, from 0, over all draws of examples.
        replicate: Which repetition of the whole condition, from 0.
        again: How many requests of the run, under other conditions, ask the very same before this one.
        seed: The sample's own seed; None where nothing is drawn.
        prompt: The prompt as text, templated.
        prompt_token_ids: The prompt as the engine gets it; None where the model's tokenizer is not known.
        prompt_sha256: Hash of the text, as lm-eval's sample logs carry it.
        prompt_token_sha256: Hash of the token ids; None where they are not known.
        sampling: The parameters in force.
        intervention: What is done to the model while it generates, such as a change of its attention; None for nothing.
        record: Of a prompt whose attention is recorded, sets of queries over which it is summed: 1 for each token of
            the set, 0 for others. In the last set a query's attention to its own token counts too.
        turns: The messages, for a backend that takes no templated text (a chat API); None for all others.
    """

    task: str
    problem_id: str
    sample_index: int = 0
    replicate: int = 0
    again: int = 0
    seed: int | None = None
    prompt: str
    prompt_token_ids: tuple[int, ...] | None
    prompt_sha256: str
    prompt_token_sha256: str | None
    sampling: Sampling
    intervention: Mapping[str, Any] | None = None
    record: Sequence[Sequence[int]] | None = None
    turns: tuple[dict[str, str], ...] | None = None


def make_requests(plan: Plan, sampling: Sampling) -> Iterator[Request]:
    """All requests in the order in which they are scheduled.

    The first sample of every problem comes before the second of any, and the conditions of a problem stand
    together: a run that is stopped early has the whole comparison, with fewer samples or problems. One draw of
    examples comes after the other, so that an engine still has the beginning of its prompts. Replicates come last,
    each in an order of its own, so that they share batches with other prompts than the first time.
    """
    seeded = not sampling.greedy and plan.config.model.takes_seeds
    for replicate in range(plan.config.replicates):
        rows = sorted(
            (row for row in plan.rows if plan.replicates(row[1]) > replicate),
            key=lambda row: row[1].draw,
        )
        if replicate:
            random.Random(f"{plan.config.seed}:{replicate}").shuffle(rows)
        asked: Counter[tuple[int, str, object, str]] = Counter()
        for sample, (task, arm, problem, prompt) in product(
            range(plan.config.repeats_per_draw), rows
        ):
            index = sample + max(arm.draw - 1, 0) * plan.config.repeats_per_draw
            chat_api = arm.layout is Layout.CHAT and plan.config.model.templates_itself
            same = (
                index,
                problem.id,
                prompt.prompt_token_sha256 or (prompt.prompt_sha256, arm.layout),
                hash_json(prompt.intervention),
            )
            asked[same] += 1
            yield Request(
                task=task,
                problem_id=problem.id,
                sample_index=index,
                replicate=replicate,
                again=asked[same] - 1,
                seed=sample_seed(plan.config.seed, problem.id, index, replicate)
                if seeded
                else None,
                prompt=prompt.text,
                prompt_token_ids=prompt.token_ids,
                prompt_sha256=prompt.prompt_sha256,
                prompt_token_sha256=prompt.prompt_token_sha256,
                sampling=sampling,
                intervention=prompt.intervention,
                turns=tuple(prompt.prompt.messages) if chat_api else None,
            )


def sample_key(request: Request, setting: str) -> str:
    """Cache key: two requests with the same key give interchangeable samples.

    It covers all that can change a sample. The condition's name is not part of it: the prompt's tokens are. What grades
    the sample is not part of it either.

    Args:
        request: What is asked.
        setting: What all samples of a run share, from `hash_setting`.
    """
    parts = (
        setting,
        request.prompt_token_sha256 or (request.prompt_sha256, request.turns),
        request.sampling.vllm(),
        request.intervention,
        request.seed,
        request.problem_id,
        request.sample_index,
        request.replicate,
        request.again,
    )
    return hash_json(parts)


def hash_setting(
    *,
    prompt_version: int,
    model: Mapping[str, Any],
    arguments: Mapping[str, Any],
    engine: Mapping[str, Any],
) -> str:
    """Hash of what all samples of a run share.

    Args:
        prompt_version: `PROMPT_VERSION` of the prompts.
        model: The model's fingerprint. A folder is known by what is in it, so that it may have another name.
        arguments: The model arguments that can change a sample: see `run_config.fixed_arguments`.
        engine: The engine's name, its version and the type of device.
    """
    content = model.get("sha256") or model
    return hash_json(
        {"prompts": prompt_version, "model": content, "arguments": arguments, "engine": engine}
    )


def hash_json(value: Any) -> str:
    """SHA-256 of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def group_name(kind: str | None, name: str) -> str:
    """What a condition is shown under where the reference conditions of a kind share a line: the kind, or its name."""
    if kind is None:
        return name
    return f"{kind}s" if kind == OTHER_INSTRUCTION else kind
