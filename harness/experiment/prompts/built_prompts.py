"""A built prompt: its text, its tokens, and the position and role of each segment in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.array_types import Integers
from harness.constants import SEPARATOR
from harness.experiment.intervention_settings import ResolvedChange
from harness.experiment.prompts.chat_template import RoleSpan, apply_chat_template, find_segments
from harness.experiment.prompts.prompt import (
    Layout,
    Prompt,
    PromptSettings,
    hash_text,
    join_texts,
)
from harness.experiment.prompts.tokenizer import ModelTokenizer, encode
from harness.reasoning_markers import find_open_reasoning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AnswerTokens(NamedTuple):
    """The token ids of an answer with its end, and of the label between prompt and answer."""

    label_ids: list[int]
    answer_ids: list[int]


TOKEN_ROLES = (
    "template",
    "instruction",
    "separator",
    "filler",
    "problem",
    "demonstration",
    "format",
)
"""The roles of tokens. Traces store the index."""
TOKEN_REGIONS = ("first", "instruction", "filler", "problem", "examples", "other")
"""Regions of a prompt: the very first token, the other tokens of four roles, and the rest. Each
token is in one region, so the attention on all regions adds up to 1."""
ABSENT = -1
"""The position of a token in the baseline's prompt, if the baseline has no such token."""
FILLER_INDEX, PROBLEM_INDEX, DEMONSTRATION_INDEX = map(
    TOKEN_ROLES.index, ("filler", "problem", "demonstration")
)
"""The indices of these roles in TOKEN_ROLES."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BuiltPrompt:
    """One prompt with its tokens and their positions in its segments.

    Attributes:
        requested_prompt: The segments and turns.
        text: The prompt as the model gets it: templated if the layout is `chat` and the tokenizer
            is known.
        answer_prefix: The beginning of the answer, which is the end of the text.
        spans: The positions of the segments in the text, and of fillers in the answer. The text
            between them is template.
        token_ids: The ids of all tokens. None: the tokenizer is unknown, and nothing is measured.
        offsets: The half-open range of characters of each token: [token, 2].
        problem_token_ids: The ids of the tokens that cover any of the problem or of the examples.
        filler_tokens: Number of tokens inside the filler.
        straddling_tokens: Number of tokens that cover both filler and other text.
        filler_span: The half-open range of positions from the first to the last filler token. None:
            there is no filler token.
        intervention: The changes inside the model while it answers; None for nothing.
        answer_tokens: The answers whose log-probability is measured: the accepted ones, then the
            others; empty for the endpoint accuracy.
        other_answers: The texts of the others.
    """

    requested_prompt: Prompt
    text: str
    answer_prefix: str = ""
    spans: Sequence[RoleSpan] = ()
    token_ids: tuple[int, ...] | None = None
    offsets: NDArray[np.int32] | None = None
    problem_token_ids: tuple[int, ...] = ()
    filler_tokens: int = 0
    straddling_tokens: int = 0
    filler_span: tuple[int, int] | None = None
    intervention: list[ResolvedChange] | None = None
    answer_tokens: tuple[AnswerTokens, ...] = ()
    other_answers: tuple[str, ...] = ()

    @property
    def request_length(self) -> int:
        """The tokens of the prompt with its longest answer; 0 if the tokenizer is unknown."""
        answer_lengths = [len(label) + len(answer) for label, answer in self.answer_tokens]
        return len(self.token_ids or ()) + max(answer_lengths, default=0)

    @cached_property
    def prompt_sha256(self) -> str:
        """SHA-256 of the text, as in lm-eval's sample logs."""
        return hash_text(self.text)

    @cached_property
    def prompt_token_sha256(self) -> str | None:
        """SHA-256 of the token ids in decimal, separated by commas, as any tool can compute it.

        None: the tokenizer is unknown.
        """
        return None if self.token_ids is None else hash_text(",".join(map(str, self.token_ids)))

    @property
    def filler_ranges(self) -> list[tuple[int, int]]:
        """The half-open range of characters of each filler."""
        return [span for role, span in self.spans if role == "filler"]

    @cached_property
    def token_roles(self) -> NDArray[np.int8]:
        """The role of each token, as an index into TOKEN_ROLES.

        A token that covers any of a filler is a filler token. Any other token has the role of most
        of its visible characters, or of most of its blanks if it has only blanks.
        """
        assert self.offsets is not None  # because all callers know the tokenizer
        # One visible character outweighs all blanks of the text, so blanks decide only in a token
        # without visible characters.
        counts = count_characters(self.text, self.spans, self.offsets, len(self.text) + 1)
        roles = np.where(counts[:, FILLER_INDEX], FILLER_INDEX, counts.argmax(axis=1))
        return roles.astype(np.int8)


def find_parts(prompt: BuiltPrompt, baseline_prompt: BuiltPrompt) -> dict[str, list[int]]:
    """The positions of the tokens of each part of a prompt.

    Parts are the roles, the `first` token, the `inserted` tokens, which are the fillers with their
    separators, and the `examples` with the separators between them. `inserted` and `filler` are
    empty if the prompt without its inserted tokens is not the baseline.
    """
    positions_by_part = {
        role: np.flatnonzero(prompt.token_roles == index).tolist()
        for index, role in enumerate(TOKEN_ROLES)
    }
    original_positions = find_original_positions(prompt, baseline_prompt)
    positions_by_part["inserted"] = np.flatnonzero(original_positions == ABSENT).tolist()
    # If the prompt lacks a token of the baseline, for instance because it merged with the filler,
    # the prompt is not the baseline with something inserted.
    if np.count_nonzero(original_positions != ABSENT) < len(baseline_prompt.token_ids or ()):
        positions_by_part |= {"inserted": [], "filler": []}
    # all tokens from the first to the last one of an example, so also the separators between them
    demonstration = positions_by_part["demonstration"]
    example_range = range(demonstration[0], demonstration[-1] + 1) if demonstration else ()
    # without the filler, which may be inserted between examples
    examples = [
        position for position in example_range if position not in positions_by_part["inserted"]
    ]
    return positions_by_part | {"first": [0], "examples": examples}


def find_original_positions(prompt: BuiltPrompt, baseline_prompt: BuiltPrompt) -> NDArray[np.int32]:
    """The position of the same token in the baseline's prompt, for each token of a prompt.

    It is ABSENT for inserted tokens: those of a filler and of the separator after it. Tokens are
    paired in order: each one that equals the next unpaired token of the baseline is paired with it,
    so of two equal separators the first is the baseline's. This leaves tokens of the baseline
    unpaired where the tokenizer merged tokens across the filler's edge. Then all tokens are paired
    anew, by longest matching blocks.
    """
    # pairs of id and role, because a filler's separator must not be paired with equal blanks of the
    # problem
    tokens, baseline_tokens = (
        list(zip(built_prompt.token_ids or (), built_prompt.token_roles.tolist(), strict=True))
        for built_prompt in (prompt, baseline_prompt)
    )
    original_positions = np.full(len(tokens), ABSENT, np.int32)
    # also the position of the next unpaired token of the baseline
    paired_count = 0
    for position, token in enumerate(tokens):
        # a slice, because there may be no further token
        if baseline_tokens[paired_count : paired_count + 1] == [token]:
            original_positions[position] = paired_count
            paired_count += 1
    if paired_count == len(baseline_tokens):
        return original_positions
    # some token was paired with an equal one that is not the same, so all pairs are made anew
    original_positions[:] = ABSENT
    # `autojunk` would ignore the tokens that occur most often in a long prompt
    matcher = SequenceMatcher(None, baseline_tokens, tokens, autojunk=False)
    for baseline_start, start, block_size in matcher.get_matching_blocks():
        original_positions[start : start + block_size] = np.arange(
            baseline_start, baseline_start + block_size
        )
    return original_positions


def find_region_indices(roles: NDArray[np.int8]) -> Integers:
    """The region of each token, as an index into TOKEN_REGIONS."""
    region_by_role = {role: role for role in TOKEN_REGIONS} | {"demonstration": "examples"}
    indices = [TOKEN_REGIONS.index(region_by_role.get(role, "other")) for role in TOKEN_ROLES]
    regions = np.array(indices)[roles]
    regions[0] = TOKEN_REGIONS.index("first")
    return regions


def count_characters(
    text: str, spans: Sequence[RoleSpan], offsets: NDArray[np.int32], visible_weight: int = 1
) -> Integers:
    """Count the characters of each role in every token: [token, role].

    Args:
        text: The prompt.
        spans: The positions of its segments.
        offsets: The characters of each token.
        visible_weight: How many times a character counts that is not blank.
    """
    # role 0 is that of the chat template, which wrote the text outside all segments
    roles = np.zeros(len(text), np.int8)
    for role, (start, end) in spans:
        roles[start:end] = TOKEN_ROLES.index(role)
    has_role = np.eye(len(TOKEN_ROLES), dtype=np.int64)[roles]
    has_role[[not character.isspace() for character in text]] *= visible_weight
    # [character + 1, role]: a token's counts are the difference of two running sums
    running_sums = np.pad(has_role.cumsum(axis=0), ((1, 0), (0, 0)))
    starts, ends = offsets.T
    # some tokenizers give a blank token no width: it counts as the character before its end
    starts = np.where(starts < ends, starts, np.maximum(ends - 1, 0))
    return np.asarray(running_sums[ends] - running_sums[starts])


def tokenize_prompt(
    prompt: Prompt, settings: PromptSettings, model_tokenizer: ModelTokenizer | None
) -> BuiltPrompt:
    """Tokenize a prompt, and find its segments in its tokens.

    Args:
        prompt: The prompt. Its answer's beginning stands after a separator in layouts without a
            template, and after the end of the reasoning if the prompt opens one.
        settings: The layout `chat` applies the model's template; all others take the text as it is.
        model_tokenizer: The model's tokenizer. None: it is unknown, and nothing is measured.

    Raises:
        ModelError: the layout is `chat`, and the chat template is missing or fails.
        PromptMismatchError: the chat template changed or dropped a turn, so that it cannot be
            found.
    """
    prompt_text = prompt.text
    if model_tokenizer is not None and settings.layout is Layout.CHAT:
        prompt_text = apply_chat_template(
            model_tokenizer.tokenizer, prompt.messages, model_tokenizer.switches
        )
    # without a beginning of the answer, nothing has to be separated from the prompt
    separating_text = ""
    if prompt.answer_segments:
        if settings.layout is not Layout.CHAT:
            separating_text = SEPARATOR
        # An answer that begins inside open reasoning would be read as part of it.
        _, end_marker = find_open_reasoning(prompt_text, settings.reasoning_markers)
        if end_marker:
            separating_text += f"\n{end_marker}\n\n"
    answer_prefix = separating_text + join_texts(prompt.answer_segments)
    built_prompt = BuiltPrompt(
        requested_prompt=prompt, text=prompt_text + answer_prefix, answer_prefix=answer_prefix
    )
    if model_tokenizer is None:
        return built_prompt
    spans = find_segments(prompt, prompt_text)
    answer_start = len(prompt_text + separating_text)
    # a filler in the answer is its first segment; the rest of its beginning counts as template
    for segment in prompt.answer_segments[:1]:
        if segment.role == "filler":
            spans.append((segment.role, (answer_start, answer_start + len(segment.text))))
    return add_tokens(built_prompt, spans, model_tokenizer.tokenizer)


def add_tokens(
    built_prompt: BuiltPrompt, spans: Sequence[RoleSpan], tokenizer: PreTrainedTokenizerBase
) -> BuiltPrompt:
    """Add to a prompt its tokens, and the numbers that the checks need.

    A token is a filler token if all its characters are of fillers, and straddles if only some are.
    A token without width, such as an added BOS, lies in no segment.
    """
    token_ids, ranges = encode(built_prompt.text, tokenizer)
    # reshaped, because offsets have two columns also where there is no token
    offsets = np.array(ranges, np.int32).reshape(-1, 2)
    counts = count_characters(built_prompt.text, spans, offsets)
    filler_characters = counts[:, FILLER_INDEX]
    starts, ends = offsets.T
    widths = ends - starts
    has_width = widths > 0
    inner_positions = np.flatnonzero(has_width & (filler_characters == widths)).tolist()
    is_straddling = (filler_characters > 0) & (filler_characters < widths)
    is_in_problem = has_width & counts[:, [PROBLEM_INDEX, DEMONSTRATION_INDEX]].any(axis=1)
    return replace(
        built_prompt,
        spans=tuple(spans),
        token_ids=token_ids,
        offsets=offsets,
        problem_token_ids=tuple(token_ids[position] for position in np.flatnonzero(is_in_problem)),
        filler_tokens=len(inner_positions),
        straddling_tokens=int(is_straddling.sum()),
        filler_span=(inner_positions[0], inner_positions[-1] + 1) if inner_positions else None,
    )
