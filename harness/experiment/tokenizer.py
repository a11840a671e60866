"""A model's tokenizer: loaded or refused, its token ids, its chat template, and fillers of an exact length.

A chat template gives the same text on every day, and the prompt's segments are found again in that text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import cycle, islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness import smollm2_model
from harness.constants import SEPARATOR
from harness.errors import ConfigError, ModelError, PromptMismatchError, explain_hub_error
from harness.experiment.conditions import Condition
from harness.experiment.prompt import Prompt, Role

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

PINNED_DATE = (2024, 7, 26)
"""The date that chat templates print instead of today's: that which Llama 3.1's own template falls back to."""

_PINNED = date(*PINNED_DATE)
_CODES = [
    f"%{flag}{code}"
    for flag in ("", *"-_0^#")
    for code in "aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ"
]
"""Every format code of `strftime`. Flags such as that of `%-d` are GNU's."""

# `%%` is set aside first, so that the `%d` of `%%d` is not read as a day
_PINNED_CODES = {"%%": "\0", **{code: _PINNED.strftime(code) for code in _CODES}, "\0": "%"}
"""The text of each format code on the pinned date, in the order in which they are replaced."""

# Templates ask for the date by the variable `date_string` or by calling `strftime_now(format)`. transformers provides
# the function itself, and from 5.22 on it turns every function that a caller passes into a string. So a macro of that
# name is set before the template. `trim_blocks` removes the macro's last newline: the template still begins a line.
_PINNED_CLOCK = (
    "{% macro strftime_now(format) %}{% set pinned = namespace(text=format) %}"
    "{% for code, text in pinned_codes.items() %}{% set pinned.text = pinned.text | replace(code, text) %}{% endfor %}"
    "{{ pinned.text }}{% endmacro %}\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A model's tokenizer and context length: all that its prompts depend on.

    Attributes:
        name: For messages.
        tokenizer: Its tokenizer.
        context_length: Positions, None where unknown.
        switches: What its chat template is told; see `template_switches`.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    context_length: int | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ModelTokenizer | None:
        """The model that lm-eval's model arguments name, None where they name none that can be loaded here.

        `tokenizer` and `pretrained` are loaded or refused. A bare `model` (the API backends) counts only if it is a
        folder: a served model may have any name.

        Raises:
            ModelError: the tokenizer cannot be loaded.
            ConfigError: the context length is no number, or not stated where it must be; a switch is read nowhere.
        """
        served = str(arguments.get("model") or "")
        weights = arguments.get("pretrained") or (
            served if Path(served).is_dir() and served else None
        )
        name = arguments.get("tokenizer") or weights
        if not isinstance(name, str) or not (weights is None or isinstance(weights, str)):
            return None
        revision, trust = (
            arguments.get("revision"),
            arguments.get("trust_remote_code") in (True, "True", "true"),
        )
        tokenizer = load_tokenizer(
            smollm2_model.resolve_model(name),
            revision=arguments.get("tokenizer_revision") or revision,
            trust_remote_code=trust,
        )
        length = _stated_length(arguments)
        if weights == name and not (length and arguments.get("hf_overrides")):
            own = context_length(smollm2_model.resolve_model(name), revision, trust)
            length = min(filter(None, (length, own)), default=None)
        switches = template_switches(arguments)
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        if unread := [one for one in switches if not re.search(rf"\b{re.escape(one)}\b", template)]:
            raise ConfigError(f"The chat template of {name} reads no switch {unread[0]!r}.")
        return cls(name=name, tokenizer=tokenizer, context_length=length, switches=switches)


def _stated_length(arguments: Mapping[str, Any]) -> int | None:
    """The context length that the arguments state.

    lm-eval takes 2048 for a completions API without `max_length`, keeps 2047 for prompt and completion together, and
    cuts the front of every prompt where that is not enough. So it must be stated there.
    """
    stated = arguments.get("max_model_len") or arguments.get("max_length")
    base_url = str(arguments.get("base_url") or "").rstrip("/")
    completions = bool(base_url) and not base_url.endswith("chat/completions")
    if stated is None and not completions:
        return None
    if not str(stated).isdigit() or not int(str(stated)):
        also = ", without which lm-eval cuts prompts to 2048 tokens" if completions else ""
        raise ConfigError(
            f"The context length max_length{also}: expected a whole number above 0, got {stated!r}."
        )
    return int(str(stated)) - completions


def hash_token_ids(token_ids: Iterable[int]) -> str:
    """SHA-256 of the ids in decimal, separated by commas, so that any tool can compute it."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a fast tokenizer from a folder or the hub.

    Raises:
        ModelError: the folder does not exist or holds no tokenizer, the hub refuses or cannot be reached, or no fast
            tokenizer exists.
    """
    refuse_missing_folder(name)
    from transformers import AutoTokenizer

    with _hub_errors(name):
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    # without the files some classes load all the same, and read every text as nothing, or as unknown
    missing = set(tokenizer("Find 1 + 1.")["input_ids"]) <= set(tokenizer.all_special_ids)
    for bad, what in (
        (missing, "holds no tokenizer. Expected tokenizer.json, or tokenizer.model, in it"),
        (not tokenizer.is_fast, "has no fast tokenizer, and only fast ones give character offsets"),
    ):
        if bad:
            raise ModelError(f"{name} {what}.")
    # mless itself checks lengths against the model's context, with an error that says what to do
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def refuse_missing_folder(name: str) -> None:
    """Raise ModelError if `name` is written as a path, and there is no such folder."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        trouble = "is a file" if Path(name).expanduser().is_file() else "does not exist"
        raise ModelError(
            f"Model folder {name} {trouble}. Expected a folder, a hub name or `smollm2`."
        )


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """What the hub, or a library that reads a model's folder, complains of is a ModelError."""
    try:
        yield
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error


def context_length(name: str, revision: str | None, trust_remote_code: bool) -> int | None:
    """The number of positions that the model's config allows. None: it does not state one."""
    from transformers import AutoConfig

    with _hub_errors(name):
        config = AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def fetch_repository(name: str, revision: str | None, *, weights: bool) -> Path:
    """Download a model's files into the hub's cache, and return their folder, which is named after the commit.

    Raises:
        ModelError: the hub refuses or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    unneeded = ["*.pth", "*.gguf", "original/*"] + ([] if weights else ["*.safetensors", "*.bin"])
    with _hub_errors(name):
        return Path(snapshot_download(name, revision=revision, ignore_patterns=unneeded))


def encode(
    text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Token ids, and the characters (start, end) that each covers. A text that begins with BOS gets no second one."""
    bos = tokenizer.bos_token
    encoded = tokenizer(
        text, return_offsets_mapping=True, add_special_tokens=not (bos and text.startswith(bos))
    )
    return tuple(encoded["input_ids"]), [tuple(o) for o in encoded["offset_mapping"]]


def decode_completion(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], token_ids: Sequence[int]
) -> str:
    """The text of a completion, as vLLM writes it token by token: half a character at its end is left out.

    Args:
        tokenizer: The model's, a fast one.
        prompt_ids: What the completion follows. After it some tokenizers begin a word with a blank.
        token_ids: The completion, without the token that ended it.
    """
    token_bytes = _token_bytes(tokenizer)
    if token_bytes is not None:
        return _decode_bytes(token_bytes, token_ids)
    return _decode_with_tokenizer(tokenizer, prompt_ids, token_ids)


def _decode_bytes(token_bytes: Mapping[int, bytes], token_ids: Sequence[int]) -> str:
    """`decode_completion` for a byte-level tokenizer, ten times as fast as with its own decoder."""
    data = b"".join(map(token_bytes.__getitem__, token_ids))
    # vLLM writes a token's text only once it ends in a whole character. UTF-8 has at most four bytes in a character,
    # so the last four bytes decide.
    position = len(token_ids)
    while data and data[-4:].decode(errors="replace").endswith("\ufffd"):
        position -= 1
        data = data.removesuffix(token_bytes[token_ids[position]])
    return data.decode(errors="replace")


class _TokenBytes(dict[int, bytes]):
    """The bytes of a byte-level tokenizer's tokens. Each is computed when it first occurs."""

    def __init__(self, tokenizer: Tokenizer, added: Mapping[int, str]) -> None:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        super().__init__((token_id, text.encode()) for token_id, text in added.items())
        self._tokenizer = tokenizer
        self._bytes_by_character = {char: byte for byte, char in bytes_to_unicode().items()}

    def __missing__(self, token_id: int) -> bytes:
        # a model's ids may go beyond its vocabulary
        spelling = self._tokenizer.id_to_token(token_id) or ""
        try:
            # a byte-level vocabulary spells each byte as a printable character, a blank as `Ġ`
            token_bytes = bytes(map(self._bytes_by_character.__getitem__, spelling))
        except KeyError:  # not spelled so, which the tokenizer's decoder takes as it is
            token_bytes = spelling.encode()
        self[token_id] = token_bytes
        return token_bytes


@lru_cache(maxsize=1)
def _token_bytes(tokenizer: PreTrainedTokenizerBase) -> _TokenBytes | None:
    """The bytes of every token; None if joining them does not give the text."""
    from tokenizers.decoders import ByteLevel

    fast, added = tokenizer.backend_tokenizer, _added_tokens(tokenizer)
    if not isinstance(fast.decoder, ByteLevel):
        return None
    for token_id, text in added.items():
        if fast.decode([token_id], skip_special_tokens=False) != text:
            return None
    return _TokenBytes(fast, added)


def _decode_with_tokenizer(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], token_ids: Sequence[int]
) -> str:
    """`decode_completion` for any tokenizer.

    All is decoded at once, seven times as fast as token by token, unless that may differ: at bytes
    that are no text, and where the tokenizer puts blanks between added tokens.
    """
    from tokenizers.decoders import DecodeStream

    fast, added = tokenizer.backend_tokenizer, _added_tokens(tokenizer)
    special = [one in added for one in token_ids]
    if not any(map(all, pairwise(special))) or not _parts_added_tokens(tokenizer):
        whole = DecodeStream(ids=list(prompt_ids), skip_special_tokens=False).step(
            fast, list(token_ids)
        )
        if whole is not None and "\ufffd" not in whole:
            return whole
    stream, text = DecodeStream(ids=list(prompt_ids), skip_special_tokens=False), ""
    for one, last in zip(token_ids, [False, *special], strict=False):
        try:
            piece = stream.step(fast, one)
        except (
            Exception
        ) as error:  # tokenizers has no other name for it; vLLM goes on with a new stream too
            if not str(error).startswith("Invalid prefix"):
                raise
            stream = DecodeStream(skip_special_tokens=False)
            piece = stream.step(fast, one)
        text += added[one] if last and one in added else piece or ""
    return text


@lru_cache(maxsize=1)
def _parts_added_tokens(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether added tokens that follow each other are parted when they are decoded together, which vLLM undoes."""
    fast = tokenizer.backend_tokenizer
    added = _added_tokens(tokenizer).items()
    return any(
        2 * text != fast.decode([one, one], skip_special_tokens=False) for one, text in added
    )


@lru_cache(maxsize=1)
def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Special and other added tokens, by id."""
    return {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}


def fit_filler(
    condition: Condition, tokenizer: PreTrainedTokenizerBase | None, key: str | None = None
) -> str:
    """The condition's filler as text: a sentence is cut to its exact count, and token ids are decoded.

    Random tokens are drawn anew for each `key`, such as a problem's id, if one is given.

    Raises:
        ConfigError: the filler needs a tokenizer and none was given, or it has no sentence so long.
        PromptMismatchError: the tokenizer reads the decoded ids back as other ids.
    """
    if tokenizer is None:
        return condition.filler_text()
    if condition.token_ids is None:

        def count_tokens(text: str) -> int:
            return len(_ids_between_separators(text, tokenizer))

        words = () if condition.random_ids is None else _words(tokenizer)
        return condition.filler_text(count_tokens, words, key)
    wanted = list(islice(cycle(condition.token_ids), condition.count))
    text = str(tokenizer.decode(wanted))
    got = _ids_between_separators(text, tokenizer)
    if got != wanted:
        raise PromptMismatchError(
            f"Filler {condition.name!r}: its token_ids decode to {text[:40]!r}..., which this tokenizer "
            f"reads back as {len(got)} other ids. Give ids whose text stands by itself, or a `unit`."
        )
    return text


@lru_cache(maxsize=1)
def _words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The words of the vocabulary that are one token where they follow a blank, in the order of their ids."""
    tokens = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [token[1:] for token, _ in tokens if re.fullmatch("[\u0120\u2581][A-Za-z]+", token)]


def _ids_between_separators(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a filler's text where it stands between two separators, as in a prompt."""
    low, high = len(SEPARATOR) + 1, len(SEPARATOR) + 1 + len(text)
    encoded = tokenizer(
        f".{SEPARATOR}{text}{SEPARATOR}A", return_offsets_mapping=True, add_special_tokens=False
    )
    pairs = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    return [i for i, (start, end) in pairs if start < end and start < high and low < end]


def template_switches(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What lm-eval's model arguments `chat_template_args` and `enable_thinking` tell a chat template.

    Raises:
        ConfigError: `chat_template_args` is no mapping.
    """
    given = arguments.get("chat_template_args") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"chat_template_args: expected a mapping of the template's own switches, got {given!r}."
        )
    thinking = arguments.get("enable_thinking")
    return ({} if thinking is None else {"enable_thinking": thinking}) | dict(given)


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
        return mark in apply_chat_template(
            tokenizer, turns, add_generation_prompt=False, switches=switches
        )
    except ModelError:
        return False


def find_segments(prompt: Prompt, text: str) -> list[tuple[Role, tuple[int, int]]]:
    """Role and half-open character span of each segment in the templated text. What lies between them is template.

    All segments of a turn are searched for as one stretch, so that a short problem such as "2" is not mistaken for a
    digit elsewhere. Templates may trim a turn's outer blanks. A turn is therefore searched for as it is, then without
    them, and a separator that was trimmed away is left out.

    Raises:
        PromptMismatchError: the template changed or dropped a turn, so that it cannot be found again.
    """
    spans: list[tuple[Role, tuple[int, int]]] = []
    search_from, untemplated, turns = 0, text == prompt.text, prompt.turns
    for place, turn in enumerate([prompt.segments] if untemplated else turns):
        whole = "".join(segment.text for segment in turn)
        if not whole.strip() and not untemplated:
            continue
        body = whole if text.find(whole, search_from) >= 0 else whole.strip()
        last = bool(spans) and place == len(turns) - 1
        found = search_from if untemplated else _find_turn(body, text, search_from, last=last)
        search_from = found + len(body)
        at = found - whole.index(body)
        for segment in turn:
            low, high = max(at, found), min(at + len(segment.text), found + len(body))
            if segment.role != "turn" and (low < high or segment.role != "separator"):
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
        if places := [
            match.start() for match in re.compile(f"(?={pattern})").finditer(text, start)
        ]:
            return places[-1 if last else 0]
    raise PromptMismatchError(
        f"The chat template changed the text of a turn: expected to find {body[:60]!r} in the templated prompt."
    )
