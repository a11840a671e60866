"""Prompts as tokens with roles, and which token is which across conditions.

A condition's prompt is the baseline's with a filler inserted. Every token outside the filler is paired with the one
that it is in the baseline, by token id and role: from the front up to the filler, from the back down to it, and what is
left between (nothing, unless the tokenizer merged across the filler's edge) by longest matching blocks. So of the two
separators around a filler the first is the baseline's and the second is inserted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from harness.errors import PromptMismatchError, RunError
from harness.experiment.tokens import encode, find_segments, hash_token_ids
from harness.runs.prompt_source import BASELINE
from harness.runs.run_prompts import Problem, RunPrompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ROLES = ("template", "instruction", "separator", "filler", "problem", "completion")
TEMPLATE, INSTRUCTION, SEPARATOR, FILLER, PROBLEM, COMPLETION = range(len(ROLES))
ABSENT = -1
"""In `original_pos`: the baseline has no such token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizedPrompt:
    """A prompt's tokens. All arrays have one entry a token.

    Attributes:
        condition, problem_id, sha256: Which prompt; the hash is of its text.
        token_ids: int32; the prompt's, then the completion's if it was asked for.
        roles: int8; index into `ROLES`. A token that touches the filler is a filler token; any other has the role of
            most of its visible characters, or of most blanks if it has no other.
        tokens: Each token's piece of the text, for people.
        original_pos: int32; position of the same token in the baseline's prompt, `ABSENT` for inserted tokens (filler
            and its separator), for excluded ones and for the completion's. The baseline's own are 0, 1, 2, ...
        excluded: Positions of tokens outside the filler, or across its edge, that have no partner: the tokenizer
            merged them differently. In the baseline those that lack one in any condition it was tokenized with.
        filler_span: First filler token and the one after the last.
    """

    condition: str
    problem_id: str
    sha256: str
    token_ids: NDArray[np.int32]
    roles: NDArray[np.int8]
    tokens: tuple[str, ...]
    original_pos: NDArray[np.int32]
    excluded: tuple[int, ...]
    filler_span: tuple[int, int] | None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_size(self) -> int:
        """Tokens of the prompt without the completion."""
        return int(np.count_nonzero(self.roles != COMPLETION))

    def has_role(self, role: str) -> NDArray[np.bool_]:
        """Which tokens have the role."""
        return np.equal(self.roles, ROLES.index(role))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokens:
    """A prompt's tokens before they are aligned. `across`: touches the filler and other visible text."""

    token_ids: NDArray[np.int32]
    roles: NDArray[np.int8]
    tokens: tuple[str, ...]
    across: tuple[int, ...]

    @property
    def keys(self) -> NDArray[np.int64]:
        """What must agree for two tokens to be one: a separator's blank is not the blank before the next word."""
        return self.token_ids * np.int64(len(ROLES)) + self.roles

    @property
    def positions(self) -> NDArray[np.int32]:
        return np.arange(len(self.token_ids), dtype=np.int32)

    @property
    def filler_span(self) -> tuple[int, int] | None:
        inside = np.flatnonzero(self.roles == FILLER)
        return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else None


def tokenize(
    problem: Problem,
    tokenizer: PreTrainedTokenizerBase,
    *,
    conditions: Sequence[str],
    baseline: str = BASELINE,
    completion: bool = False,
) -> dict[str, TokenizedPrompt]:
    """The problem's prompts as tokens, aligned to the baseline's.

    Args:
        problem: With a prompt under the baseline and every condition.
        tokenizer: The model's.
        conditions: Which to return; the baseline may be among them.
        baseline: The condition that positions refer to.
        completion: Append the tokens of what the model wrote.

    Raises:
        RunError: a prompt is missing, or a completion was asked for and none is recorded.
        PromptMismatchError: the token ids are not those that the run recorded, or a segment is not in the text.
    """
    laid = {name: _lay(_prompt(problem, name), tokenizer) for name in dict.fromkeys((baseline, *conditions))}
    reference = laid[baseline]
    aligned = {name: _align(reference, tokens) for name, tokens in laid.items()}
    paired = np.all([np.isin(reference.positions, original) for original, _ in aligned.values()], axis=0)
    lost = np.flatnonzero((reference.roles != FILLER) & ~paired)
    tokenized = {}
    for name in dict.fromkeys(conditions):
        tokens, (original, excluded), prompt = laid[name], aligned[name], problem.prompts[name]
        ids, roles, pieces = tokens.token_ids, tokens.roles, tokens.tokens
        if completion:
            more, more_pieces = _continue(prompt, tokens, tokenizer)
            ids, pieces = np.concatenate([ids, more]), pieces + more_pieces
            roles = np.concatenate([roles, np.full(len(more), COMPLETION, np.int8)])
            original = np.concatenate([original, np.full(len(more), ABSENT, np.int32)])
        tokenized[name] = TokenizedPrompt(
            condition=name,
            problem_id=problem.id,
            sha256=prompt.sha256,
            token_ids=ids,
            roles=roles,
            tokens=pieces,
            original_pos=original,
            excluded=tuple(lost.tolist()) if name == baseline else excluded,
            filler_span=tokens.filler_span,
        )
    return tokenized


def common_tokens(prompts: Mapping[str, TokenizedPrompt]) -> dict[str, NDArray[np.bool_]]:
    """Which tokens of each prompt every one of the prompts has; in order they are the same tokens."""
    shared = set.intersection(*(set(prompt.original_pos.tolist()) for prompt in prompts.values())) - {ABSENT}
    return {name: np.isin(prompt.original_pos, list(shared)) for name, prompt in prompts.items()}


def _prompt(problem: Problem, condition: str) -> RunPrompt:
    if condition not in problem.prompts:
        raise RunError(
            f"Problem {problem.id} was not asked under the condition {condition!r}: it has "
            f"{', '.join(problem.prompts)}. Choose one of these."
        )
    return problem.prompts[condition]


def _lay(prompt: RunPrompt, tokenizer: PreTrainedTokenizerBase) -> _Tokens:
    """The prompt's tokens over its segments."""
    ids, offsets = encode(prompt.text, tokenizer)
    if prompt.token_sha256 is not None and (found := hash_token_ids(ids)) != prompt.token_sha256:
        raise PromptMismatchError(
            f"Problem {prompt.problem_id}, condition {prompt.condition!r}: this tokenizer makes other token ids of the "
            f"prompt than the run's: expected SHA-256 {prompt.token_sha256[:12]}..., got {found[:12]}... Name the "
            "model that was run, in the same revision."
        )
    characters = np.full(len(prompt.text), TEMPLATE, np.int8)
    for role, (low, high) in find_segments(prompt.prompt, prompt.text):
        characters[low:high] = ROLES.index(role)
    visible = np.array([not character.isspace() for character in prompt.text], np.bool_)
    roles = np.full(len(ids), TEMPLATE, np.int8)
    across = []
    for index, (start, end) in enumerate(offsets):
        # some tokenizers give a blank token no width: it ends where its character does
        span = slice(start, end) if start < end else slice(max(end - 1, 0), end)
        covered, seen = characters[span], characters[span][visible[span]]
        if not len(covered):
            continue
        roles[index] = FILLER if FILLER in covered else np.bincount(seen if len(seen) else covered).argmax()
        if roles[index] == FILLER and (seen != FILLER).any():
            across.append(index)
    return _Tokens(
        token_ids=np.array(ids, np.int32),
        roles=roles,
        tokens=_pieces(ids, offsets, prompt.text, tokenizer),
        across=tuple(across),
    )


def _pieces(
    ids: Iterable[int], offsets: Iterable[tuple[int, int]], text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    pairs = zip(ids, offsets, strict=True)
    return tuple(text[a:b] if a < b else str(tokenizer.convert_ids_to_tokens(token)) for token, (a, b) in pairs)


def _align(base: _Tokens, other: _Tokens) -> tuple[NDArray[np.int32], tuple[int, ...]]:
    """Original position of each token of `other`, and the positions that should have one and do not."""
    original = np.full(len(other.token_ids), ABSENT, np.int32)
    if other is base:
        return base.positions, ()
    ours = np.flatnonzero(base.roles != FILLER)
    low, high = other.filler_span or (len(other.token_ids),) * 2
    before, after = np.arange(low), np.arange(high, len(other.token_ids))

    prefix = _agreeing(base.keys[ours], other.keys[before])
    ours, before, done = ours[prefix:], before[prefix:], (ours[:prefix], before[:prefix])
    original[done[1]] = done[0]
    suffix = _agreeing(base.keys[ours][::-1], other.keys[after][::-1])
    middle, rest = ours[: len(ours) - suffix], after[: len(after) - suffix]
    original[after[len(after) - suffix :]] = ours[len(ours) - suffix :]

    left = np.concatenate([before, rest])
    matcher = SequenceMatcher(None, base.keys[middle].tolist(), other.keys[left].tolist(), autojunk=False)
    for ours_at, theirs_at, size in matcher.get_matching_blocks():
        original[left[theirs_at : theirs_at + size]] = middle[ours_at : ours_at + size]
    unpaired = [int(at) for at in left if original[at] == ABSENT and other.roles[at] != SEPARATOR]
    return original, tuple(sorted({*unpaired, *other.across}))


def _agreeing(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """How many leading entries are the same."""
    size = min(len(first), len(second))
    differing = np.flatnonzero(first[:size] != second[:size])
    return int(differing[0]) if len(differing) else size


def _continue(
    prompt: RunPrompt, tokens: _Tokens, tokenizer: PreTrainedTokenizerBase
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The completion's token ids as they follow the prompt's, and their pieces.

    Read together with the prompt they begin as the model wrote them, unless the tokenizer glues the two; then the
    completion is read by itself. A model may have written the same text in other tokens.
    """
    if prompt.completion is None:
        raise RunError(
            f"Problem {prompt.problem_id}, condition {prompt.condition!r}: no completion is recorded, and its tokens "
            "were asked for. Take a run or a sample log, or leave the completion out."
        )
    size, text = len(tokens.token_ids), prompt.text + prompt.completion
    ids, offsets = encode(text, tokenizer)
    if ids[:size] == tuple(tokens.token_ids.tolist()):
        ids, offsets = ids[size:], offsets[size:]
    else:
        text = prompt.completion
        encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
        ids, offsets = tuple(encoded["input_ids"]), encoded["offset_mapping"]
    return np.array(ids, np.int32), _pieces(ids, offsets, text, tokenizer)
