"""Builds the prompts of a condition and checks their tokens.

Two facts are checked for every prompt. The filler has exactly its count of tokens, none of them shared with other text:
otherwise the condition is not the one named. The problem's token ids are those without a filler: otherwise two
conditions differ in more than the filler. A filler that states no count, or is blank, cannot keep the first: what its
prompts have is reported instead. Each prompt is built once, and the prompts that were checked are those that run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.constants import SEPARATOR
from harness.errors import PromptMismatchError
from harness.experiment.chat_template import find_segments, has_system_turn, render
from harness.experiment.conditions import BASELINE, Condition, named_condition
from harness.experiment.prompt import Layout, Prompt, build_prompt, hash_text
from harness.experiment.tokenizer import encode, fit_filler, hash_token_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class BuiltPrompt:
    """One prompt with its tokens, and how they lie over its segments.

    Attributes:
        prompt: Its segments and turns.
        text: The prompt as the model gets it, templated if the layout is `chat` and the tokenizer is known.
        prompt_token_ids: The ids of all tokens; empty if the tokenizer is not known.
        problem_token_ids: The ids of the tokens that cover any of the problem.
        filler_tokens: Number of tokens that lie wholly within the filler.
        straddling: Number of tokens that cover filler and other text at once.
        merged: Number of tokens within the filler that cover more than one unit.
        filler_span: Positions of the first filler token and of the one after the last. None: no token is the filler's.
        answer_prefix: The beginning of the answer, in which the text ends.
    """

    prompt: Prompt
    text: str
    answer_prefix: str = ""
    prompt_token_ids: tuple[int, ...] = ()
    problem_token_ids: tuple[int, ...] = ()
    filler_tokens: int = 0
    straddling: int = 0
    merged: int = 0
    filler_span: tuple[int, int] | None = None

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The ids of all tokens. None: the tokenizer is not known."""
        return self.prompt_token_ids or None

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the text, as in lm-eval's sample logs."""
        return hash_text(self.text)

    @cached_property
    def token_sha256(self) -> str | None:
        """SHA-256 of the token ids. None: the tokenizer is not known."""
        return hash_token_ids(self.prompt_token_ids) if self.prompt_token_ids else None


def measure(
    prompt: Prompt,
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    unit: str | None = None,
    switches: Mapping[str, Any] = MappingProxyType({}),
) -> BuiltPrompt:
    """Tokenize a prompt and lay the tokens over its segments.

    Args:
        prompt: The prompt. The beginning of its answer follows a separator where no template begins the answer, and
            ends a think block that the template opened.
        layout: How it becomes the model's input.
        tokenizer: The model's. None: it is not known, and nothing is measured.
        unit: The text that the filler repeats, if it repeats one.
        switches: What the chat template is told; see `chat_template.template_switches`.

    Raises:
        ModelError: the layout is `chat`, and the model has no chat template or the template fails.
        PromptMismatchError: the chat template changed or dropped a turn, so that it cannot be found again.
    """
    asked = prompt.text if tokenizer is None else render(prompt, layout, tokenizer, switches)
    text = asked
    if prompt.answer:
        opened = asked.rstrip().endswith("<think>")
        text += ("" if layout is Layout.CHAT else SEPARATOR) + "\n</think>\n\n" * opened
    spans = [] if tokenizer is None else find_segments(prompt, asked)
    for segment in prompt.answer:
        spans.append((segment.role, (len(text), len(text) + len(segment.text))))
        text += segment.text
    answer_prefix = text[len(asked) :]
    if tokenizer is None:
        return BuiltPrompt(prompt=prompt, text=text, answer_prefix=answer_prefix)
    token_ids, offsets = encode(text, tokenizer)
    fillers = [span for role, span in spans if role == "filler"]
    problems = [span for role, span in spans if role == "problem"]
    inside, problem_ids, straddling, merged = [], [], 0, 0
    for index, (start, end) in enumerate(offsets):
        if start == end:
            continue
        for low, high in fillers:
            if low <= start and end <= high:
                inside.append(index)
                merged += unit is not None and text[start:end].count(unit) > 1
            elif start < high and low < end:
                straddling += 1
        if any(start < high and low < end for low, high in problems):
            problem_ids.append(token_ids[index])
    return BuiltPrompt(
        prompt=prompt,
        text=text,
        answer_prefix=answer_prefix,
        prompt_token_ids=token_ids,
        problem_token_ids=tuple(problem_ids),
        filler_tokens=len(inside),
        straddling=straddling,
        merged=merged,
        filler_span=(inside[0], inside[-1] + 1) if inside else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPrompts:
    """The prompts of one condition in one layout, and what is wrong with them.

    Attributes:
        condition: The condition.
        layout: The layout.
        prompts: One per problem, in the problems' order.
        same_problem_ids: Number of prompts whose problem has the same token ids as without a filler.
        violations: One sentence for each fact that does not hold. Empty if all hold, or if the tokenizer is not known.
        notes: The same of facts that this filler cannot keep.
    """

    condition: Condition
    layout: Layout
    prompts: tuple[BuiltPrompt, ...]
    same_problem_ids: int
    violations: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def reports(self) -> list[BuiltPrompt]:
        """The prompts whose tokens were measured: all, or none if the tokenizer is not known."""
        return [prompt for prompt in self.prompts if prompt.prompt_token_ids]

    def refuse(self, model: str) -> None:
        """Raise PromptMismatchError with the first violation, unless the layout is `as_published`."""
        if self.violations and self.layout is not Layout.AS_PUBLISHED:
            raise PromptMismatchError(
                f"Condition {self.condition.name!r}, layout {self.layout}, {model}: {self.violations[0]}"
            )


class PromptBuilder:
    """Builds and checks the prompts of one layout, condition by condition.

    The prompts without a filler are built once. Every condition is compared with them, and they are those of `wo`.

    Args:
        problems: The problems' texts by id.
        layout: The layout of all prompts.
        tokenizer: The model's. Without one the prompts are plain text, and nothing is checked.
        instruction: A system prompt that replaces the layout's own.
        switches: What the chat template is told; see `chat_template.template_switches`.
    """

    def __init__(
        self,
        problems: Mapping[str, str],
        layout: Layout,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        instruction: str | None = None,
        switches: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._problems = problems
        self._layout = layout
        self._tokenizer = tokenizer
        self._instruction = instruction
        self._switches = switches
        self._system_turn = has_system_turn(tokenizer, switches)

    def build(self, condition: Condition) -> ConditionPrompts:
        """Build the condition's prompts, and compare the tokens of each with those of the prompt without a filler.

        Raises:
            ConfigError: the filler needs a tokenizer, or does not exist in this one.
            ModelError: the chat template is missing or fails.
            PromptMismatchError: the chat template changed or dropped a turn.
        """
        prompts = self._plain if condition.is_plain else self._build_all(condition)
        same = 0
        violations: list[str] = []
        notes: list[str] = []
        exact = condition.exact
        if self._tokenizer is not None:
            for problem_id, got, plain in zip(self._problems, prompts, self._plain, strict=True):
                same += got.problem_token_ids == plain.problem_token_ids
                (violations if exact else notes).extend(_find_inexact(problem_id, condition, got))
                if got.problem_token_ids != plain.problem_token_ids:
                    violations.append(f"problem {problem_id}: its token ids differ from those without a filler.")
                if not exact and not got.filler_tokens and not got.straddling:
                    violations.append(f"problem {problem_id}: the filler is not in the prompt. Templates trim blanks.")
        return ConditionPrompts(
            condition=condition,
            layout=self._layout,
            prompts=prompts,
            same_problem_ids=same,
            violations=tuple(dict.fromkeys(violations)),
            notes=tuple(dict.fromkeys(notes)),
        )

    @cached_property
    def _plain(self) -> tuple[BuiltPrompt, ...]:
        return self._build_all(named_condition(BASELINE))

    def _build_all(self, condition: Condition) -> tuple[BuiltPrompt, ...]:
        filler_text = "" if condition.fresh else fit_filler(condition, self._tokenizer)
        prompts = []
        for problem_id, problem in self._problems.items():
            prompt = build_prompt(
                problem,
                condition,
                filler_text=fit_filler(condition, self._tokenizer, problem_id) if condition.fresh else filler_text,
                layout=self._layout,
                key=problem_id,
                system_turn=self._system_turn,
                instruction=self._instruction,
            )
            prompts.append(
                measure(
                    prompt,
                    self._layout,
                    self._tokenizer,
                    unit=condition.unit,
                    switches=self._switches,
                )
            )
        return tuple(prompts)


def check_context(built: ConditionPrompts, context_length: int, generated: int) -> None:
    """Raise PromptMismatchError if the longest prompt and its completion do not fit the context."""
    longest = max(len(report.prompt_token_ids) for report in built.reports)
    if longest + generated > context_length:
        raise PromptMismatchError(
            f"Condition {built.condition.name!r}, layout {built.layout}: the longest prompt has {longest} tokens, and "
            f"with {generated} generated ones (max_gen_toks) that is {longest + generated}, over the context of "
            f"{context_length}."
        )


def _find_inexact(problem_id: str, condition: Condition, got: BuiltPrompt) -> Iterator[str]:
    """One sentence for each way in which a prompt's filler does not have exactly its count of tokens."""
    count = condition.tokens
    if got.straddling:
        yield f"problem {problem_id}: {got.straddling} tokens cover filler and neighbouring text at once."
    if count is not None and got.filler_tokens != count:
        yield _explain_count(got, count, condition.unit)


def _explain_count(got: BuiltPrompt, count: int, unit: str | None) -> str:
    """Why a filler does not have `count` tokens."""
    why = ""
    if unit is not None and got.filler_tokens > count:
        why = f"the tokenizer splits the unit {unit!r}: "
    elif got.merged or got.filler_tokens < count:
        why = f"the tokenizer merges units ({got.merged} tokens cover several, {got.straddling} reach out): "
    return f"{why}expected {count} filler tokens, got {got.filler_tokens}."
