"""Prompts as tokens with roles, and which token is which across conditions.

A condition's prompt is the baseline's with a filler inserted. Every token outside the filler is
paired with the same token in the baseline: see `built_prompts.find_original_positions`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.constants import BASELINE, JsonObject
from harness.errors import PromptMismatchError, RunError
from harness.experiment.prompts.built_prompts import (
    ABSENT,
    FILLER_INDEX,
    TOKEN_ROLES,
    BuiltPrompt,
    add_tokens,
    find_original_positions,
)
from harness.experiment.prompts.chat_template import find_segments
from harness.experiment.prompts.tokenizer import token_texts
from harness.runs.prompt_sources import AnsweredProblem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GAP_SUFFIX = "+gap"
"""Suffix of a position gap's name: the prompt without its filler, whose other tokens keep their
positions. A config cannot name a condition like this, because names have no plus sign."""

ROLES = TOKEN_ROLES
"""The names of roles, in the order of their numbers in `TokenizedPrompt.roles`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PromptFacts:
    """What identifies a prompt of a selected problem.

    Attributes:
        problem_id: The problem's id in its source.
        condition: The prompt's condition.
        cluster: Shared by problems that count as one, such as one problem with several draws of
            examples; empty if the problem stands alone.
        outcome: The problem's change between the selection's two conditions, such as
            `wrong_to_right`.
        control: Whether it was selected as an unflipped control.
        gold_answer: The problem's; empty if its source has none.
        prompt_sha256: Hash of the prompt's text, as in the run.
        filler_span: First filler token and the one after the last; examples may lie in between.
            None without a filler.
        intervention: The run's intervention while the model read the prompt.
    """

    problem_id: str
    condition: str
    cluster: str = ""
    outcome: str | None
    control: bool
    prompt_sha256: str
    filler_span: tuple[int, int] | None
    intervention: list[JsonObject] | None = None
    gold_answer: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenizedPrompt(PromptFacts):
    """A prompt's tokens. All arrays have one entry for each token.

    Attributes:
        tokens: The text of each token, for people: see `token_texts`. It is empty where a token
            continues a character that the token before it begins.
        token_ids: int32; the prompt's tokens.
        roles: int8; index into `ROLES`, see `BuiltPrompt.token_roles`.
        original_pos: int32; position of the same token in the baseline's prompt. `ABSENT` for
            inserted tokens (filler and its separator) and for those that the tokenizer merged
            differently. In the baseline it is 0, 1, 2, ...
        positions: int32; the token's position in the model: 0, 1, 2, ... except in a position gap.
    """

    tokens: tuple[str, ...]
    token_ids: NDArray[np.int32]
    roles: NDArray[np.int8]
    original_pos: NDArray[np.int32]
    positions: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.token_ids)

    def has_role(self, role: str) -> NDArray[np.bool_]:
        """Which tokens have the role."""
        return np.equal(self.roles, ROLES.index(role))

    @property
    def is_inserted(self) -> NDArray[np.bool_]:
        """Tokens that the prompt without filler lacks."""
        return np.equal(self.original_pos, ABSENT)

    def make_position_gap(self) -> TokenizedPrompt:
        """The prompt without the inserted tokens; every other token keeps its position."""
        is_remaining = ~self.is_inserted
        return replace(
            self,
            condition=f"{self.condition}{GAP_SUFFIX}",
            token_ids=self.token_ids[is_remaining],
            roles=self.roles[is_remaining],
            tokens=tuple(np.array(self.tokens, dtype=object)[is_remaining]),
            original_pos=self.original_pos[is_remaining],
            positions=self.positions[is_remaining],
            filler_span=None,
        )


PromptsByCondition = Mapping[str, TokenizedPrompt]
"""One problem's prompts by condition."""


def tokenize_prompts_of_problem(
    problem: AnsweredProblem,
    tokenizer: PreTrainedTokenizerBase,
    *,
    conditions: Sequence[str],
) -> dict[str, TokenizedPrompt]:
    """The problem's prompt under each condition as tokens, aligned to the baseline's prompt.

    Args:
        problem: A problem with a prompt under the baseline and every condition.
        tokenizer: The model's tokenizer.
        conditions: Which to return; the baseline may be among them. `mless+gap` is the position gap
            of `mless`.

    Raises:
        RunError: a prompt is missing.
        PromptMismatchError: the token ids differ from those that the run recorded, or a segment is
            not in the text.
    """
    baseline_prompt = _build_prompt(problem, BASELINE, tokenizer)
    prompt_by_name = {}
    for name in conditions:
        condition = remove_gap(name, problem.prompts)
        built_prompt = _build_prompt(problem, condition, tokenizer)
        # both are None only in prompts that no tokenizer was given for
        assert built_prompt.token_ids is not None and built_prompt.offsets is not None
        filler_positions = np.flatnonzero(built_prompt.token_roles == FILLER_INDEX).tolist()
        filler_span = (filler_positions[0], filler_positions[-1] + 1) if filler_positions else None
        prompt = TokenizedPrompt(
            problem_id=problem.id,
            condition=condition,
            cluster=problem.cluster,
            outcome=problem.outcome,
            control=problem.is_control,
            gold_answer=str(problem.prompts[BASELINE].doc.get("answer", "")),
            prompt_sha256=built_prompt.prompt_sha256,
            filler_span=filler_span,
            intervention=built_prompt.intervention,
            tokens=token_texts(
                built_prompt.token_ids, built_prompt.offsets.tolist(), built_prompt.text, tokenizer
            ),
            token_ids=np.array(built_prompt.token_ids, np.int32),
            roles=built_prompt.token_roles,
            original_pos=find_original_positions(built_prompt, baseline_prompt),
            positions=np.arange(len(built_prompt.token_ids), dtype=np.int32),
        )
        # a name that is not the condition's is that of its position gap
        prompt_by_name[name] = prompt if name == condition else prompt.make_position_gap()
    return prompt_by_name


def remove_gap(name: str, conditions: Collection[str]) -> str:
    """The condition of a position gap: `mless` for `mless+gap`; any other name as it is.

    A name is that of a position gap if it is not among the conditions, and is among them without
    GAP_SUFFIX.
    """
    if name in conditions:
        return name
    condition = name.removesuffix(GAP_SUFFIX)
    return condition if condition in conditions else name


def common_masks(prompts: PromptsByCondition) -> dict[str, NDArray[np.bool_]]:
    """By condition, a mask of the tokens of its prompt that are in all prompts.

    These tokens are the same, and in the same order, in every prompt.
    """
    original_positions = [set(prompt.original_pos.tolist()) for prompt in prompts.values()]
    shared_positions = list(set.intersection(*original_positions) - {ABSENT})
    return {
        name: np.isin(prompt.original_pos, shared_positions) for name, prompt in prompts.items()
    }


def _build_prompt(
    problem: AnsweredProblem, condition: str, tokenizer: PreTrainedTokenizerBase
) -> BuiltPrompt:
    """The problem's stored prompt under the condition, with its tokens."""
    if condition not in problem.prompts:
        raise RunError(
            f"Problem {problem.id} has no prompt under {condition!r}, but under "
            f"{', '.join(problem.prompts)}."
        )
    stored_prompt = problem.prompts[condition]
    requested_prompt = stored_prompt.requested_prompt
    text = stored_prompt.prompt
    untokenized_prompt = BuiltPrompt(
        requested_prompt=requested_prompt, text=text, intervention=stored_prompt.intervention
    )
    built_prompt = add_tokens(untokenized_prompt, find_segments(requested_prompt, text), tokenizer)
    if stored_prompt.prompt_token_sha256 not in (None, built_prompt.prompt_token_sha256):
        raise PromptMismatchError(
            f"Problem {stored_prompt.problem_id}, condition {condition!r}: this tokenizer makes "
            "other token ids of the prompt than the run's. Name the model that was run, in the "
            "same revision."
        )
    return built_prompt
