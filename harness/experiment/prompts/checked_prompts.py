"""The prompts of a condition, built once, whose tokens are checked.

Two guarantees are checked for every prompt. First, the filler has exactly its stated number of
tokens, and shares none of them with other text: otherwise the condition is not what its name says.
Second, the problem has the same token ids as without a filler: otherwise two conditions differ in
more than the filler. A filler that is blank or states no length cannot keep the first guarantee,
and what its prompts have is reported instead. Each prompt is built once: the checked prompts are
run.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from harness.constants import MAX_GEN_TOKS
from harness.errors import ConfigError, PromptMismatchError
from harness.experiment.conditions import Condition, UnitCondition
from harness.experiment.intervention_settings import find_gap, resolve_interventions
from harness.experiment.problems import Problem
from harness.experiment.prompts.built_prompts import (
    AnswerTokens,
    BuiltPrompt,
    find_parts,
    tokenize_prompt,
)
from harness.experiment.prompts.chat_template import has_system_turn
from harness.experiment.prompts.prompt import Layout, PromptSettings, build_prompt
from harness.experiment.prompts.tokenizer import ModelTokenizer, fit_filler
from harness.reasoning_markers import find_open_reasoning

BOX_LABEL = "\\boxed{"
"""The label of an answer in a box."""
# Remarks on gold answers whose log-probability is measured. In a note, the number of these answers
# stands before the remark: "3 of 20 gold answers merge with their label ...".
MERGED_REMARK = (
    "merge with their label, or one of their other answers does: another spelling is scored"
)
OTHER_LENGTH_REMARK = (
    "are compared with answers of another number of tokens, as too few have the same"
)


@dataclass(frozen=True, kw_only=True)
class ConditionPrompts:
    """The prompts of one condition in one layout, and the guarantees that they break.

    Attributes:
        condition: The condition.
        layout: The layout.
        problems: The problems.
        prompts: One prompt for each problem, in order.
        notes: One sentence for each guarantee that this filler or layout cannot keep. Empty if the
            tokenizer is unknown.
        draw: The number of the draw of examples, from 1; 0 if there is at most one draw.
        sample_number: The number of the only sample with these prompts; see `PromptSettings`.
    """

    condition: Condition
    layout: Layout
    problems: tuple[Problem, ...]
    prompts: tuple[BuiltPrompt, ...]
    notes: tuple[str, ...] = ()
    draw: int = 0
    sample_number: int = 0

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each prompt; empty if the tokenizer is unknown."""
        return [len(prompt.token_ids) for prompt in self.prompts if prompt.token_ids is not None]


def build_checked_prompts(
    problems: Sequence[Problem],
    conditions: Iterable[Condition],
    settings: PromptSettings,
    model_tokenizer: ModelTokenizer | None,
    *,
    max_gen_toks: int = MAX_GEN_TOKS,
) -> Iterator[ConditionPrompts]:
    """Build every prompt of each condition, and refuse those that break a guarantee.

    Args:
        problems: The problems.
        conditions: The conditions.
        settings: What the prompts share. The layout `as_published` may break the
            guarantees, since it reproduces the authors' string.
        model_tokenizer: The tokenizer and the context length. None: they are unknown, and nothing
            is checked.
        max_gen_toks: Tokens that must fit into the context after the longest prompt.

    Raises:
        ConfigError: a filler needs a tokenizer, or does not exist in this one.
        ModelError: the chat template is missing or fails.
        PromptMismatchError: a guarantee is broken, or a prompt and its completion do not fit into
            the context.
    """
    if model_tokenizer is not None:
        # a template that drops the system turn would drop the instruction
        settings = replace(
            settings,
            has_system_turn=has_system_turn(model_tokenizer.tokenizer, model_tokenizer.switches),
        )
    # only the first condition has notes on problems, because all conditions have the same problems
    problem_notes = (
        tuple(_note_control_tokens([*problems, *settings.examples], model_tokenizer))
        if model_tokenizer
        else ()
    )
    build_condition = partial(
        _build_prompts, problems, settings=settings, model_tokenizer=model_tokenizer
    )
    # conditions that differ only in their filler share their prompts without a filler
    build_unfilled = cache(build_condition)
    for condition in conditions:
        unfilled_prompts = build_unfilled(condition.without_filler())
        built_prompts = ConditionPrompts(
            condition=condition,
            layout=settings.layout,
            problems=tuple(problems),
            prompts=build_condition(condition) if condition.filler_key else unfilled_prompts,
            notes=problem_notes,
            draw=settings.draw,
            sample_number=settings.sample_number,
        )
        # all further conditions are without them
        problem_notes = ()
        # without a tokenizer nothing can be checked
        if model_tokenizer is None:
            yield built_prompts
            continue
        checked_prompts = _check_prompts(built_prompts, unfilled_prompts, model_tokenizer)
        if settings.scored_form is not None:
            checked_prompts = _add_answers(checked_prompts, settings, model_tokenizer)
        # after the answers are added, because the longest one must fit too
        _refuse_long_prompts(checked_prompts, model_tokenizer, max_gen_toks)
        yield checked_prompts


def _build_prompts(
    problems: Sequence[Problem],
    condition: Condition,
    settings: PromptSettings,
    model_tokenizer: ModelTokenizer | None,
) -> tuple[BuiltPrompt, ...]:
    """Build and tokenize the prompts of one condition, one for each problem.

    Raises:
        ConfigError: the filler needs a tokenizer, or does not exist in this one.
    """
    fresh = getattr(condition, "fresh", None)
    sample_number = settings.sample_number if fresh == "sample" else 0
    # Prompts share a filler, unless it is fresh, that is, drawn anew for each problem or for each
    # sample of a problem.
    fit_text = cache(
        partial(fit_filler, condition, model_tokenizer.tokenizer if model_tokenizer else None)
    )
    prompts = []
    for problem in problems:
        try:
            filler_text = fit_text(f"{problem.id}:{sample_number}" if fresh else "")
        except ConfigError as error:
            raise ConfigError(f"condition {condition.name!r}: {error}") from None
        prompt = build_prompt(problem, condition, filler_text=filler_text, settings=settings)
        prompts.append(tokenize_prompt(prompt, settings, model_tokenizer))
    return tuple(prompts)


def _add_answers(
    condition_prompts: ConditionPrompts, settings: PromptSettings, model_tokenizer: ModelTokenizer
) -> ConditionPrompts:
    """Add the tokens of all scored answers to the prompts, and notes on merges and lengths.

    Args:
        condition_prompts: The prompts of a condition.
        settings: Their settings.
        model_tokenizer: The tokenizer.
    """
    prompts: list[BuiltPrompt] = []
    count_by_remark = Counter[str]()
    for problem, prompt in zip(condition_prompts.problems, condition_prompts.prompts, strict=True):
        label, end = _find_label_and_end(prompt, settings)
        other_answers = settings.other_answers.get(problem.id, ())
        answer_tokens = []
        remarks = set()
        for answer_text in map(str.strip, (problem.answer, *problem.alternatives, *other_answers)):
            tokens, is_merged = _tokenize_answer(label, answer_text + end, model_tokenizer)
            answer_tokens.append(tokens)
            if is_merged:
                remarks.add(MERGED_REMARK)
            # the first answer is the gold answer
            _, gold_ids = answer_tokens[0]
            if answer_text in other_answers and len(tokens.answer_ids) != len(gold_ids):
                remarks.add(OTHER_LENGTH_REMARK)
        count_by_remark.update(remarks)
        prompts.append(
            replace(prompt, answer_tokens=tuple(answer_tokens), other_answers=other_answers)
        )
    notes = [
        f"{count} of {len(prompts)} gold answers {remark}."
        for remark, count in count_by_remark.items()
    ]
    return replace(
        condition_prompts, prompts=tuple(prompts), notes=(*sorted(notes), *condition_prompts.notes)
    )


def _tokenize_answer(
    label: str, answer: str, model_tokenizer: ModelTokenizer
) -> tuple[AnswerTokens, bool]:
    r"""The tokens of a label and an answer, and whether the two would still merge.

    Label and answer are tokenized apart from the prompt and from each other, so the same tokens of
    the answer are scored under every condition. The answer's end is scored with it, because `3`
    also begins `36`.
    A tokenizer may merge the end of the label with the beginning of the answer, as Qwen's does with
    `{\`. Then another spelling is scored than the one that the model would write. If only the blank
    at the label's end is merged, it is scored with the answer instead.
    """
    encode = partial(model_tokenizer.tokenizer.encode, add_special_tokens=False)
    is_merged = encode(label + answer) != encode(label) + encode(answer)
    shortened_label = label.rstrip(" ") if is_merged else label
    blank = label[len(shortened_label) :]
    return AnswerTokens(encode(shortened_label), encode(blank + answer)), is_merged and not blank


def _find_label_and_end(prompt: BuiltPrompt, settings: PromptSettings) -> tuple[str, str]:
    """The label between prompt and answer, and the end of the answer's box or line after it.

    The label is empty if the prompt itself ends inside an open box. Otherwise it ends open
    reasoning, has the template's blank, and opens a box if the answer is scored in one.
    """
    # empty texts if the beginning of the answer has no box
    _, box_label, box_content = prompt.answer_prefix.rpartition(BOX_LABEL)
    # the answer's beginning has a box that is still open
    if box_label and "}" not in box_content:
        return "", "}"
    # a template may have a blank between question and answer
    label = prompt.requested_prompt.blank
    # open reasoning is ended first, because an answer inside it would be part of it
    _, end_marker = find_open_reasoning(prompt.text, settings.reasoning_markers)
    if end_marker:
        label = f"\n{end_marker}\n\n{label}"
    if settings.scored_form == "box":
        return label + BOX_LABEL, "}"
    return label, prompt.requested_prompt.answer_end


def _note_control_tokens(
    problems: Iterable[Problem], model_tokenizer: ModelTokenizer
) -> Iterator[str]:
    """Yield a note on each problem or example in whose text the tokenizer reads a control token."""
    added_tokens = model_tokenizer.tokenizer.added_tokens_decoder.values()
    token_patterns = [re.escape(token.content) for token in added_tokens if token.special]
    pattern = re.compile("|".join(token_patterns) or "$^")  # `$^` matches no text of a problem
    for problem in problems:
        if match := pattern.search(f"{problem.problem}\n{problem.choices}\n{problem.answer}"):
            yield f"problem {problem.id}: its text or answer has the control token {match[0]!r}."


def _check_prompts(
    condition_prompts: ConditionPrompts,
    unfilled_prompts: Sequence[BuiltPrompt],
    model_tokenizer: ModelTokenizer,
) -> ConditionPrompts:
    """Check the prompts of one condition, and add notes on faults, and interventions.

    `unfilled_prompts` are the prompts of the same problems without a filler.

    Raises:
        PromptMismatchError: a guarantee is broken, or an intervention does not fit a prompt.
    """
    condition = condition_prompts.condition
    notes = dict.fromkeys(condition_prompts.notes)  # a dict, because a set would lose the order
    prompts = []
    for problem, prompt, unfilled_prompt in zip(
        condition_prompts.problems, condition_prompts.prompts, unfilled_prompts, strict=True
    ):
        location = f"problem {problem.id}"
        for fault in _find_faults(location, condition, prompt, unfilled_prompt):
            if fault.is_violation and condition_prompts.layout is not Layout.AS_PUBLISHED:
                raise _make_error(condition_prompts, model_tokenizer, fault.sentence)
            notes[fault.sentence] = None
        if condition.intervention:
            positions_by_part = find_parts(prompt, unfilled_prompt)
            try:
                changes = resolve_interventions(
                    condition.intervention, positions_by_part, prompt.token_ids or ()
                )
            except PromptMismatchError as error:
                raise PromptMismatchError(f"{condition.name}, {location}: {error}") from None
            _, gap_size = find_gap(changes)
            # a prompt with a gap has no filler; only the positions after the gap are moved
            prompt = replace(unfilled_prompt if gap_size else prompt, intervention=changes)
        prompts.append(prompt)
    return replace(condition_prompts, prompts=tuple(prompts), notes=tuple(notes))


class Fault(NamedTuple):
    """A guarantee that a prompt breaks.

    Attributes:
        sentence: What is wrong.
        is_violation: Whether the prompt is refused. Otherwise, and in the layout `as_published`,
            the fault is only reported.
    """

    sentence: str
    is_violation: bool = True


def _find_faults(
    location: str, condition: Condition, prompt: BuiltPrompt, unfilled_prompt: BuiltPrompt
) -> Iterator[Fault]:
    """Yield the faults of a prompt; `unfilled_prompt` is the prompt without a filler.

    The guarantees are, in this order:

    - No token covers filler and other text. A violation if the condition promises an exact number.
    - The filler has the stated number of tokens. A violation as before.
    - The problem has the tokens of `unfilled_prompt`: always a violation.
    - The prompt has a filler if the condition has one: always a violation.
    """
    filler_tokens = prompt.filler_tokens
    is_exact = condition.filler_tokens is not None
    if prompt.straddling_tokens:
        yield Fault(
            f"{location}: {prompt.straddling_tokens} tokens cover both filler and neighbouring "
            "text.",
            is_violation=is_exact,
        )
    # a template may have the filler at several positions; 0 if no number is stated
    expected_count = (condition.stated_token_count or 0) * len(prompt.filler_ranges)
    if condition.stated_token_count is not None and filler_tokens != expected_count:
        reason = remedy = ""
        if isinstance(condition, UnitCondition):
            verb = "splits" if filler_tokens > expected_count else "merges"
            reason = f"the tokenizer {verb} the unit {condition.unit!r}: "
        if is_exact:
            remedy = " To allow any number of tokens, write the filler as `text`."
        yield Fault(
            f"{reason}expected {expected_count} filler tokens, got {filler_tokens}.{remedy}",
            is_violation=is_exact,
        )
    if prompt.problem_token_ids != unfilled_prompt.problem_token_ids:
        roles = [segment.role for segment in prompt.requested_prompt.segments]
        examples_phrase = " or its examples'" if "demonstration" in roles else ""
        yield Fault(
            f"{location}: its{examples_phrase} token ids differ from those without a filler."
        )
    if condition.filler_key and not (filler_tokens or prompt.straddling_tokens):
        yield Fault(
            f"{location}: the filler is not in the prompt, perhaps because the template trims "
            "blanks."
        )


def _refuse_long_prompts(
    condition_prompts: ConditionPrompts, model_tokenizer: ModelTokenizer, max_gen_toks: int
) -> None:
    """Raise PromptMismatchError if the longest prompt and its completion exceed the context."""
    if model_tokenizer.context_length is None:
        return
    most_tokens = max((prompt.request_length for prompt in condition_prompts.prompts), default=0)
    excess = most_tokens + max_gen_toks - model_tokenizer.context_length
    if excess > 0:
        raise _make_error(
            condition_prompts,
            model_tokenizer,
            f"{most_tokens} tokens in the longest prompt and max_gen_toks {max_gen_toks} "
            f"exceed the context length of {model_tokenizer.context_length} by {excess}. Raise "
            "max_model_len, or lower max_gen_toks (for lm_eval in --metadata, such as "
            "'{\"max_gen_toks\": 64}').",
        )


def _make_error(
    condition_prompts: ConditionPrompts, model_tokenizer: ModelTokenizer, sentence: str
) -> PromptMismatchError:
    """The error with a sentence about a fault, which says whose prompts have it."""
    return PromptMismatchError(
        f"Condition {condition_prompts.condition.name!r}, layout {condition_prompts.layout}, "
        f"{model_tokenizer.name}: {sentence}"
    )
