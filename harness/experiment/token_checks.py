"""The proof that a condition is what it claims to be: every prompt of it built, measured and compared.

Two facts are checked for every prompt: the filler has exactly its count of tokens, each its own, and the problem's
token ids are the same as without a filler. Without the first the condition is not the one named; without the second
two conditions differ in more than the filler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, Filler, named_condition
from harness.experiment.prompt import Layout, build_prompt
from harness.experiment.tokens import TokenReport, fit_filler, has_system_turn, measure

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionCheck:
    """What the prompts of one condition look like in one layout, over all problems.

    Attributes:
        condition, layout: Which.
        count: Tokens that the filler should have.
        filler_tokens, straddling, merged: Least and most over the prompts.
        filler_span: The first prompt's.
        prompt_tokens: Length of each prompt in tokens.
        prompt_sha256: Hash of each prompt's token ids.
        same_problem_ids: Prompts whose problem ids equal those without filler.
        violations: What breaks the guarantees, in words; empty when sound.
    """

    condition: str
    layout: Layout
    count: int
    filler_tokens: tuple[int, int]
    straddling: tuple[int, int]
    merged: tuple[int, int]
    filler_span: tuple[int, int] | None
    prompt_tokens: tuple[int, ...]
    prompt_sha256: tuple[str, ...]
    same_problem_ids: int
    violations: tuple[str, ...]

    def refuse(self, model: str) -> None:
        """Raise PromptMismatchError with the first violation, unless the layout is `as_published`."""
        if self.violations and self.layout is not Layout.AS_PUBLISHED:
            raise PromptMismatchError(
                f"Condition {self.condition!r}, layout {self.layout}, {model}: {self.violations[0]}"
            )


def check_condition(
    problems: Mapping[str, str],
    condition: Condition,
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase,
    *,
    instruction: str | None = None,
) -> ConditionCheck:
    """Build and measure every prompt of a condition, beside the same problem without a filler."""
    text = fit_filler(condition, tokenizer)
    system_turn = has_system_turn(tokenizer)
    count = 0 if condition.filler is None else condition.filler.count
    unit = condition.filler.unit if isinstance(condition.filler, Filler) else None
    baseline = named_condition("wo")
    reports: list[TokenReport] = []
    violations: list[str] = []
    same = 0
    for key, problem in problems.items():

        def report(chosen: Condition, inserted: str, key: str = key, problem: str = problem) -> TokenReport:
            prompt = build_prompt(
                problem,
                chosen,
                filler_text=inserted,
                layout=layout,
                key=key,
                system_turn=system_turn,
                instruction=instruction,
            )
            return measure(prompt, layout, tokenizer, unit=unit)

        got = report(condition, text)
        reports.append(got)
        plain = condition.filler is None and condition.edit is None
        same_here = plain or got.problem_token_ids == report(baseline, "").problem_token_ids
        same += same_here
        if got.straddling:
            violations.append(f"problem {key}: {got.straddling} tokens cover filler and neighbouring text at once.")
        if got.filler_tokens != count:
            violations.append(_explain_count(condition, got, count))
        if not same_here:
            violations.append(f"problem {key}: its token ids differ from those without a filler.")
    return ConditionCheck(
        condition=condition.name,
        layout=layout,
        count=count,
        filler_tokens=_range(r.filler_tokens for r in reports),
        straddling=_range(r.straddling for r in reports),
        merged=_range(r.merged for r in reports),
        filler_span=reports[0].filler_span,
        prompt_tokens=tuple(len(r.prompt_token_ids) for r in reports),
        prompt_sha256=tuple(r.sha256 for r in reports),
        same_problem_ids=same,
        violations=tuple(dict.fromkeys(violations)),
    )


def check_context(check: ConditionCheck, context_length: int, generated: int) -> None:
    """Raise PromptMismatchError if the longest prompt and its completion do not fit the context."""
    longest = max(check.prompt_tokens)
    if longest + generated > context_length:
        raise PromptMismatchError(
            f"Condition {check.condition!r}, layout {check.layout}: the longest prompt has {longest} tokens, and with "
            f"{generated} generated ones that is {longest + generated}, over the context of {context_length}; the "
            "prompt would be cut. Lower max_gen_toks (stock lm_eval: also say so with --metadata "
            "'{\"max_gen_toks\": N}'), or raise max_model_len if the model allows it."
        )


def _explain_count(condition: Condition, got: TokenReport, count: int) -> str:
    filler = condition.filler
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


def _range(values: Iterable[int]) -> tuple[int, int]:
    seen: Sequence[int] = list(values)
    return min(seen), max(seen)
