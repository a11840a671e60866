"""Prompts are built here, and proven to be what their condition claims: each is built, measured and compared once.

Two facts are checked for every prompt: the filler has exactly its count of tokens, each its own, and the problem's
token ids are the same as without a filler. Without the first the condition is not the one named; without the second
two conditions differ in more than the filler. The prompts that were checked are the ones that run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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
    """One prompt, as the model gets it.

    Attributes:
        prompt: Its segments and turns.
        tokens: How its tokens lie over the segments; None where the model's tokenizer is not known.
    """

    prompt: Prompt
    tokens: TokenReport | None

    @property
    def text(self) -> str:
        """The whole prompt, templated if the layout is `chat` and the tokenizer is known."""
        return self.prompt.text if self.tokens is None else self.tokens.text

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """The whole prompt's token ids; None where the tokenizer is not known."""
        return None if self.tokens is None else self.tokens.prompt_token_ids

    @cached_property
    def sha256(self) -> str:
        """Hash of the text, as lm-eval's sample logs carry it."""
        return hash_text(self.text)

    @cached_property
    def token_sha256(self) -> str | None:
        """Hash of the token ids; None where the tokenizer is not known."""
        return None if self.token_ids is None else hash_token_ids(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionPrompts:
    """The prompts of one condition in one layout, and what was found wrong with them.

    Attributes:
        condition, layout: Which.
        prompts: One per problem, in the problems' order.
        same_problem_ids: Prompts whose problem ids equal those without filler.
        violations: What breaks the guarantees, in words; empty when sound, and where the tokenizer is not known.
    """

    condition: Condition
    layout: Layout
    prompts: tuple[BuiltPrompt, ...]
    same_problem_ids: int
    violations: tuple[str, ...]

    @property
    def reports(self) -> list[TokenReport]:
        """Each prompt's tokens; empty where the tokenizer is not known."""
        return _reports(self.prompts)

    def refuse(self, model: str) -> None:
        """Raise PromptMismatchError with the first violation, unless the layout is `as_published`."""
        if self.violations and self.layout is not Layout.AS_PUBLISHED:
            raise PromptMismatchError(
                f"Condition {self.condition.name!r}, layout {self.layout}, {model}: {self.violations[0]}"
            )


class PromptBuilder:
    """Builds the prompts of one layout, condition by condition, and checks them.

    The prompts without a filler are built once: every condition is compared with them, and `wo` is them.

    Args:
        problems: The problems' texts by id.
        layout: The layout of all prompts.
        tokenizer: The model's. Without one the prompts are plain text, and nothing is checked.
        instruction: Another system prompt than the layout's own.
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
        """Build the condition's prompts, measure them, and compare each with the one without a filler.

        Raises:
            ConfigError: the filler needs a tokenizer, or does not exist in this one.
            ModelError: the chat template is missing or fails.
            PromptMismatchError: the chat template changed or dropped a turn.
        """
        plain = condition.filler is None and condition.edit is None
        prompts = self._plain if plain else self._build_all(condition)
        same = 0
        violations: list[str] = []
        if self._tokenizer is not None:
            for problem_id, got, base in zip(self._problems, _reports(prompts), _reports(self._plain), strict=True):
                same += got.problem_token_ids == base.problem_token_ids
                violations += _find_violations(problem_id, condition, got, base)
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
        unit = condition.filler.unit if isinstance(condition.filler, Filler) else None
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
                tokens = measure(prompt, self._layout, self._tokenizer, unit=unit)
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


def _reports(prompts: Iterable[BuiltPrompt]) -> list[TokenReport]:
    return [built.tokens for built in prompts if built.tokens is not None]


def _find_violations(problem_id: str, condition: Condition, got: TokenReport, plain: TokenReport) -> Iterator[str]:
    """What is wrong with one prompt, in words.

    Args:
        problem_id: For messages.
        condition: The prompt's.
        got: Its tokens.
        plain: The tokens of the same problem's prompt without a filler.
    """
    if got.straddling:
        yield f"problem {problem_id}: {got.straddling} tokens cover filler and neighbouring text at once."
    if got.filler_tokens != (0 if condition.filler is None else condition.filler.count):
        yield _explain_count(condition.filler, got)
    if got.problem_token_ids != plain.problem_token_ids:
        yield f"problem {problem_id}: its token ids differ from those without a filler."


def _explain_count(filler: Filler | Sentence | None, got: TokenReport) -> str:
    count = 0 if filler is None else filler.count
    unit = filler.unit if isinstance(filler, Filler) else None
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
