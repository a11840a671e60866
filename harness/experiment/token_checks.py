"""Builds the prompts of a condition and checks their tokens.

Two guarantees are checked for every prompt. First, the filler has exactly its stated number of
tokens, and shares none of them with other text: otherwise the condition is not what its name says.
Second, the problem has the same token ids as without a filler: otherwise two conditions differ in
more than the filler. A filler that is blank or states no length cannot keep the first guarantee,
and what its prompts have is reported instead. Each prompt is built once: the checked prompts are
run.
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
from harness.experiment.conditions import Condition, named_conditions
from harness.experiment.intervention_settings import Intervention, Resolved
from harness.experiment.problems import Problem
from harness.experiment.prompt import (
    Layout,
    Prompt,
    PromptSettings,
    Role,
    build_prompt,
    hash_text,
    join_texts,
)
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
"""The role of each segment, and its half-open range of characters in the text."""
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
"""The roles of tokens. Traces store the index."""
FILLER, PROBLEM, DEMONSTRATION = map(TOKEN_ROLES.index, ("filler", "problem", "demonstration"))


@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltPrompt:
    """One prompt with its tokens and their positions in its segments.

    Attributes:
        prompt: The segments and turns.
        text: The prompt as the model gets it: templated if the layout is `chat` and the tokenizer
            is known.
        answer_prefix: The beginning of the answer, which is the end of the text.
        spans: The positions of the segments in the text, and of fillers in the answer. The text
            between them is template.
        token_ids: The ids of all tokens. None: the tokenizer is unknown, and nothing is measured.
        offsets: The half-open range of characters of each token: [token, 2].
        problem_token_ids: The ids of the tokens that cover any of the problem or of the examples.
        filler_tokens: Number of tokens inside the filler.
        straddling: Number of tokens that cover both filler and other text.
        filler_span: The half-open range of positions from the first to the last filler token. None:
            there is no filler token.
        intervention: The intervention while the model answers.
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
        """SHA-256 of the token ids. None: the tokenizer is unknown."""
        return None if self.token_ids is None else hash_token_ids(self.token_ids)

    @property
    def fillers(self) -> list[tuple[int, int]]:
        """The half-open range of characters of each filler."""
        return [span for role, span in self.spans if role == "filler"]

    @property
    def token_roles(self) -> NDArray[np.int8]:
        """The role of each token, as an index into TOKEN_ROLES.

        A token that covers any of a filler is a filler token. Any other token has the role of most
        of its visible characters, or of most of its blanks if it has only blanks.
        """
        assert self.offsets is not None  # the tokenizer is known
        characters = count_characters(self.text, self.spans, self.offsets)
        visible = count_characters(self.text, self.spans, self.offsets, with_blanks=False)
        has_visible = visible.any(axis=1, keepdims=True)
        roles = np.where(has_visible, visible, characters).argmax(axis=1)
        return np.where(characters[:, FILLER], FILLER, roles).astype(np.int8)


def count_characters(
    text: str, spans: Spans, offsets: NDArray[np.int32], *, with_blanks: bool = True
) -> NDArray[np.int64]:
    """Count the characters of each role in every token: [token, role].

    Args:
        text: The prompt.
        spans: The positions of its segments.
        offsets: The characters of each token.
        with_blanks: Whether blanks count.
    """
    roles = np.zeros(len(text), np.int8)  # template
    for role, (start, end) in spans:
        roles[start:end] = TOKEN_ROLES.index(role)
    has_role = np.eye(len(TOKEN_ROLES), dtype=np.int32)[roles]
    if not with_blanks:
        has_role[[character.isspace() for character in text]] = 0
    totals = np.pad(has_role.cumsum(axis=0), ((1, 0), (0, 0)))
    starts, ends = offsets.T
    # some tokenizers give a blank token no width: its end is the end of the blank
    starts = np.where(starts < ends, starts, np.maximum(ends - 1, 0))
    return np.asarray(totals[ends] - totals[starts])


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPrompts:
    """The prompts of one condition in one layout, and the guarantees that they break.

    Attributes:
        condition: The condition.
        layout: The layout.
        problems: The problems.
        prompts: One prompt for each problem, in order.
        violations: One sentence for each broken guarantee. Empty if the tokenizer is unknown.
        notes: One sentence for each guarantee that this filler cannot keep.
        draw: The number of the draw of examples, from 1; 0 if there is at most one draw.
    """

    condition: Condition
    layout: Layout
    problems: tuple[Problem, ...]
    prompts: tuple[BuiltPrompt, ...]
    violations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    draw: int = 0

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each prompt; empty if the tokenizer is unknown."""
        return [len(prompt.token_ids) for prompt in self.prompts if prompt.token_ids is not None]


def build_checked_prompts(
    problems: Sequence[Problem],
    conditions: Iterable[Condition],
    settings: PromptSettings,
    model: ModelTokenizer | None,
    *,
    max_gen_toks: int = MAX_GEN_TOKS,
) -> list[ConditionPrompts]:
    """Build every prompt of the conditions, and refuse those that break a guarantee.

    Args:
        problems: The problems.
        conditions: The conditions.
        settings: Layout, instruction and examples. The layout `as_published` may break the
            guarantees, since it reproduces the authors' string.
        model: The tokenizer and the context length. None: they are unknown, and nothing is checked.
        max_gen_toks: Tokens that must fit into the context after the longest prompt.

    Raises:
        ConfigError: a filler needs a tokenizer, or does not exist in this one.
        ModelError: the chat template is missing or fails.
        PromptMismatchError: a guarantee is broken, or a prompt and its completion do not fit into
            the context.
    """
    if model is not None:
        accepts_system = has_system_turn(model.tokenizer, model.switches)
        settings = replace(settings, has_system_turn=accepts_system)
    baseline_prompts = _build_prompts(problems, named_conditions()[BASELINE], settings, model)
    arms = []
    for condition in conditions:
        prompts = baseline_prompts
        if not condition.is_plain:
            prompts = _build_prompts(problems, condition, settings, model)
        arm = ConditionPrompts(
            condition=condition,
            layout=settings.layout,
            problems=tuple(problems),
            prompts=prompts,
            draw=settings.draw.number if settings.draw else 0,
        )
        if model is not None:
            arm = _check_prompts(arm, baseline_prompts)
            _refuse_faults(arm, model, max_gen_toks)
        arms.append(arm)
    return arms


def _build_prompts(
    problems: Iterable[Problem],
    condition: Condition,
    settings: PromptSettings,
    model: ModelTokenizer | None,
) -> tuple[BuiltPrompt, ...]:
    """Build and tokenize the prompts of one condition."""
    tokenizer, switches = (model.tokenizer, model.switches) if model else (None, {})
    filler_text = "" if condition.fresh else fit_filler(condition, tokenizer)
    prompts = []
    for problem in problems:
        if condition.fresh:
            filler_text = fit_filler(condition, tokenizer, problem.id)
        prompt = build_prompt(
            problem.problem,
            condition,
            filler_text=filler_text,
            key=problem.id,
            settings=settings,
        )
        prompts.append(measure_prompt(prompt, settings.layout, tokenizer, switches=switches))
    return tuple(prompts)


def _check_prompts(
    arm: ConditionPrompts, baseline_prompts: Sequence[BuiltPrompt]
) -> ConditionPrompts:
    """Add the broken guarantees and the interventions to the prompts of one condition."""
    condition = arm.condition
    faults: dict[tuple[bool, str], None] = {}  # a set would lose the order
    prompts = []
    for problem, prompt, baseline in zip(arm.problems, arm.prompts, baseline_prompts, strict=True):
        location = f"problem {problem.id}"
        faults |= dict.fromkeys(_find_faults(location, condition, prompt, baseline))
        if condition.intervention:
            location = f"{condition.name}, {location}"
            prompt = _add_intervention(condition.intervention, location, prompt, baseline)
        prompts.append(prompt)
    return replace(
        arm,
        prompts=tuple(prompts),
        violations=tuple(text for is_violation, text in faults if is_violation),
        notes=tuple(text for is_violation, text in faults if not is_violation),
    )


def _add_intervention(
    intervention: Intervention, location: str, prompt: BuiltPrompt, baseline: BuiltPrompt
) -> BuiltPrompt:
    """Add the intervention to the prompt, or to the baseline's if only Layer 1 has the filler."""
    resolved = intervention.resolve(
        location, prompt.token_ids or (), baseline.token_ids or (), prompt.filler_span
    )
    return replace(baseline if "phantom" in resolved else prompt, intervention=resolved)


def measure_prompt(
    prompt: Prompt,
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    switches: Mapping[str, Any] = MappingProxyType({}),
) -> BuiltPrompt:
    """Tokenize a prompt, and find its segments in its tokens.

    Args:
        prompt: The prompt. Without a template a separator stands before the beginning of the
            answer. If the template opens a think block, it is closed there.
        layout: `chat` applies the model's template; all other layouts take the text as it is.
        tokenizer: The model's tokenizer. None: it is unknown, and nothing is measured.
        switches: The variables of the chat template; see `tokenizer.template_switches`.

    Raises:
        ModelError: the layout is `chat`, and the chat template is missing or fails.
        PromptMismatchError: the chat template changed or dropped a turn, so that it cannot be
            found.
    """
    question = prompt.text
    if tokenizer is not None and layout is Layout.CHAT:
        question = apply_chat_template(tokenizer, prompt.messages, switches=switches)
    text = question
    if prompt.answer:
        if layout is not Layout.CHAT:
            text += SEPARATOR
        if question.rstrip().endswith("<think>"):
            text += "\n</think>\n\n"
    position = len(text)
    text += join_texts(prompt.answer)
    built = BuiltPrompt(prompt=prompt, text=text, answer_prefix=text[len(question) :])
    if tokenizer is None:
        return built
    spans = find_segments(prompt, question)
    for segment in prompt.answer:
        end = position + len(segment.text)
        if segment.role == "filler":
            spans.append((segment.role, (position, end)))
        position = end
    return tokenize(built, spans, tokenizer)


def tokenize(built: BuiltPrompt, spans: Spans, tokenizer: PreTrainedTokenizerBase) -> BuiltPrompt:
    """Add to a prompt its tokens, and the numbers that the checks need."""
    token_ids, pairs = encode(built.text, tokenizer)
    offsets = np.array(pairs, np.int32).reshape(-1, 2)
    characters = count_characters(built.text, spans, offsets)
    filler = characters[:, FILLER]
    widths = offsets[:, 1] - offsets[:, 0]
    has_width = widths > 0
    inside = np.flatnonzero(has_width & (filler == widths)).tolist()
    straddling = has_width & (filler > 0) & (filler < widths)
    in_problem = has_width & (characters[:, [PROBLEM, DEMONSTRATION]].sum(axis=1) > 0)
    return replace(
        built,
        spans=tuple(spans),
        token_ids=token_ids,
        offsets=offsets,
        problem_token_ids=tuple(token_ids[index] for index in np.flatnonzero(in_problem)),
        filler_tokens=len(inside),
        straddling=int(straddling.sum()),
        filler_span=(inside[0], inside[-1] + 1) if inside else None,
    )


def _find_faults(
    location: str, condition: Condition, prompt: BuiltPrompt, baseline: BuiltPrompt
) -> Iterator[tuple[bool, str]]:
    """Find the broken guarantees of a prompt: whether each is a violation, and its sentence."""
    filler_tokens, unit = prompt.filler_tokens, condition.unit
    if prompt.straddling:
        yield (
            condition.is_exact,
            f"{location}: {prompt.straddling} tokens cover both filler and neighbouring text.",
        )
    if condition.tokens is not None:
        expected = condition.tokens * len(prompt.fillers)
        if filler_tokens != expected:
            verb = "splits" if filler_tokens > expected else "merges"
            reason = "" if unit is None else f"the tokenizer {verb} the unit {unit!r}: "
            yield (
                condition.is_exact,
                f"{reason}expected {expected} filler tokens, got {filler_tokens}.",
            )
    if prompt.problem_token_ids != baseline.problem_token_ids:
        roles = [segment.role for segment in prompt.prompt.segments]
        examples = " or its examples'" if "demonstration" in roles else ""
        yield True, f"{location}: its{examples} token ids differ from those without a filler."
    if not (condition.is_exact or filler_tokens or prompt.straddling):
        yield (
            True,
            f"{location}: the filler is not in the prompt, perhaps because the template trims blanks.",
        )


def _refuse_faults(arm: ConditionPrompts, model: ModelTokenizer, max_gen_toks: int) -> None:
    """Raise PromptMismatchError for the first violation, or if the context is too short."""
    longest, fault = max(arm.lengths, default=0), ""
    if arm.violations and arm.layout is not Layout.AS_PUBLISHED:
        fault = arm.violations[0]
    elif model.context_length is not None and longest + max_gen_toks > model.context_length:
        fault = (
            f"{longest} tokens in the longest prompt and max_gen_toks {max_gen_toks} "
            f"exceed the context length of {model.context_length}."
        )
    if fault:
        raise PromptMismatchError(
            f"Condition {arm.condition.name!r}, layout {arm.layout}, {model.name}: {fault}"
        )
