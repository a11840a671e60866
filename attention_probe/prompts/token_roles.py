"""Prompts as tokens with roles, and which token is which across conditions.

A condition's prompt is the baseline's with a filler inserted. Every token outside the filler is paired with the same
token in the baseline, by token id and role: first from the front up to the filler, then from the back down to it.
Tokens may be left between, if the tokenizer merged across the filler's edge, or the filler stands at several places.
They are paired by longest matching blocks. So the first of the two separators around a filler is the baseline's, and
the second is inserted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from harness.constants import BASELINE
from harness.errors import PromptMismatchError, RunError
from harness.experiment import token_checks
from harness.experiment.token_checks import BuiltPrompt
from harness.experiment.tokenizer import encode, find_segments
from harness.runs.answered_prompts import AnsweredPrompt, Problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ABSENT = -1
"""In `original_pos` of a token: the baseline has no such token."""
GAP = "+gap"
"""How a position gap is written: the prompt without its filler, and with the filler's room left open. A config cannot
name a condition so, as names have no plus sign."""

ROLES = token_checks.TOKEN_ROLES
FILLER, COMPLETION = map(ROLES.index, ("filler", "completion"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """A prompt's tokens. All arrays have one entry for each token.

    Attributes:
        condition, problem_id, sha256: Which prompt; the hash is of its text.
        token_ids: int32; the prompt's, then the completion's if it was asked for.
        roles: int8; index into `ROLES`, as of `BuiltPrompt.token_roles`.
        tokens: Each token's piece of the text, for people.
        original_pos: int32; position of the same token in the baseline's prompt. `ABSENT` for inserted tokens (filler
            and its separator), for those that the tokenizer merged differently, and for the completion's. The
            baseline's own are 0, 1, 2, ...
        positions: int32; where the model takes the token to stand: 0, 1, 2, ... but in a position gap.
        filler_span: First filler token and the one after the last; what lies between may be examples.
    """

    condition: str
    problem_id: str
    sha256: str
    token_ids: NDArray[np.int32]
    roles: NDArray[np.int8]
    tokens: tuple[str, ...]
    original_pos: NDArray[np.int32]
    positions: NDArray[np.int32]
    filler_span: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.token_ids)

    def has_role(self, role: str) -> NDArray[np.bool_]:
        """Which tokens have the role."""
        return np.equal(self.roles, ROLES.index(role))

    @property
    def inserted(self) -> NDArray[np.bool_]:
        """Which tokens the prompt without filler does not have; a completion is not part of a prompt."""
        return np.equal(self.original_pos, ABSENT) & ~self.has_role("completion")

    def position_gap(self) -> TokenizedPrompt:
        """The prompt without what was inserted; every other token keeps its position."""
        kept = np.flatnonzero(~self.inserted)
        names = ("token_ids", "roles", "original_pos", "positions")
        arrays: dict[str, Any] = {name: getattr(self, name)[kept] for name in names}
        tokens = tuple(self.tokens[place] for place in kept.tolist())
        return replace(
            self, condition=f"{self.condition}{GAP}", tokens=tokens, filler_span=None, **arrays
        )


def tokenize(
    problem: Problem,
    tokenizer: PreTrainedTokenizerBase,
    *,
    conditions: Sequence[str],
    completion: bool = False,
) -> dict[str, TokenizedPrompt]:
    """The problem's prompts as tokens, aligned to the baseline's.

    Args:
        problem: With a prompt under the baseline and every condition.
        tokenizer: The model's.
        conditions: Which to return; the baseline may be among them. `mless+gap` is the position gap of `mless`.
        completion: Append the tokens of what the model wrote.

    Raises:
        RunError: a prompt is missing, or a completion was asked for and none is recorded.
        PromptMismatchError: the token ids are not those that the run recorded, or a segment is not in the text.
    """
    sources = {name: without_gap(name, problem.prompts) for name in conditions}
    built = {
        name: _build(_prompt(problem, name), tokenizer)
        for name in dict.fromkeys((BASELINE, *sources.values()))
    }
    aligned = align_prompts(problem.id, built, tokenizer)
    tokenized = {}
    for name, source in sources.items():
        prompt = aligned[source]
        if completion:
            prompt = _append_completion(prompt, problem.prompts[source], tokenizer)
        tokenized[name] = prompt if name == source else prompt.position_gap()
    return tokenized


def align_prompts(
    problem_id: str, prompts: Mapping[str, BuiltPrompt], tokenizer: PreTrainedTokenizerBase
) -> dict[str, TokenizedPrompt]:
    """The built prompts of a problem by condition, aligned to the baseline's, which is among them."""
    unaligned = {
        condition: _with_roles(problem_id, condition, prompt, tokenizer)
        for condition, prompt in prompts.items()
    }
    baseline = unaligned[BASELINE]
    return {
        condition: replace(prompt, original_pos=_align(baseline, prompt))
        for condition, prompt in unaligned.items()
    }


def without_gap(name: str, there: Collection[str]) -> str:
    """The condition that a position gap is made of: `mless` for `mless+gap`; any other name as it is."""
    return name if name in there or name.removesuffix(GAP) not in there else name.removesuffix(GAP)


def common_tokens(prompts: Mapping[str, TokenizedPrompt]) -> dict[str, NDArray[np.bool_]]:
    """Which tokens of each prompt every one of the prompts has; in order they are the same tokens."""
    shared = set.intersection(
        *(set(prompt.original_pos.tolist()) for prompt in prompts.values())
    ) - {ABSENT}
    return {name: np.isin(prompt.original_pos, list(shared)) for name, prompt in prompts.items()}


def _prompt(problem: Problem, condition: str) -> AnsweredPrompt:
    if condition not in problem.prompts:
        raise RunError(
            f"Problem {problem.id} was not asked under {condition!r}, but {', '.join(problem.prompts)}."
        )
    return problem.prompts[condition]


def _build(stored: AnsweredPrompt, tokenizer: PreTrainedTokenizerBase) -> BuiltPrompt:
    """The stored prompt with its tokens."""
    requested = stored.requested
    untokenized = BuiltPrompt(prompt=requested, text=stored.prompt)
    built = token_checks.tokenize(untokenized, find_segments(requested, stored.prompt), tokenizer)
    if stored.prompt_token_sha256 not in (None, built.prompt_token_sha256):
        raise PromptMismatchError(
            f"Problem {stored.problem_id}, condition {stored.condition!r}: this tokenizer makes other token ids of the "
            "prompt than the run's. Name the model that was run, in the same revision."
        )
    return built


def _with_roles(
    problem_id: str, condition: str, prompt: BuiltPrompt, tokenizer: PreTrainedTokenizerBase
) -> TokenizedPrompt:
    """The prompt's tokens, each at its own position."""
    assert (
        prompt.token_ids is not None and prompt.offsets is not None
    )  # the model's tokenizer is known
    roles = prompt.token_roles
    in_filler = np.flatnonzero(roles == FILLER)
    positions = np.arange(len(roles), dtype=np.int32)
    return TokenizedPrompt(
        condition=condition,
        problem_id=problem_id,
        sha256=prompt.prompt_sha256,
        token_ids=np.array(prompt.token_ids, np.int32),
        roles=roles,
        tokens=_pieces(prompt.token_ids, prompt.offsets.tolist(), prompt.text, tokenizer),
        original_pos=positions,
        positions=positions,
        filler_span=(int(in_filler[0]), int(in_filler[-1]) + 1) if len(in_filler) else None,
    )


def _pieces(
    ids: Iterable[int],
    offsets: Iterable[tuple[int, int]],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str, ...]:
    pairs = zip(ids, offsets, strict=True)
    return tuple(
        text[a:b] if a < b else str(tokenizer.convert_ids_to_tokens(token))
        for token, (a, b) in pairs
    )


def _align(base: TokenizedPrompt, other: TokenizedPrompt) -> NDArray[np.int32]:
    """Original position of each token of `other`."""
    if other is base:
        return base.original_pos
    original = np.full(len(other), ABSENT, np.int32)
    ours, theirs = _keys(base), _keys(other)
    kept = np.flatnonzero(base.roles != FILLER)
    low, high = other.filler_span or (len(other),) * 2
    outside = np.flatnonzero(other.roles != FILLER)
    before, after = outside[outside < low], outside[outside >= high]

    prefix = _agreeing(ours[kept], theirs[before])
    original[before[:prefix]] = kept[:prefix]
    kept = kept[prefix:]
    suffix = _agreeing(ours[kept][::-1], theirs[after][::-1])
    original[after[len(after) - suffix :]] = kept[len(kept) - suffix :]

    middle, left = kept[: len(kept) - suffix], outside[prefix : len(outside) - suffix]
    matcher = SequenceMatcher(None, ours[middle].tolist(), theirs[left].tolist(), autojunk=False)
    for ours_at, theirs_at, size in matcher.get_matching_blocks():
        original[left[theirs_at : theirs_at + size]] = middle[ours_at : ours_at + size]
    return original


def _keys(prompt: TokenizedPrompt) -> NDArray[np.int64]:
    """What must agree for two tokens to be one: a separator's blank is not the blank before the next word."""
    return prompt.token_ids * np.int64(len(ROLES)) + prompt.roles


def _agreeing(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """How many leading entries are the same."""
    size = min(len(first), len(second))
    differing = np.flatnonzero(first[:size] != second[:size])
    return int(differing[0]) if len(differing) else size


def _append_completion(
    tokenized: TokenizedPrompt, prompt: AnsweredPrompt, tokenizer: PreTrainedTokenizerBase
) -> TokenizedPrompt:
    """The prompt with the completion's tokens as they follow it.

    Read together with the prompt they begin as the model wrote them, unless the tokenizer glues the two; then the
    completion is read by itself. A model may have written the same text in other tokens.
    """
    if not prompt.completions:
        raise RunError(
            f"Problem {prompt.problem_id}, condition {prompt.condition!r}: no completion is recorded."
        )
    completion = prompt.completions[0]
    size, text = len(tokenized), prompt.prompt + completion
    ids, offsets = encode(text, tokenizer)
    if ids[:size] == tuple(tokenized.token_ids.tolist()):
        ids, offsets = ids[size:], offsets[size:]
    else:
        text = completion
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids, offsets = tuple(encoded["input_ids"]), encoded["offset_mapping"]
    return replace(
        tokenized,
        token_ids=np.concatenate([tokenized.token_ids, np.array(ids, np.int32)]),
        roles=np.concatenate([tokenized.roles, np.full(len(ids), COMPLETION, np.int8)]),
        tokens=tokenized.tokens + _pieces(ids, offsets, text, tokenizer),
        original_pos=np.concatenate([tokenized.original_pos, np.full(len(ids), ABSENT, np.int32)]),
        positions=np.arange(size + len(ids), dtype=np.int32),
    )
