"""The plan of a run, made before any weights are loaded: checked prompts and their requests.

A task of lm-eval is one condition in one layout with one draw of examples. It has a prompt for each
problem, and a request is one completion of a prompt. With one draw, the samples of a problem share
a prompt, unless a condition draws a new filler for each sample; then each sample has a number. The
repeat run, which is replicate 1, asks for the same samples again.

The key of a sample depends on everything that can change the sample. So a stored sample answers
every request with the same key.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

from harness.constants import ANSWER_LOGPROB, JsonObject
from harness.errors import ConfigError, DataError
from harness.experiment.conditions import OTHER_TEXT, POSITIVE_CONTROL
from harness.experiment.fewshot_examples import (
    ExampleIds,
    ExamplesConfig,
    ExampleSet,
    ProblemSplit,
)
from harness.experiment.generation_settings import Sampling, sample_seed
from harness.experiment.intervention_settings import ResolvedChange
from harness.experiment.other_answers import draw_other_answers
from harness.experiment.problems import AnyDataset, Dataset, DatasetConfig, Problem, open_dataset
from harness.experiment.prompts.built_prompts import AnswerTokens, BuiltPrompt
from harness.experiment.prompts.chat_template import template_switches
from harness.experiment.prompts.checked_prompts import ConditionPrompts, build_checked_prompts
from harness.experiment.prompts.prompt import Layout, PromptSettings, hash_prompts, hash_text
from harness.experiment.prompts.template_parser import find_columns
from harness.experiment.prompts.tokenizer import ModelTokenizer, encode
from harness.experiment.run_config import RunConfig
from harness.reasoning_markers import Markers, find_open_reasoning, read_markers


class PlanRow(NamedTuple):
    """One prompt of a plan.

    Attributes:
        task_name: The name of its task in lm-eval.
        task: The prompts of its condition, layout and draw.
        problem: Its problem.
        prompt: The prompt.
    """

    task_name: str
    task: ConditionPrompts
    problem: Problem
    prompt: BuiltPrompt


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The problems, prompts and settings of a run.

    Attributes:
        config: The config, with its layouts filled in.
        dataset: The problems of the run, at most `limit`.
        full_dataset: All problems of the dataset, examples included.
        tasks: The prompts of each condition, layout and draw of examples, by the task's name.
        limit: The maximum number of problems.
        example_ids: The ids of the examples; None if there are none.
        layout_reason: Why the run has these layouts.
        reasoning_markers: The texts around the model's reasoning, from the config or the chat
            template; empty if both state none.
        lacks_markers: Whether the chat template speaks of reasoning, without known markers.
        raw_prefix: The tokens that the tokenizer adds before an untemplated text, such as BOS.
    """

    config: RunConfig
    dataset: Dataset
    full_dataset: Dataset
    tasks: Mapping[str, ConditionPrompts]
    limit: int | None
    example_ids: ExampleIds | None
    layout_reason: str
    reasoning_markers: Markers
    lacks_markers: bool
    raw_prefix: str

    @cached_property
    def model_arguments(self) -> JsonObject:
        """The model arguments that lm-eval's backend gets, such as `pretrained` and `dtype`."""
        return self.config.model_arguments()

    @property
    def completion_count(self) -> int:
        """The number of completions to generate."""
        return self.config.repeats_per_prompt * sum(
            self.count_replicates(task) * len(task.prompts) for task in self.tasks.values()
        )

    def count_replicates(self, task: ConditionPrompts) -> int:
        """The number of times that a condition is run: 2 with a repeat run, else 1."""
        is_repeated = task.condition.name in self.config.replicated_names
        return self.config.replicates if is_repeated else 1

    @property
    def line_by_task(self) -> dict[str, str]:
        """The name of the progress line of each task, by the task's name.

        The display of progress counts completions by these names. Reference conditions of the same
        kind share a line, and so do all draws and samples.
        """
        return {
            task_name: group_name(
                task.condition.kind,
                self.config.task_name(self.dataset.name, task.condition.name, task.layout),
            )
            for task_name, task in self.tasks.items()
        }

    @cached_property
    def prompts_sha256(self) -> str:
        """Hash over the texts and token ids of all prompts."""
        return hash_prompts(row.prompt for row in self.rows)

    @property
    def rows(self) -> list[PlanRow]:
        """A row for every prompt: by problem, then by task."""
        index_by_id = {problem.id: index for index, problem in enumerate(self.dataset.problems)}
        rows = []
        for task_name, task in self.tasks.items():
            for problem, prompt in zip(task.problems, task.prompts, strict=True):
                rows.append(PlanRow(task_name, task, problem, prompt))
        return sorted(rows, key=lambda row: index_by_id[row.problem.id])


def make_plan(
    config: RunConfig,
    *,
    limit: int | None = None,
    stored_ids: ExampleIds | None = None,
    advance: Callable[[int, int], None] = lambda _finished, _total: None,
) -> Plan:
    """Load data and tokenizer, and build and check every prompt.

    Args:
        config: The config.
        limit: The maximum number of problems.
        stored_ids: The ids of the examples of the run that is continued; None for a new run.
        advance: Gets the number of finished prompts, and of all prompts.

    Raises:
        HarnessError: config, data, tokenizer or prompts would spoil the run.
    """
    full_dataset = _open_dataset(config, config.dataset)
    problem_split = _split_problems(config, full_dataset, stored_ids)
    # after the examples were taken, so that a limit does not change them
    dataset = replace(full_dataset, problems=tuple(problem_split.questions[:limit]))
    model = ModelTokenizer.from_arguments(config.model_arguments())
    if config.other_texts and model is None:
        raise ConfigError(
            f"other_texts: {', '.join(config.other_texts)} of an exact length need the model's "
            "tokenizer. Name it (--set model.model_args.tokenizer=NAME)."
        )
    layouts, layout_reason = _choose_layouts(config, model)
    config = config.model_copy(update={"layouts": layouts})
    _refuse_unused_template(config)
    reasoning_markers, lacks_markers = _find_markers(config, model)
    settings = _make_shared_settings(
        config, problem_split.questions, dataset, model, reasoning_markers
    )
    tasks = _build_tasks(config, dataset, problem_split.example_sets, model, settings, advance)
    if config.answer == "line" and config.endpoint != ANSWER_LOGPROB:
        _refuse_open_reasoning(tasks.values(), reasoning_markers)
    _refuse_equal_texts(tasks.values())
    return Plan(
        config=config,
        dataset=dataset,
        full_dataset=full_dataset,
        tasks=tasks,
        limit=limit,
        example_ids=problem_split.example_ids,
        layout_reason=layout_reason,
        reasoning_markers=reasoning_markers,
        lacks_markers=lacks_markers,
        raw_prefix=_find_raw_prefix(model),
    )


def _make_shared_settings(
    config: RunConfig,
    questions: Sequence[Problem],
    dataset: Dataset,
    model: ModelTokenizer | None,
    reasoning_markers: Markers,
) -> PromptSettings:
    """The settings that all prompts have in common, with the other answers if these are scored."""
    settings = PromptSettings(
        template=config.template,
        question=config.question,
        reasoning_markers=reasoning_markers,
        # the prompt must end within the answer's line: a model that begins a new line would end
        # its completion before the answer
        asks_in_text=config.fewshot is not None or config.answer == "line",
    )
    if config.endpoint != ANSWER_LOGPROB or model is None:
        return settings
    # drawn from all questions, so that a limit does not change the other answers
    other_answers = draw_other_answers(
        questions,
        {problem.id for problem in dataset.problems},
        lambda answer: len(encode(answer, model.tokenizer)[0]),
        config.seed,
    )
    return replace(settings, scored_form=config.answer, other_answers=other_answers)


def _find_markers(config: RunConfig, model: ModelTokenizer | None) -> tuple[Markers, bool]:
    """The texts around the model's reasoning, from the config, else from the chat template.

    The second result says whether the template speaks of reasoning, but has no known markers.
    """
    if config.reasoning_markers or model is None:
        return config.reasoning_markers, False
    template_markers = read_markers(model.template)
    # Such words are parts of the names of a template's variables, as in `reasoning_content`.
    # The word "reason" says nothing, because any template may say "reason step by step".
    mentions_reasoning = re.search("reasoning_|thinking", model.template)
    return template_markers, mentions_reasoning is not None and not template_markers


def _find_raw_prefix(model: ModelTokenizer | None) -> str:
    """The tokens that the tokenizer adds before an untemplated text, joined."""
    if model is None:
        return ""
    # the tokenizer adds all tokens except the last, which is the letter
    token_ids, _ = encode("A", model.tokenizer)
    return "".join(model.tokenizer.convert_ids_to_tokens(token_ids)[:-1])


def _refuse_open_reasoning(tasks: Iterable[ConditionPrompts], reasoning_markers: Markers) -> None:
    """Raise ConfigError if completions begin inside reasoning, because its first line ends them."""
    for prompt in chain.from_iterable(task.prompts for task in tasks):
        start_marker, _ = find_open_reasoning(prompt.text, reasoning_markers)
        if start_marker:
            raise ConfigError(
                "answer: `line` would end each completion in the first line of its reasoning, "
                f"because the prompt ends in {start_marker}. Set `answer: box` (--set answer=box)."
            )


def _refuse_equal_texts(tasks: Iterable[ConditionPrompts]) -> None:
    """Raise ConfigError if one of `other_texts` gives the prompts of another condition.

    Two conditions have the same prompts in a layout and draw if they have the same first prompt and
    the same intervention.
    """
    name_by_prompt_key: dict[object, str] = {}
    for task in tasks:
        condition = task.condition
        # with --limit, a draw of examples may have no problem and so no prompt
        text = task.prompts[0].text if task.prompts else condition.name
        prompt_key = (task.layout, task.draw, str(condition.intervention), text)
        earlier_name = name_by_prompt_key.setdefault(prompt_key, condition.name)
        if condition.kind == OTHER_TEXT and earlier_name != condition.name:
            raise ConfigError(
                f"other_texts: {condition.name} has the same {condition.filler_tokens} tokens as "
                f"{earlier_name}. Set fewer texts, or a longer filler."
            )


def _open_dataset(config: RunConfig, source: AnyDataset) -> Dataset:
    """The problems or examples of a source, with the columns that the config names.

    Raises:
        DataError: the source cannot be read, or an answer of several lines is to be a line.
    """
    baseline_entries = [
        condition.as_entry()
        for condition in config.conditions
        if condition.name == config.baseline_name
    ]
    question_columns = find_columns(
        [config.template, config.question, config.instruction, *baseline_entries]
    )
    dataset = open_dataset(source, find_columns(config.values_with_defaults()), question_columns)
    if config.answer == "line":
        for problem in dataset.problems:
            if "\n" in problem.answer.strip():
                raise DataError(
                    f"{dataset.source}: problem {problem.id} has an answer of several lines; "
                    "`answer: line` reads one."
                )
    return dataset


def _split_problems(
    config: RunConfig, dataset: Dataset, stored_ids: ExampleIds | None
) -> ProblemSplit:
    """Split the problems into those of the run and examples."""
    fewshot = config.fewshot
    if fewshot is None:
        return ProblemSplit(dataset.problems, [ExampleSet(())], None)
    if not isinstance(fewshot, ExamplesConfig):
        return fewshot.split(
            dataset.problems, draws_per_problem=config.draws_per_problem, stored_ids=stored_ids
        )
    example_dataset = None
    # a text names a file of examples; otherwise they are a list of ids
    if isinstance(fewshot.examples, str):
        source = DatasetConfig(path=Path(fewshot.examples))
        # the examples have the columns of the problems
        if isinstance(config.dataset, DatasetConfig):
            source = config.dataset.model_copy(update={"path": source.path})
        example_dataset = _open_dataset(config, source)
    return fewshot.split(dataset.problems, example_dataset)


def _choose_layouts(
    config: RunConfig, model: ModelTokenizer | None
) -> tuple[tuple[Layout, ...], str]:
    """The config's layouts, by default `chat` if there is a chat template, else `raw`; and why."""
    if config.layouts:
        layouts, reason = config.layouts, "as configured"
    elif config.model.applies_own_template:
        layouts, reason = (Layout.CHAT,), "the server applies its chat template"
    elif model is not None and model.template:
        layouts, reason = (Layout.CHAT,), "the tokenizer has a chat template"
    else:
        layouts, reason = (Layout.RAW,), "no chat template is known"
    # a tokenizer may have several chat templates with names
    if model is not None and model.template_names and Layout.CHAT in layouts:
        template_name = config.model.model_args.get("chat_template") or "default"
        reason += (
            f"; chat template {template_name} of {', '.join(model.template_names)} "
            "(--set model.model_args.chat_template=NAME)"
        )
    return layouts, reason


def _refuse_unused_template(config: RunConfig) -> None:
    """Raise ConfigError if the config sets something about a chat template that is not used."""
    arguments = config.model.model_args
    if arguments.get("chat_template") is not None and config.model.applies_own_template:
        raise ConfigError("model.model_args.chat_template: a chat server has its own template.")
    switches = template_switches(arguments)
    if switches and Layout.CHAT not in config.layouts:
        raise ConfigError(
            f"model.model_args sets {', '.join(switches)} of the chat template, "
            f"but the layout is {', '.join(config.layouts)}."
        )


def _build_tasks(
    config: RunConfig,
    dataset: Dataset,
    example_sets: Sequence[ExampleSet],
    model: ModelTokenizer | None,
    settings: PromptSettings,
    advance: Callable[[int, int], None],
) -> dict[str, ConditionPrompts]:
    """Build the prompts of each condition in each layout and draw, by lm-eval's task name.

    The samples of a problem with one draw share a prompt. But if a condition has a new filler for
    each sample, every sample has its own prompts under all conditions, so that the conditions are
    compared sample by sample. `settings` are those that all prompts share.
    """
    # a prompt for each sample with one draw, or one prompt for all of them
    repeat_indices = range(config.repeats_per_draw // config.repeats_per_prompt)
    # a problem has its prompts, for all its draws and samples, in each condition and layout
    prompts_per_problem = config.repeats // config.repeats_per_prompt
    total_count = (
        len(dataset.problems)
        * prompts_per_problem
        * len(config.all_conditions)
        * len(config.layouts)
    )
    finished_count = 0
    tasks = {}
    for layout, example_set, repeat_index, has_examples in product(
        config.layouts, example_sets, repeat_indices, (True, False)
    ):
        # Prompts that are built together have the same examples. Only a positive control may have
        # none, and is then built alone.
        conditions = [
            condition
            for condition in config.all_conditions
            if condition.has_examples == has_examples
        ]
        task_settings = replace(
            _choose_draw_settings(config, settings, example_set.draw, repeat_index),
            layout=layout,
            examples=example_set.examples if has_examples else (),
        )
        problems = example_set.select_problems(dataset.problems)
        for task in build_checked_prompts(
            problems, conditions, task_settings, model, max_gen_toks=config.max_gen_toks
        ):
            task_name = config.task_name(
                dataset.name, task.condition.name, task.layout, task.draw, task.sample_number
            )
            tasks[task_name] = task
            finished_count += len(problems)
            advance(finished_count, total_count)
    return tasks


def _choose_draw_settings(
    config: RunConfig, settings: PromptSettings, draw: int, repeat_index: int
) -> PromptSettings:
    """The settings of the prompts with one draw of examples, or of one sample with this draw.

    Args:
        config: The config.
        settings: The settings that all prompts share.
        draw: The number of the draw.
        repeat_index: The index of the sample among those of this draw.
    """
    # several draws are numbered from 1, and a single draw has the number 0
    draw_index = max(draw - 1, 0)
    instruction = config.instruction
    if config.fewshot and config.fewshot.instructions:
        instruction = config.fewshot.instructions[draw_index]
    sample_number = 0
    if config.has_fresh_samples:
        # in the order of `_index_sample`, but from 1
        sample_number = repeat_index * config.draws + draw_index + 1
    return replace(settings, instruction=instruction, draw=draw, sample_number=sample_number)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One completion to generate.

    Attributes:
        task: The task's name in lm-eval, as in `PlanRow.task_name`. It is called as in the
            journal, into which it is copied.
        problem_id: The id of the problem.
        sample_index: The index of the sample of this problem, over all draws of examples.
        replicate: 0, and 1 in the repeat run.
        duplicate_number: The number of earlier requests of the run with the same prompt under other
            conditions.
        seed: The seed of the sample; None if nothing is drawn at random.
        prompt: The text of the prompt, with the template.
        prompt_token_ids: The token ids that the engine gets; None if the tokenizer is unknown.
        prompt_sha256: Hash of the text, as in lm-eval's sample logs.
        prompt_token_sha256: Hash of the token ids; None if they are unknown.
        sampling: The effective parameters.
        intervention: The changes inside the model, such as changes of its attention.
        query_sets: Sets of queries over which recorded attention is summed: 1 for each token of the
            set, 0 for other tokens. In the first two sets a query's attention to its own token
            does not count. None: nothing is recorded.
        turns: The messages, for a chat API, which takes no templated text.
        answers: The answers whose log-probability is measured; see `BuiltPrompt`.
        other_answer_count: The number of those that are not accepted.
        scored_tokens: The number of tokens at the prompt's end whose log-probability is requested.
        answer_index: The index of the answer that they are.
    """

    task: str
    problem_id: str
    sample_index: int = 0
    replicate: int = 0
    duplicate_number: int = 0
    seed: int | None = None
    prompt: str
    prompt_token_ids: tuple[int, ...] | None
    prompt_sha256: str
    prompt_token_sha256: str | None
    sampling: Sampling
    intervention: list[ResolvedChange] | None = None
    query_sets: Sequence[Sequence[int]] | None = None
    turns: tuple[dict[str, str], ...] | None = None
    answers: tuple[AnswerTokens, ...] = ()
    other_answer_count: int = 0
    scored_tokens: int = 0
    answer_index: int = 0

    def split_by_answer(self) -> list[Request]:
        """The requests to send: one for each answer, which then ends the prompt."""
        if not self.answers:
            return [self]
        prompt_ids = self.prompt_token_ids or ()
        return [
            replace(
                self,
                prompt_token_ids=(*prompt_ids, *label_ids, *answer_ids),
                scored_tokens=len(answer_ids),
                answer_index=index,
            )
            for index, (label_ids, answer_ids) in enumerate(self.answers)
        ]


def make_requests(plan: Plan, sampling: Sampling) -> Iterator[Request]:
    """Yield all requests in the order of their scheduling.

    The first sample of every problem comes before any second sample, and the conditions of a
    problem are neighbours: a run that is stopped early has all comparisons, with fewer samples or
    problems. The draws of examples follow one another, so that an engine can reuse the beginning of
    its prompts. The repeat run is last, in another order, so that its prompts share batches with
    other prompts than the first time.
    """
    config = plan.config
    is_seeded = config.model.takes_seeds and not sampling.is_greedy
    for replicate in range(config.replicates):
        count_by_content = Counter[object]()
        for repeat_index, (task_name, task, problem, prompt) in product(
            range(config.repeats_per_prompt), _order_rows(plan, replicate)
        ):
            sample_index = _index_sample(task, repeat_index, config.draws)
            seed = sample_seed(config.seed, problem.id, sample_index, replicate)
            is_chat_api = task.layout is Layout.CHAT and config.model.applies_own_template
            # Engines may answer equal requests differently. So equal requests are numbered, and
            # each has a key of its own.
            request_content = (
                sample_index,
                problem.id,
                prompt.prompt_token_sha256 or (prompt.prompt_sha256, task.layout),
                hash_json(prompt.intervention),
            )
            yield Request(
                task=task_name,
                problem_id=problem.id,
                sample_index=sample_index,
                replicate=replicate,
                duplicate_number=count_by_content[request_content],
                seed=seed if is_seeded else None,
                prompt=prompt.text,
                prompt_token_ids=prompt.token_ids,
                prompt_sha256=prompt.prompt_sha256,
                prompt_token_sha256=prompt.prompt_token_sha256,
                sampling=sampling,
                intervention=prompt.intervention,
                turns=tuple(prompt.requested_prompt.messages) if is_chat_api else None,
                answers=prompt.answer_tokens,
                other_answer_count=len(prompt.other_answers),
            )
            count_by_content[request_content] += 1


def _index_sample(task: ConditionPrompts, repeat_index: int, draw_count: int) -> int:
    """The index of a sample among all samples of its problem.

    Repeat r (from 0) of draw d (from 0) has the index r x `draw_count` + d. So further repeats
    leave the indices of the first ones unchanged: with 8 draws these are 0 to 7.
    """
    # A prompt of a single sample has the sample's number, from 1 over all draws. It is 0 if samples
    # share a prompt.
    if task.sample_number:
        return task.sample_number - 1
    # several draws are numbered from 1, and a single draw has the number 0
    return repeat_index * draw_count + max(task.draw - 1, 0)


def _order_rows(plan: Plan, replicate: int) -> list[PlanRow]:
    """The prompts of the run, or of the repeat run, in the order of their requests."""
    rows = [row for row in plan.rows if plan.count_replicates(row.task) > replicate]
    # The sort keeps the order of rows with the same sample and draw, so the conditions of a problem
    # stay neighbours.
    rows.sort(key=lambda row: (row.task.sample_number, row.task.draw))
    if replicate:
        random.Random(f"{plan.config.seed}:{replicate}").shuffle(rows)
    return rows


def sample_key(request: Request, setting_sha256: str) -> str:
    """Cache key: two requests with the same key give interchangeable samples.

    It covers everything that can change a sample: the prompt's tokens, but neither the condition's
    name nor the grader.

    Args:
        request: The request.
        setting_sha256: The hash of the values that all samples of a run share, from
            `records.Identity.hash_setting`.
    """
    return hash_json(
        (
            setting_sha256,
            request.prompt_token_sha256 or (request.prompt_sha256, request.turns),
            request.sampling.vllm_arguments(),
            request.intervention,
            request.seed,
            request.problem_id,
            request.sample_index,
            request.replicate,
            request.duplicate_number,
            *request.answers,
        )
    )


def hash_json(value: Any) -> str:
    """SHA-256 of a value as JSON. The order of keys does not matter."""
    return hash_text(json.dumps(value, sort_keys=True))


def group_name(kind: str | None, name: str) -> str:
    """The name of a condition where all reference conditions of a kind are one group."""
    if kind is None:
        return name
    # a run has at most one positive control, but several other texts
    return kind if kind == POSITIVE_CONTROL else f"{kind}s"
