"""A model's chat template: the same text on every day, and the prompt's segments in that text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import product
from typing import TYPE_CHECKING, Any

from harness.errors import ConfigError, ModelError, PromptMismatchError, quote_error
from harness.experiment.prompts.prompt import Prompt, Role, Segment, join_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ModelArguments = Mapping[str, Any]
"""The arguments of a model, as lm-eval takes them."""
RoleSpan = tuple[Role, tuple[int, int]]
"""The role of a segment, and its half-open range of characters in a text."""
PINNED_DATE = date(2024, 7, 26)
"""The date that chat templates print as today's: the default date of Llama 3.1's template."""

_FORMAT_CODES = map(
    "".join, product("%", ["", *"-_0^#"], "aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ")
)
"""All format codes of `strftime`. Flags such as that of `%-d` are GNU's."""

# `%%` is set aside first, so that the `%d` of `%%d` is not read as a day
_PINNED_TEXT_BY_CODE = {
    "%%": "\0",
    **{code: PINNED_DATE.strftime(code) for code in _FORMAT_CODES},
    "\0": "%",
}
"""The text of each format code on the pinned date, in the order of their replacement."""

# Templates read the date from the variable `date_string`, or call `strftime_now(format)`.
# transformers provides this function, and from 5.22 on it turns every function of a caller into a
# string. So a macro of that name is set before the template. `trim_blocks` removes the newline
# after the macro, so the template begins a line as before.
_PINNED_CLOCK_MACRO = (
    "{% macro strftime_now(format) %}{% set pinned = namespace(text=format) %}"
    "{% for code, text in pinned_codes.items() %}"
    "{% set pinned.text = pinned.text | replace(code, text) %}{% endfor %}"
    "{{ pinned.text }}{% endmacro %}\n"
)

_INSIDE_WORD_PATTERN = re.compile(r"(?<=[^\W_])[^\W_]")
"""Matches at a position between two letters or digits: the edge of a text there cuts a word."""


def template_switches(arguments: ModelArguments) -> dict[str, Any]:
    """Read a chat template's variables from `chat_template_args` and `enable_thinking` of lm-eval.

    Raises:
        ConfigError: `chat_template_args` is not a mapping.
    """
    switches = arguments.get("chat_template_args") or {}
    if not isinstance(switches, Mapping):
        raise ConfigError(
            f"chat_template_args: expected a mapping of the template's switches, got {switches!r}."
        )
    thinking = arguments.get("enable_thinking")
    return ({} if thinking is None else {"enable_thinking": thinking}) | dict(switches)


def choose_template(model_name: str, templates: Any, template_name: object) -> str | None:
    """Choose one of a tokenizer's chat templates: the named one, else `default`.

    Args:
        model_name: The name of the model, for messages.
        templates: `chat_template` of its tokenizer: one template, several by name, or None.
        template_name: The model argument `chat_template`; None if it is not set.

    Raises:
        ConfigError: there is no template of this name.
    """
    if not isinstance(templates, Mapping):
        templates = {"default": templates}
    template_name = str(template_name or "default")
    if template_name not in templates:
        raise ConfigError(
            "model.model_args.chat_template: expected the name of a chat template of "
            f"{model_name} ({', '.join(sorted(templates))}), got {template_name}."
        )
    template: str | None = templates[template_name]
    return template


def apply_chat_template(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, str]],
    switches: Mapping[str, Any] = {},
) -> str:
    """Render a chat by the model's template, with PINNED_DATE as today's date.

    The turn of the answer is opened.

    All chats must be rendered here, so that no prompt depends on the day.

    Args:
        tokenizer: The model's tokenizer.
        messages: The messages of the chat.
        switches: The template's own variables, from `template_switches`.

    Raises:
        ModelError: the model has no chat template, or the template fails on these messages.
    """
    name = tokenizer.name_or_path or "This model"
    if not tokenizer.chat_template:
        raise ModelError(f"{name} has no chat template, and the layout `chat` needs one.")
    try:
        text = tokenizer.apply_chat_template(
            list(messages),
            chat_template=_PINNED_CLOCK_MACRO + tokenizer.get_chat_template(),
            tokenize=False,
            add_generation_prompt=True,
            pinned_codes=_PINNED_TEXT_BY_CODE,
            **{"date_string": PINNED_DATE.strftime("%d %b %Y"), **switches},
        )
    except Exception as error:  # a template can also make Python raise any error
        raise ModelError(f"The chat template of {name} failed: {quote_error(error)}") from error
    assert isinstance(text, str)
    return text


def has_system_turn(tokenizer: PreTrainedTokenizerBase, switches: Mapping[str, Any] = {}) -> bool:
    """Whether the chat template prints a system turn. Some refuse it, and some drop it silently."""
    if not tokenizer.chat_template:
        return True
    system_text = "A-SYSTEM-TURN"
    try:
        messages = [{"role": "system", "content": system_text}, {"role": "user", "content": "?"}]
        return system_text in apply_chat_template(tokenizer, messages, switches)
    except ModelError:
        return False


def find_segments(prompt: Prompt, text: str) -> list[RoleSpan]:
    """The role and the half-open range of characters of each segment in the templated text.

    The text between the segments is template. All segments of a turn are searched for as one text,
    so that a short problem such as "2" is not mistaken for a digit elsewhere. Templates may trim a
    turn's outer blanks, so a turn that is not in the text as it is is searched for trimmed. Then
    its first and last segments are shorter, and a separator of which nothing is left is left out.

    Raises:
        PromptMismatchError: the template changed or dropped a turn.
    """
    spans: list[RoleSpan] = []
    previous_end = 0
    # without a chat template the text is that of the segments, and so has no turns
    turns = [prompt.segments] if text == prompt.text else prompt.turns
    # The turns are in order, so each is searched for after the previous one.
    for turn_number, turn in enumerate(turns, start=1):
        turn_text = join_texts(turn)
        if not turn_text.strip():
            continue
        searched_text = turn_text if turn_text in text[previous_end:] else turn_text.strip()
        # The template's own text between two turns may contain a short problem, so the last turn is
        # the last occurrence of its text. A single turn usually contains the instruction, which the
        # template's text before it does not, so it is the first occurrence.
        takes_last = bool(spans) and turn_number == len(turns)
        turn_start = _find_turn(searched_text, text, previous_end, takes_last=takes_last)
        previous_end = turn_start + len(searched_text)
        # where the turn would begin if the template had not trimmed it
        untrimmed_start = turn_start - turn_text.index(searched_text)
        spans += _clip_segments(turn, untrimmed_start, turn_start, previous_end)
    return spans


def _clip_segments(
    turn: Sequence[Segment], untrimmed_position: int, turn_start: int, turn_end: int
) -> Iterator[RoleSpan]:
    """Yield the role and the range of characters of each segment of a turn in the templated text.

    Args:
        turn: The segments of the turn, untrimmed.
        untrimmed_position: Where the turn would begin if the template had not trimmed it. Each
            segment moves it on by its length.
        turn_start: Where the trimmed turn begins. No range begins before it.
        turn_end: Where the trimmed turn ends. No range ends after it.
    """
    start = turn_start
    for segment in turn:
        # now where the segment would end
        untrimmed_position += len(segment.text)
        # within the turn, so that the range of a trimmed segment is empty
        stop = min(max(untrimmed_position, turn_start), turn_end)
        # a trimmed filler is kept with an empty range, so that the checks expect its tokens
        if segment.role != "turn" and (start < stop or segment.role != "separator"):
            yield segment.role, (start, stop)
        # segments follow each other without a gap
        start = stop


def _find_turn(turn_text: str, text: str, start: int, *, takes_last: bool) -> int:
    """Find the first or the last occurrence of a turn's text from `start` on.

    Occurrences whose edges cut no word are preferred.

    Raises:
        PromptMismatchError: there is no occurrence.
    """
    positions = []
    whole_word_positions = []
    position = text.find(turn_text, start)
    while position >= 0:
        positions.append(position)
        edges = (position, position + len(turn_text))
        if not any(_INSIDE_WORD_PATTERN.match(text, edge) for edge in edges):
            whole_word_positions.append(position)
        position = text.find(turn_text, position + 1)
    if not positions:
        raise PromptMismatchError(
            f"The chat template changed the text of a turn: expected to find {turn_text[:60]!r} "
            "in the templated prompt."
        )
    # whole words are preferred, so that the problem 2 is not found in the 12 of an example
    candidates = whole_word_positions or positions
    return candidates[-1] if takes_last else candidates[0]
