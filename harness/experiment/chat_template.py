"""Chat templates: turns become text, the same text on every day, and the prompt's segments are found again in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.constants import PINNED_DATE
from harness.errors import ConfigError, ModelError, PromptMismatchError
from harness.experiment.prompt import Layout, Prompt, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_PINNED = date(*PINNED_DATE)
_CODES = [f"%{flag}{code}" for flag in ("", *"-_0^#") for code in "aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ"]
"""Every format code of `strftime`. Flags such as that of `%-d` are GNU's."""

# `%%` is set aside first, so that the `%d` of `%%d` is not read as a day
_PINNED_CODES = {"%%": "\0", **{code: _PINNED.strftime(code) for code in _CODES}, "\0": "%"}
"""The text of each format code on the pinned date, in the order in which they are replaced."""

_OURS = frozenset(("chat_template", "tokenize", "add_generation_prompt", "continue_final_message", "pinned_codes"))
"""Names that `apply_chat_template` gives a template or transformers itself, and no switch may have."""

# Templates ask for the date by the variable `date_string` or by calling `strftime_now(format)`. transformers provides
# the function itself, and from 5.22 on it turns every function that a caller passes into a string. So a macro of that
# name is set before the template. `trim_blocks` removes the macro's last newline: the template still begins a line.
_PINNED_CLOCK = (
    "{% macro strftime_now(format) %}{% set pinned = namespace(text=format) %}"
    "{% for code, text in pinned_codes.items() %}{% set pinned.text = pinned.text | replace(code, text) %}{% endfor %}"
    "{{ pinned.text }}{% endmacro %}\n"
)


def template_switches(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What lm-eval's model arguments `chat_template_args` and `enable_thinking` tell a chat template.

    Raises:
        ConfigError: `chat_template_args` is no mapping, or has a name that belongs to the harness.
    """
    given = arguments.get("chat_template_args") or {}
    if not isinstance(given, Mapping) or (ours := _OURS & given.keys()):
        got = f"the name {min(ours)}, which is set for every prompt" if isinstance(given, Mapping) else repr(given)
        raise ConfigError(f"chat_template_args: expected a mapping of the template's own switches, got {got}.")
    thinking = arguments.get("enable_thinking")
    return ({} if thinking is None else {"enable_thinking": thinking}) | dict(given)


def refuse_unread(tokenizer: PreTrainedTokenizerBase, switches: Iterable[str]) -> None:
    """Raise ConfigError if the chat template reads one of these switches nowhere, as its value would change nothing."""
    template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
    for name in switches:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ConfigError(f"The chat template of {tokenizer.name_or_path} reads no switch {name!r}.")


def apply_chat_template(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
    switches: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Render a chat by the model's template, with PINNED_DATE as today's date.

    Use it wherever a chat is rendered, so that no prompt depends on the day.

    Args:
        tokenizer: The model's.
        turns: The messages.
        add_generation_prompt: Whether the answer's turn is opened.
        switches: The template's own variables, such as `enable_thinking`; from `template_switches`.

    Raises:
        ModelError: the model has no chat template, or the template fails on these turns.
    """
    name = tokenizer.name_or_path or "This model"
    if not tokenizer.chat_template:
        raise ModelError(f"{name} has no chat template, and the layout `chat` needs one.")
    try:
        text = tokenizer.apply_chat_template(
            list(turns),
            chat_template=_PINNED_CLOCK + tokenizer.get_chat_template(),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            pinned_codes=_PINNED_CODES,
            **{"date_string": _PINNED.strftime("%d %b %Y"), **switches},
        )
    except Exception as error:  # jinja's own errors, and any that a template makes Python raise
        raise ModelError(
            f"The chat template of {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
        ) from error
    assert isinstance(text, str)
    return text


def has_system_turn(
    tokenizer: PreTrainedTokenizerBase | None, switches: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Whether the chat template shows a system turn: some templates refuse one, and some drop it silently."""
    if tokenizer is None or not tokenizer.chat_template:
        return True
    mark = "A-SYSTEM-TURN"
    try:
        turns = [{"role": "system", "content": mark}, {"role": "user", "content": "?"}]
        return mark in apply_chat_template(tokenizer, turns, add_generation_prompt=False, switches=switches)
    except ModelError:
        return False


def render(
    prompt: Prompt,
    layout: Layout,
    tokenizer: PreTrainedTokenizerBase,
    switches: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """The prompt as the model gets it, templated if the layout is `chat`.

    Raises:
        ModelError: the layout is `chat`, and the model has no chat template or the template fails.
    """
    if layout is Layout.CHAT:
        return apply_chat_template(tokenizer, prompt.messages, switches=switches)
    return prompt.text


def find_segments(prompt: Prompt, text: str) -> list[tuple[Role, tuple[int, int]]]:
    """Role and half-open character span of each segment in the templated text. What lies between them is template.

    All segments of a turn are searched for as one stretch, so that a short problem such as "2" is not mistaken for a
    digit elsewhere. Templates may trim a turn's outer blanks. A turn is therefore searched for as it is, then without
    them, and a separator that was trimmed away is left out.

    Raises:
        PromptMismatchError: the template changed or dropped a turn, so that it cannot be found again.
    """
    spans: list[tuple[Role, tuple[int, int]]] = []
    search_from, untemplated = 0, text == prompt.text
    for turn in (prompt.segments[: prompt.system_size], prompt.segments[prompt.system_size :]):
        whole = "".join(segment.text for segment in turn)
        if not whole.strip() and not untemplated:
            continue
        body = whole if text.find(whole, search_from) >= 0 else whole.strip()
        found = search_from if untemplated else _find_turn(body, text, search_from, last=bool(spans))
        search_from = found + len(body)
        at = found - whole.index(body)
        for segment in turn:
            low, high = max(at, found), min(at + len(segment.text), found + len(body))
            if low < high or segment.role != "separator":
                spans.append((segment.role, (low, high)))
            at += len(segment.text)
    return spans


def _find_turn(body: str, text: str, start: int, *, last: bool) -> int:
    """Where a turn begins: at its first or last occurrence from `start` on, if possible not within a word.

    Raises:
        PromptMismatchError: there is no occurrence.
    """
    before = r"(?<![^\W_])" if body[0].isalnum() else ""
    after = r"(?![^\W_])" if body[-1].isalnum() else ""
    for pattern in (before + re.escape(body) + after, re.escape(body)):
        if places := [match.start() for match in re.compile(f"(?={pattern})").finditer(text, start)]:
            return places[-1 if last else 0]
    raise PromptMismatchError(
        f"The chat template changed the text of a turn: expected to find {body[:60]!r} in the templated prompt."
    )
