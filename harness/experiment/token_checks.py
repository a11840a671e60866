"""Builds the prompts of a condition and checks their tokens.

Two facts are checked for every prompt. The filler has exactly its count of tokens, none of them shared with other text:
otherwise the condition is not the one named. The problem's token ids are those without a filler: otherwise two
conditions differ in more than the filler. A filler that states no count, or is blank, cannot keep the first: what its
prompts have is reported instead. Each prompt is built once, and the prompts that were checked are those that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.constants import BASELINE, MAX_GEN_TOKS, SEPARATOR
from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, Placement, named_conditions
from harness.experiment.fewshot_examples import Draw
from harness.experiment.intervention_settings import Intervention, Resolved, resolve
from harness.experiment.problems import Problem
from harness.experiment.prompt import Layout, Prompt, Role, build_prompt, hash_text
from harness.experiment.tokenizer import (
    ModelTokenizer,
    apply_chat_template,
    encode,
    find_segments,
    fit_filler,
    has_system_turn,
    hash_token_ids,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Spans = Sequence[tuple[Role, tuple[int, int]]]
"""Role of each segment, its first character in the text, and the one after its last."""
TOKEN_ROLES = (
    "template",
    "instruction",
    "separator",
    "filler",
    "problem",
    "completion",
    "demonstration",
    "format",
)
"""What a token can be part of. Traces store the index."""
FILLER, PROBLEM, DEMONSTRATION = map(TOKEN_ROLES.index, ("filler", "problem", "demonstration"))


@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltPrompt:
    """One prompt with its tokens, and how they lie over its segments.

    Attributes:
        prompt: Its segments and turns.
        text: The prompt as the model gets it, templated if the layout is `chat` and the tokenizer is known.
        answer_prefix: The beginning of the answer, in which the text ends.
        spans: Where the segments stand in the text, and fillers in the answer. What lies between them is template.
        token_ids: The ids of all tokens. None: the tokenizer is not known, and nothing was measured.
        offsets: The characters of each token: [token, first and one after the last].
        problem_token_ids: The ids of the tokens that cover any of the problem or of the examples before it.
        filler_tokens: Number of tokens that lie wholly within the filler.
        straddling: Number of tokens that cover filler and other text at once.
        filler_span: Positions of the first filler token and of the one after the last. None: no token is the filler's.
        intervention: What is done to the model while it answers.
    """

    prompt: Prompt
    text: str
    answer_prefix: str = ""
    spans: Spans = ()
    token_ids: tuple[int, ...] | None = None
    offsets: NDArray[np.int32] | None = None
    problem_token_ids: tuple[int, ...] = ()
    filler_tokens: int = 0
    straddling: int = 0
    filler_span: tuple[int, int] | None = None
    intervention: Resolved | None = None

    @cached_property
    def prompt_sha256(self) -> str:
        """SHA-256 of the text, as in lm-eval's sample logs."""
        return hash_text(self.text)

    @cached_property
    def prompt_token_sha256(self) -> str | None:
        """SHA-256 of the token ids. None: the tokenizer is not known."""
        return None if self.token_ids is None else hash_token_ids(self.token_ids)

    @property
    def fillers(self) -> list[tuple[int, int]]:
        """The characters of each filler in the text."""
        return [span for role, span in self.spans if role == "filler"]

    @property
    def token_roles(self) -> NDArray[np.int8]:
        """The role of each token, as an index into TOKEN_ROLES.

        A token that covers any of a filler is the filler's. Any other has the role of most of its visible characters,
        or of most blanks if it has no other.
        """
        assert self.offsets is not None  # the tokenizer is known
        covered = tokens_by_segment(self.text, self.spans, self.offsets)
        visible = tokens_by_segment(self.text, self.spans, self.offsets, visible=True)
        roles = np.where(visible.any(axis=1, keepdims=True), visible, covered).argmax(axis=1)
        return np.where(covered[:, FILLER], FILLER, roles).astype(np.int8)


def tokens_by_segment(
    text: str, spans: Spans, offsets: NDArray[np.int32], *, visible: bool = False
) -> NDArray[np.int64]:
    """How many characters of each role every token covers: [token, role], roles in the order of TOKEN_ROLES.

    Args:
        text: The prompt.
        spans: Where its segments stand.
        offsets: The characters of each token.
        visible: Whether blanks are not counted.
    """
    roles = np.zeros(len(text), np.int8)  # template
    for role, (start, end) in spans:
        roles[start:end] = TOKEN_ROLES.index(role)
    has_role = np.eye(len(TOKEN_ROLES), dtype=np.int32)[roles]
    if visible:
        has_role[[character.isspace() for character in text]] = 0
    counts = np.pad(has_role.cumsum(axis=0), ((1, 0), (0, 0)))
    starts, ends = offsets.T
    # some tokenizers give a blank token no width: it ends where its character does
    starts = np.where(starts < ends, starts, np.maximum(ends - 1, 0))
    return np.asarray(counts[ends] - counts[starts])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPrompts:
    """The prompts of one condition in one layout, and what is wrong with them.

    Attributes:
        condition: The condition.
        layout: The layout.
        problems: What is asked.
        prompts: One per problem, in the problems' order.
        violations: One sentence for each fact that does not hold. Empty if all hold, or if the tokenizer is not known.
        notes: The same of facts that this filler cannot keep.
        draw: Which draw of examples, from 1; 0 where there is one at most.
    """

    condition: Condition
    layout: Layout
    problems: tuple[Problem, ...]
    prompts: tuple[BuiltPrompt, ...]
    violations: tuple[str, ...]
    notes: tuple[str, ...] = ()
    draw: int = 0

    @property
    def lengths(self) -> list[int]:
        """Tokens of each prompt; empty if the tokenizer is not known."""
        return [len(prompt.token_ids) for prompt in self.prompts if prompt.token_ids is not None]


def build_checked_prompts(
    problems: Sequence[Problem],
    conditions: Iterable[Condition],
    layout: Layout,
    model: ModelTokenizer | None,
    *,
    max_gen_toks: int = MAX_GEN_TOKS,
    instruction: str | None = None,
    draw: Draw | None = None,
) -> list[ConditionPrompts]:
    """Build every prompt of the conditions in one layout, and refuse what breaks a guarantee.

    Args:
        problems: The problems.
        conditions: The conditions.
        layout: The layout of all prompts. `as_published` may break the guarantees, since it must be what it is.
        model: Its tokenizer and context; None where they are not known, and then nothing is checked.
        max_gen_toks: Tokens that must fit the context after the longest prompt.
        instruction: Another system prompt than the layout's own.
        draw: The examples before the question.

    Raises:
        ConfigError: a filler needs a tokenizer, or does not exist in this one.
        ModelError: the chat template is missing or fails.
        PromptMismatchError: a guarantee is broken, or a prompt and its completion do not fit the context.
    """
    tokenizer, switches = (model.tokenizer, model.switches) if model else (None, {})
    system_turn = has_system_turn(tokenizer, switches)

    def build(condition: Condition) -> tuple[BuiltPrompt, ...]:
        once = None if condition.fresh else fit_filler(condition, tokenizer)
        return tuple(
            measure(
                build_prompt(
                    problem.problem,
                    condition,
                    filler_text=fit_filler(condition, tokenizer, problem.id)
                    if once is None
                    else once,
                    layout=layout,
                    key=problem.id,
                    system_turn=system_turn,
                    instruction=instruction,
                    draw=draw,
                ),
                layout,
                tokenizer,
                switches=switches,
            )
            for problem in problems
        )

    plain = build(
        named_conditions()[BASELINE]
    )  # those of the baseline too, and what all others are compared with
    found, number = [], draw.number if draw else 0
    for condition in conditions:
        prompts = plain if condition.is_plain else build(condition)
        copies = 1 + len(draw.examples) if draw and condition.placement is Placement.EACH else 1
        faults = dict.fromkeys(
            fault
            for problem, got, without in zip(problems, prompts, plain, strict=True)
            if model is not None
            for fault in _find_faults(f"problem {problem.id}", condition, got, without, copies)
        )
        if condition.intervention and model is not None:
            prompts = tuple(
                _intervene(
                    condition.intervention, f"{condition.name}, problem {problem.id}", got, without
                )
                for problem, got, without in zip(problems, prompts, plain, strict=True)
            )
        violations, notes = (
            tuple(said for is_fatal, said in faults if is_fatal is fatal) for fatal in (True, False)
        )
        built = ConditionPrompts(
            condition=condition,
            layout=layout,
            problems=tuple(problems),
            prompts=prompts,
            violations=violations,
            notes=notes,
            draw=number,
        )
        if model is not None:
            _refuse(built, model, max_gen_toks)
        found.append(built)
    return found


def _intervene(
    change: Intervention, where: str, got: BuiltPrompt, plain: BuiltPrompt
) -> BuiltPrompt:
    """The prompt with what is done to the model: the one without a filler, where only the model is to see it."""
    with_filler, without = got.token_ids or (), plain.token_ids or ()
    found = resolve(change, where, with_filler=with_filler, without=without, filler=got.filler_span)
    return replace(plain if "phantom" in found else got, intervention=found)


def measure(
    prompt: Prompt,
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    switches: Mapping[str, Any] = MappingProxyType({}),
) -> BuiltPrompt:
    """Tokenize a prompt and lay the tokens over its segments.

    Args:
        prompt: The prompt. The beginning of its answer follows a separator where no template begins the answer, and
            ends a think block that the template opened.
        layout: How it becomes the model's input: `chat` by the model's template, else as it is.
        tokenizer: The model's. None: it is not known, and nothing is measured.
        switches: What the chat template is told; see `tokenizer.template_switches`.

    Raises:
        ModelError: the layout is `chat`, and the model has no chat template or the template fails.
        PromptMismatchError: the chat template changed or dropped a turn, so that it cannot be found again.
    """
    templated = tokenizer is not None and layout is Layout.CHAT
    asked = (
        apply_chat_template(tokenizer, prompt.messages, switches=switches)
        if templated
        else prompt.text
    )
    text = asked
    if prompt.answer:
        opened = asked.rstrip().endswith("<think>")
        text += ("" if layout is Layout.CHAT else SEPARATOR) + "\n</think>\n\n" * opened
    begun = len(text)
    text += "".join(segment.text for segment in prompt.answer)
    built = BuiltPrompt(prompt=prompt, text=text, answer_prefix=text[len(asked) :])
    if tokenizer is None:
        return built
    spans = find_segments(prompt, asked)
    for segment in prompt.answer:
        if segment.role == "filler":
            spans.append((segment.role, (begun, begun + len(segment.text))))
        begun += len(segment.text)
    return tokenize(built, spans, tokenizer)


def tokenize(built: BuiltPrompt, spans: Spans, tokenizer: PreTrainedTokenizerBase) -> BuiltPrompt:
    """The prompt with its tokens, and with what the checks need of them."""
    token_ids, pairs = encode(built.text, tokenizer)
    offsets = np.array(pairs, np.int32).reshape(-1, 2)
    covered = tokens_by_segment(built.text, spans, offsets)
    widths = offsets[:, 1] - offsets[:, 0]
    has_width, filler = widths > 0, covered[:, FILLER]
    inside = np.flatnonzero(has_width & (filler == widths)).tolist()
    in_problem = np.flatnonzero(has_width & (covered[:, PROBLEM] + covered[:, DEMONSTRATION] > 0))
    return replace(
        built,
        spans=tuple(spans),
        token_ids=token_ids,
        offsets=offsets,
        problem_token_ids=tuple(token_ids[index] for index in in_problem),
        filler_tokens=len(inside),
        straddling=int((has_width & (filler > 0) & (filler < widths)).sum()),
        filler_span=(inside[0], inside[-1] + 1) if inside else None,
    )


def _find_faults(
    where: str, condition: Condition, got: BuiltPrompt, without: BuiltPrompt, copies: int
) -> Iterator[tuple[bool, str]]:
    """What is wrong with a prompt, beside the one without a filler: whether it is a violation, and why.

    The filler stands in it so many times.
    """
    count, unit = condition.tokens and condition.tokens * copies, condition.unit
    if got.straddling:
        yield (
            condition.exact,
            f"{where}: {got.straddling} tokens cover filler and neighbouring text at once.",
        )
    if count is not None and got.filler_tokens != count:
        does = "splits" if got.filler_tokens > count else "merges"
        why = "" if unit is None else f"the tokenizer {does} the unit {unit!r}: "
        yield condition.exact, f"{why}expected {count} filler tokens, got {got.filler_tokens}."
    if got.problem_token_ids != without.problem_token_ids:
        also = (
            " or its examples'"
            if any(one.role == "demonstration" for one in got.prompt.segments)
            else ""
        )
        yield True, f"{where}: its{also} token ids differ from those without a filler."
    if not (condition.exact or got.filler_tokens or got.straddling):
        yield True, f"{where}: the filler is not in the prompt. Templates trim blanks."


def _refuse(built: ConditionPrompts, model: ModelTokenizer, max_gen_toks: int) -> None:
    """Raise PromptMismatchError for the first violation, or if a prompt and its completion do not fit the context."""
    fault = next(iter(built.violations), "") if built.layout is not Layout.AS_PUBLISHED else ""
    longest = max(built.lengths, default=0)
    if (
        not fault
        and model.context_length is not None
        and longest + max_gen_toks > model.context_length
    ):
        fault = (
            f"{longest} tokens in the longest prompt and max_gen_toks {max_gen_toks} are over the context of "
            f"{model.context_length}."
        )
    if fault:
        raise PromptMismatchError(
            f"Condition {built.condition.name!r}, layout {built.layout}, {model.name}: {fault}"
        )
