"""Prompts as the model sees them: templating, token ids, and where each segment's tokens lie."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError, ModelError, PromptMismatchError
from harness.experiment.conditions import Condition, Filler, Sentence
from harness.experiment.prompt import SEPARATOR, Layout, Prompt, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PINNED_DATE = date(2024, 7, 26)
"""What chat templates that print today's date get instead: a prompt must not depend on the day it was run.

It is the date that Llama 3.1's own template falls back to.
"""
_PINNED_CODES = {
    "%%": "\0",  # set aside first, so that the `%d` of `%%d` is not read as a day
    **{
        f"%{flag}{code}": PINNED_DATE.strftime(f"%{flag}{code}")
        for flag in ("", *"-_0^#")
        for code in "aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ"
    },
    "\0": "%",
}
"""What each format code of `strftime` stands for on the pinned date; flags such as `%-d` are GNU's."""

# Templates ask for the date by the variable `date_string` or by calling `strftime_now(format)`. transformers gives the
# second one itself, and from 5.22 it turns every function that a caller passes into a string. A macro of that name,
# set before the template, takes its place. Its last newline is removed by `trim_blocks`, so that the template begins
# on a line of its own and is read as if nothing stood before it.
_PINNED_CLOCK = (
    "{% macro strftime_now(format) %}{% set pinned = namespace(text=format) %}"
    "{% for code, text in pinned_codes.items() %}{% set pinned.text = pinned.text | replace(code, text) %}{% endfor %}"
    "{{ pinned.text }}{% endmacro %}\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReport:
    """How one prompt's tokens lie over its segments.

    Attributes:
        text: The prompt as the model gets it, templated if the layout is `chat`.
        filler_tokens: Tokens that lie wholly within the filler.
        straddling: Tokens that cover filler and other text at once.
        merged: Tokens within the filler that cover more than one unit.
        filler_span: First filler token and the one after the last; None without a filler.
        prompt_token_ids: The whole prompt.
        problem_token_ids: Tokens that cover any of the problem.
    """

    text: str
    filler_tokens: int
    straddling: int
    merged: int
    filler_span: tuple[int, int] | None
    prompt_token_ids: tuple[int, ...]
    problem_token_ids: tuple[int, ...]


def hash_token_ids(token_ids: Iterable[int]) -> str:
    """SHA-256 over the ids in decimal, comma-separated: the same for every tool that has the ids."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a fast tokenizer from a folder or the hub.

    Raises:
        ModelError: the folder does not exist, the hub refuses or cannot be reached, or there is no fast tokenizer.
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
    # lengths are checked against the model's context by us, with an error that says what to do
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def refuse_missing_folder(name: str) -> None:
    """Raise ModelError if `name` is written as a path and no folder is there."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        raise ModelError(
            f"Model folder {name} does not exist. Expected a folder with config.json, a hub name such as "
            "Qwen/Qwen2.5-Math-7B, or `demo` for the bundled model."
        )


def explain_hub_error(name: str, error: BaseException) -> str:
    """One line on why the hub did not give `name`, and what to do."""
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
    """The turns as the model's chat template renders them, with today's date pinned to PINNED_DATE.

    Use it wherever a chat is rendered, so that the prompt never depends on the day.

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
    except Exception as error:  # jinja's own errors, or whatever the template makes Python raise
        raise ModelError(
            f"The chat template of {name} failed: {type(error).__name__}: {' '.join(str(error).split())[:400]} "
            f"Expected it to render the turns {', '.join(turn['role'] for turn in turns)}. Mend the template, or use "
            "`layouts: [raw]`."
        ) from error
    assert isinstance(text, str)
    return text


def has_system_turn(tokenizer: PreTrainedTokenizerBase | None) -> bool:
    """Whether the chat template shows a system turn. Some refuse one, some drop it silently."""
    if tokenizer is None or not tokenizer.chat_template:
        return True
    mark = "A-SYSTEM-TURN"
    try:
        turns = [{"role": "system", "content": mark}, {"role": "user", "content": "?"}]
        return mark in apply_chat_template(tokenizer, turns, add_generation_prompt=False)
    except ModelError:
        return False


def render(prompt: Prompt, layout: Layout, tokenizer: PreTrainedTokenizerBase) -> str:
    """The final text, templated if the layout is `chat`.

    Raises:
        ModelError: the layout is `chat`, and the model has no chat template or the template fails.
    """
    return apply_chat_template(tokenizer, prompt.messages) if layout is Layout.CHAT else prompt.text


def encode(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Token ids and character offsets. A text that brings its own BOS gets no second one."""
    bos = tokenizer.bos_token
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=not (bos and text.startswith(bos)))
    return tuple(encoded["input_ids"]), [tuple(o) for o in encoded["offset_mapping"]]


def measure(
    prompt: Prompt, layout: Layout, tokenizer: PreTrainedTokenizerBase, *, unit: str | None = None
) -> TokenReport:
    """Lay the prompt's tokens over its segments; `unit` is what the filler repeats, if it repeats something.

    Raises:
        PromptMismatchError: the chat template changed or dropped a segment, so that it cannot be found again.
    """
    text = render(prompt, layout, tokenizer)
    spans = find_segments(prompt, text)
    token_ids, offsets = encode(text, tokenizer)
    fillers = [span for role, span in spans if role == "filler"]
    problems = [span for role, span in spans if role == "problem"]
    inside, straddling, merged = [], 0, 0
    problem_ids = []
    for index, (start, end) in enumerate(offsets):
        if start == end:
            continue
        for low, high in fillers:
            if low <= start and end <= high:
                inside.append(index)
                merged += unit is not None and text[start:end].count(unit) > 1
            elif start < high and low < end:
                straddling += 1
        if any(start < high and low < end for low, high in problems):
            problem_ids.append(token_ids[index])
    return TokenReport(
        text=text,
        filler_tokens=len(inside),
        straddling=straddling,
        merged=merged,
        filler_span=(inside[0], inside[-1] + 1) if inside else None,
        prompt_token_ids=token_ids,
        problem_token_ids=tuple(problem_ids),
    )


def find_segments(prompt: Prompt, text: str) -> list[tuple[Role, tuple[int, int]]]:
    """Role and half-open character span of each segment in the templated text; what lies between them is template.

    A turn's segments are found as one stretch, so that a short problem such as "2" is not mistaken for a digit
    elsewhere. Templates may trim a turn's outer blanks, so it is looked for as it is, then without them; a separator
    that was trimmed away is left out.

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
    """Where the turn begins: its first or last occurrence that does not stand within a word of the template."""
    places = [match.start() for match in re.finditer(f"(?={re.escape(body)})", text) if match.start() >= start]
    if not places:
        raise PromptMismatchError(
            f"The chat template changed the text of a turn: expected to find {body[:60]!r} in the templated "
            "prompt. Use the layout `raw`, or a template that keeps turns as they are."
        )

    def whole_words(place: int) -> bool:
        left, right = text[max(place - 1, 0) : place + 1], text[place + len(body) - 1 : place + len(body) + 1]
        return not (place and left.isalnum()) and not (len(right) == 2 and right.isalnum())

    places = [place for place in places if whole_words(place)] or places
    return places[-1 if last else 0]


def fit_filler(condition: Condition, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """The condition's filler as text: a sentence cut to its exact count, token ids decoded.

    Raises:
        ConfigError: the filler needs a tokenizer, or no sentence of that length exists in this one.
    """
    filler = condition.filler
    match filler:
        case None:
            return ""
        case Sentence():
            if tokenizer is None:
                return filler.text()
            return filler.text(lambda text: len(_ids_between_separators(text, tokenizer)))
        case Filler(token_ids=ids) if ids is not None:
            if tokenizer is None:
                return filler.text()
            if max(ids) >= len(tokenizer):
                raise ConfigError(
                    f"Filler {condition.name!r} names token id {max(ids)}, but the tokenizer has {len(tokenizer)} "
                    "tokens. Look the ids up with this model's tokenizer."
                )
            text = filler.text(lambda wanted: str(tokenizer.decode(wanted)))
            wanted = [ids[i % len(ids)] for i in range(filler.count)]
            got = _ids_between_separators(text, tokenizer)
            if got != wanted:
                raise PromptMismatchError(
                    f"Filler {condition.name!r}: its token_ids decode to {text[:40]!r}..., which this tokenizer "
                    f"reads back as {len(got)} other ids. Give ids whose text stands by itself, or a `unit`."
                )
            return text
        case Filler():
            return filler.text()


def context_length(name: str, *, revision: str | None = None, trust_remote_code: bool = False) -> int | None:
    """Positions that the model's config allows; None where it does not say."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error
    config = config.get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _ids_between_separators(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a filler as it stands in a prompt, between two separators."""
    low, high = len(SEPARATOR) + 1, len(SEPARATOR) + 1 + len(text)
    encoded = tokenizer(f".{SEPARATOR}{text}{SEPARATOR}A", return_offsets_mapping=True, add_special_tokens=False)
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [i for i, (start, end) in pairs if start < end and start < high and low < end]
