"""Tokenizers: chat templates, token ids, fillers of an exact length, and segments found again in a template."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError, ModelError, PromptMismatchError
from harness.experiment.conditions import Condition, Sentence
from harness.experiment.prompt import SEPARATOR, Layout, Prompt, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PINNED_DATE = date(2024, 7, 26)
"""The date that chat templates print instead of today's, so that a prompt does not depend on the day it was run.

It is the date that Llama 3.1's own template falls back to.
"""
_CODES = [f"%{flag}{code}" for flag in ("", *"-_0^#") for code in "aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ"]
"""Every format code of `strftime`. Flags such as that of `%-d` are GNU's."""

# `%%` is set aside first, so that the `%d` of `%%d` is not read as a day
_PINNED_CODES = {"%%": "\0", **{code: PINNED_DATE.strftime(code) for code in _CODES}, "\0": "%"}
"""The text of each format code on the pinned date, in the order in which they are replaced."""

# Templates ask for the date by the variable `date_string` or by calling `strftime_now(format)`. transformers provides
# the function itself, and from 5.22 on it turns every function that a caller passes into a string. So a macro of that
# name is set before the template. `trim_blocks` removes the macro's last newline: the template still begins a line.
_PINNED_CLOCK = (
    "{% macro strftime_now(format) %}{% set pinned = namespace(text=format) %}"
    "{% for code, text in pinned_codes.items() %}{% set pinned.text = pinned.text | replace(code, text) %}{% endfor %}"
    "{{ pinned.text }}{% endmacro %}\n"
)


def hash_token_ids(token_ids: Iterable[int]) -> str:
    """SHA-256 of the ids in decimal, separated by commas, so that any tool can compute it."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a fast tokenizer from a folder or the hub.

    Raises:
        ModelError: the folder does not exist, the hub refuses or cannot be reached, or no fast tokenizer exists.
    """
    refuse_missing_folder(name)
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error
    if not tokenizer.is_fast:
        raise ModelError(
            f"The tokenizer of {name} has no fast version, and only fast ones give character offsets. "
            "Expected a tokenizer.json beside the model: convert it with transformers."
        )
    # mless itself checks lengths against the model's context, with an error that says what to do
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def refuse_missing_folder(name: str) -> None:
    """Raise ModelError if `name` is written as a path, and there is no such folder."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        raise ModelError(
            f"Model folder {name} does not exist. Expected a folder with config.json, a hub name such as "
            "Qwen/Qwen2.5-Math-7B, or `demo` for the bundled model."
        )


def explain_hub_error(name: str, error: BaseException) -> str:
    """One line that says why `name` could not be loaded from the hub, and what to do."""
    chain: list[str] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    text = " ".join(chain)
    if re.search(r"Gated|\b401\b|\b403\b|awaiting a review|restricted", text):
        return (
            f"The hub refuses {name} (401/403): it is gated, private or does not exist. Check the spelling, "
            "accept its licence on its page, then log in with `hf auth login` or set HF_TOKEN."
        )
    if re.search(
        r"offline|Connect(ion)?Error|Connection|resol(ve|ution)|Name or service|Temporary failure|Max retries|"
        r"timed out|couldn't connect|outgoing traffic|LocalEntryNotFound",
        text,
        re.I,
    ):
        return (
            f"The hub could not be reached for {name}, and it is not in the local cache. Check the network, or on a "
            "connected machine run `mless fetch CONFIG` and carry the cache over with HF_HUB_OFFLINE=1."
        )
    said = " ".join(str(error).split()) or type(error).__name__
    if re.search(r"\b404\b|RepositoryNotFound|not a valid model identifier|HFValidationError", text):
        said = "there is neither such a folder nor such a name on the hub. Check the spelling."
    return f"{name} cannot be loaded: {said[:400]}"


def apply_chat_template(
    tokenizer: PreTrainedTokenizerBase, turns: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True
) -> str:
    """Render a chat by the model's template, with PINNED_DATE as today's date.

    Use it wherever a chat is rendered, so that no prompt depends on the day.

    Raises:
        ModelError: the model has no chat template, or the template fails on these turns.
    """
    name = tokenizer.name_or_path or "This model"
    if not tokenizer.chat_template:
        raise ModelError(
            f"{name} has no chat template, and the layout `chat` needs one. Use `layouts: [raw]` for a base model, or "
            "name its chat version."
        )
    try:
        text = tokenizer.apply_chat_template(
            list(turns),
            chat_template=_PINNED_CLOCK + tokenizer.get_chat_template(),
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            date_string=PINNED_DATE.strftime("%d %b %Y"),
            pinned_codes=_PINNED_CODES,
        )
    except Exception as error:  # jinja's own errors, and any that a template makes Python raise
        raise ModelError(
            f"The chat template of {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:400]} "
            f"Expected it to render the turns {', '.join(turn['role'] for turn in turns)}. Mend the template, or use "
            "`layouts: [raw]`."
        ) from error
    assert isinstance(text, str)
    return text


def has_system_turn(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Whether the chat template shows a system turn: some templates refuse one, and some drop it silently."""
    if tokenizer is None or not tokenizer.chat_template:
        return True
    mark = "A-SYSTEM-TURN"
    try:
        turns = [{"role": "system", "content": mark}, {"role": "user", "content": "?"}]
        return mark in apply_chat_template(tokenizer, turns, add_generation_prompt=False)
    except ModelError:
        return False


def render(prompt: Prompt, layout: Layout, tokenizer: PreTrainedTokenizerBase) -> str:
    """The prompt as the model gets it, templated if the layout is `chat`.

    Raises:
        ModelError: the layout is `chat`, and the model has no chat template or the template fails.
    """
    return apply_chat_template(tokenizer, prompt.messages) if layout is Layout.CHAT else prompt.text


def encode(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Token ids, and the characters (start, end) that each covers. A text that begins with BOS gets no second one."""
    bos = tokenizer.bos_token
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=not (bos and text.startswith(bos)))
    return tuple(encoded["input_ids"]), [tuple(o) for o in encoded["offset_mapping"]]


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
        f"The chat template changed the text of a turn: expected to find {body[:60]!r} in the templated "
        "prompt. Use the layout `raw`, or a template that keeps turns as they are."
    )


def fit_filler(condition: Condition, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """The condition's filler as text: a sentence is cut to its exact count, and token ids are decoded.

    Raises:
        ConfigError: the filler needs a tokenizer and none was given, or it has no such ids or no sentence so long.
        PromptMismatchError: the tokenizer reads the decoded ids back as other ids.
    """
    filler = condition.filler
    if filler is None:
        return ""
    if tokenizer is None:
        return filler.text()
    if isinstance(filler, Sentence):
        return filler.text(lambda text: len(_ids_between_separators(text, tokenizer)))
    if filler.token_ids is None:
        return filler.text()
    wanted, largest = filler.repeated_ids(), max(filler.token_ids)
    if largest >= len(tokenizer):
        raise ConfigError(
            f"Filler {condition.name!r} names token id {largest}, but the tokenizer has {len(tokenizer)} "
            "tokens. Look the ids up with this model's tokenizer."
        )
    text = str(tokenizer.decode(wanted))
    got = _ids_between_separators(text, tokenizer)
    if got != wanted:
        raise PromptMismatchError(
            f"Filler {condition.name!r}: its token_ids decode to {text[:40]!r}..., which this tokenizer "
            f"reads back as {len(got)} other ids. Give ids whose text stands by itself, or a `unit`."
        )
    return text


def context_length(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> int | None:
    """The number of positions that the model's config allows. None: it does not state one."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error
    config = config.get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _ids_between_separators(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a filler's text where it stands between two separators, as in a prompt."""
    low, high = len(SEPARATOR) + 1, len(SEPARATOR) + 1 + len(text)
    encoded = tokenizer(f".{SEPARATOR}{text}{SEPARATOR}A", return_offsets_mapping=True, add_special_tokens=False)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [i for i, (start, end) in pairs if start < end and start < high and low < end]
