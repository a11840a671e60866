"""Builds the prompts of a condition and checks their tokens.

Two facts are checked for every prompt. The filler has exactly its count of tokens, none of them shared with other text:
otherwise the condition is not the one named. The problem's token ids are those without a filler: otherwise two
conditions differ in more than the filler. Each prompt is built once, and the prompts that were checked are those that
run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from harness.errors import PromptMismatchError
from harness.experiment.conditions import BASELINE, Condition, Filler, Sentence, named_condition
from harness.experiment.prompt import Layout, Prompt, build_prompt, hash_text
from harness.experiment.tokens import TokenReport, fit_filler, has_system_turn, hash_token_ids, measure

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class BuiltPrompt:
    """One prompt with its tokens.

    Attributes:
        prompt: Its segments and turns.
        tokens: Its tokens, and how they lie over the segments. None: the model's tokenizer is not known.
    """

    prompt: Prompt
    tokens: TokenReport | None

    @property
    def text(self) -> str:
        """The prompt's text, templated if the layout is `chat` and the tokenizer is known."""
        return self.prompt.text if self.tokens is None else self.tokens.text

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The ids of all tokens. None: the tokenizer is not known."""
        return None if self.tokens is None else self.tokens.prompt_token_ids

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the text, as in lm-eval's sample logs."""
        return hash_text(self.text)

    @cached_property
    def token_sha256(self) -> str | None:
        """SHA-256 of the token ids. None: the tokenizer is not known."""
        return None if self.token_ids is None else hash_token_ids(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPrompts:
    """The prompts of one condition in one layout, and what is wrong with them.

    Attributes:
        condition: The condition.
        layout: The layout.
        prompts: One per problem, in the problems' order.
        same_problem_ids: Number of prompts whose problem has the same token ids as without a filler.
        violations: One sentence for each fact that does not hold. Empty if all hold, or if the tokenizer is not known.
    """

    condition: Condition
    layout: Layout
    prompts: tuple[BuiltPrompt, ...]
    same_problem_ids: int
    violations: tuple[str, ...]

    @property
    def reports(self) -> list[TokenReport]:
        """The tokens of each prompt; empty if the tokenizer is not known."""
        return [built.tokens for built in self.prompts if built.tokens is not None]

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
    """

    def __init__(
        self,
        problems: Mapping[str, str],
        layout: Layout,
        tokenizer: PreTrainedTokenizerBase | None,
        *,
        instruction: str | None = None,
    ) -> None:
        self._problems = problems
        self._layout = layout
        self._tokenizer = tokenizer
        self._instruction = instruction
        self._system_turn = has_system_turn(tokenizer)

    def build(self, condition: Condition) -> ConditionPrompts:
        """Build the condition's prompts, and compare the tokens of each with those of the prompt without a filler.

        Raises:
            ConfigError: the filler needs a tokenizer, or does not exist in this one.
            ModelError: the chat template is missing or fails.
            PromptMismatchError: the chat template changed or dropped a turn.
        """
        is_plain = condition.filler is None and condition.edit is None
        prompts = self._plain if is_plain else self._build_all(condition)
        same = 0
        violations: list[str] = []
        for problem_id, built, plain in zip(self._problems, prompts, self._plain, strict=True):
            if built.tokens is not None and plain.tokens is not None:
                same += built.tokens.problem_token_ids == plain.tokens.problem_token_ids
                violations += _find_violations(problem_id, condition, built.tokens, plain.tokens)
        return ConditionPrompts(
            condition=condition,
            layout=self._layout,
            prompts=prompts,
            same_problem_ids=same,
            violations=tuple(dict.fromkeys(violations)),
        )

    @cached_property
    def _plain(self) -> tuple[BuiltPrompt, ...]:
        return self._build_all(named_condition(BASELINE))

    def _build_all(self, condition: Condition) -> tuple[BuiltPrompt, ...]:
        filler_text = fit_filler(condition, self._tokenizer)
        prompts = []
        for problem_id, problem in self._problems.items():
            prompt = build_prompt(
                problem,
                condition,
                filler_text=filler_text,
                layout=self._layout,
                key=problem_id,
                system_turn=self._system_turn,
                instruction=self._instruction,
            )
            tokens = None
            if self._tokenizer is not None:
                tokens = measure(prompt, self._layout, self._tokenizer, unit=_unit(condition.filler))
            prompts.append(BuiltPrompt(prompt=prompt, tokens=tokens))
        return tuple(prompts)


def check_context(built: ConditionPrompts, context_length: int, generated: int) -> None:
    """Raise PromptMismatchError if the longest prompt and its completion do not fit the context."""
    longest = max(len(report.prompt_token_ids) for report in built.reports)
    if longest + generated > context_length:
        raise PromptMismatchError(
            f"Condition {built.condition.name!r}, layout {built.layout}: the longest prompt has {longest} tokens, and "
            f"with {generated} generated ones that is {longest + generated}, over the context of {context_length}; the "
            "prompt would be cut. Lower max_gen_toks (stock lm_eval: also say so with --metadata "
            "'{\"max_gen_toks\": N}'), or raise max_model_len if the model allows it."
        )


def _unit(filler: Filler | Sentence | None) -> str | None:
    return filler.unit if isinstance(filler, Filler) else None


def _find_violations(problem_id: str, condition: Condition, got: TokenReport, plain: TokenReport) -> Iterator[str]:
    """One sentence for each fact that does not hold for a prompt with these tokens.

    Args:
        problem_id: The problem, for messages.
        condition: The prompt's condition.
        got: The prompt's tokens.
        plain: The tokens of the same problem's prompt without a filler.
    """
    count = condition.filler.count if condition.filler else 0
    if got.straddling:
        yield f"problem {problem_id}: {got.straddling} tokens cover filler and neighbouring text at once."
    if got.filler_tokens != count:
        yield _explain_count(got, count, _unit(condition.filler))
    if got.problem_token_ids != plain.problem_token_ids:
        yield f"problem {problem_id}: its token ids differ from those without a filler."


def _explain_count(got: TokenReport, count: int, unit: str | None) -> str:
    """Why a filler does not have `count` tokens, and what to do."""
    if unit is not None and got.filler_tokens > count:
        return (
            f"the tokenizer splits the unit {unit!r}: {count} units became {got.filler_tokens} tokens, expected "
            f"{count}. Choose a unit that is one token."
        )
    if got.merged or got.filler_tokens < count:
        return (
            f"the tokenizer merges neighbouring units: expected {count} filler tokens, got {got.filler_tokens} "
            f"({got.merged} of them cover several units, {got.straddling} reach beyond the filler). "
            "Separate the units, for instance with `separator: ' '`."
        )
    return f"expected {count} filler tokens, got {got.filler_tokens}. Choose another filler for this tokenizer."
