"""A model's tokenizer: loading, token ids, the chat template, and fillers of an exact length.

A chat template gives the same text on every day, and the prompt's segments are found in that text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from itertools import cycle, islice, pairwise, product
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness import smollm2_model
from harness.constants import SEPARATOR
from harness.errors import ConfigError, ModelError, PromptMismatchError, explain_hub_error
from harness.experiment.conditions import Condition
from harness.experiment.prompt import Prompt, Role, hash_text, join_texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PINNED_DATE = date(2024, 7, 26)
"""The date that chat templates print as today's: the default date of Llama 3.1's template."""

_CODE_LETTERS = "aAbBcCdDeFfgGhHIjklmMnpPrRStTuUVwWxXyYzZ"
_CODES = map("".join, product("%", ["", *"-_0^#"], _CODE_LETTERS))
"""All format codes of `strftime`. Flags such as that of `%-d` are GNU's."""

# `%%` is set aside first, so that the `%d` of `%%d` is not read as a day
_PINNED_CODES = {"%%": "\0", **{code: PINNED_DATE.strftime(code) for code in _CODES}, "\0": "%"}
"""The text of each format code on the pinned date, in the order of their replacement."""

# Templates read the date from the variable `date_string`, or call `strftime_now(format)`.
# transformers provides this function, and from 5.22 on it turns every function of a caller into a
# string. So a macro of that name is set before the template. `trim_blocks` removes the newline
# after the macro: the template still begins a line.
_PINNED_CLOCK = (
    "{% macro strftime_now(format) %}{% set pinned = namespace(text=format) %}"
    "{% for code, text in pinned_codes.items() %}"
    "{% set pinned.text = pinned.text | replace(code, text) %}{% endfor %}"
    "{{ pinned.text }}{% endmacro %}\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokenizer:
    """A model's tokenizer and context length: all that its prompts depend on.

    Attributes:
        name: The name for error messages.
        tokenizer: The tokenizer.
        context_length: The number of positions; None if it is unknown.
        switches: The variables of its chat template; see `template_switches`.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    context_length: int | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> ModelTokenizer | None:
        """Load the tokenizer that lm-eval's model arguments name; None if they name no local one.

        A bare `model`, as of the API backends, is loaded only if it is a folder: a served model may
        have any name.

        Raises:
            ModelError: the tokenizer cannot be loaded.
            ConfigError: the context length is no number, or is missing where it is required; the
                template does not read a switch.
        """
        weights = arguments.get("pretrained")
        if not weights:
            served = str(arguments.get("model") or "")
            weights = served if served and Path(served).is_dir() else None
        name = arguments.get("tokenizer") or weights
        if not isinstance(name, str) or not isinstance(weights, str | None):
            return None
        path = smollm2_model.resolve_model(name)
        revision = arguments.get("revision")
        trusts_code = arguments.get("trust_remote_code") in (True, "True", "true")
        tokenizer = load_tokenizer(
            path,
            revision=arguments.get("tokenizer_revision") or revision,
            trust_remote_code=trusts_code,
        )
        length = _stated_length(arguments)
        if weights == name and not (length and arguments.get("hf_overrides")):
            lengths = (length, _load_context_length(path, revision, trusts_code))
            length = min(filter(None, lengths), default=None)
        switches = template_switches(arguments)
        template = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        for switch in switches:
            if not re.search(rf"\b{re.escape(switch)}\b", template):
                raise ConfigError(f"The chat template of {name} reads no switch {switch!r}.")
        return cls(name=name, tokenizer=tokenizer, context_length=length, switches=switches)


def _stated_length(arguments: Mapping[str, Any]) -> int | None:
    """The context length that the arguments state.

    Without `max_length`, lm-eval assumes 2048 for a completions API, reserves 2047 for prompt and
    completion, and cuts the front of longer prompts. So it must be stated there.
    """
    length = arguments.get("max_model_len") or arguments.get("max_length")
    base_url = str(arguments.get("base_url") or "").rstrip("/")
    is_completions = bool(base_url) and not base_url.endswith("chat/completions")
    if length is None and not is_completions:
        return None
    if not str(length).isdigit() or not int(str(length)):
        reason = ", without which lm-eval cuts prompts to 2048 tokens" if is_completions else ""
        raise ConfigError(
            f"The context length max_length{reason}: "
            f"expected a whole number above 0, got {length!r}."
        )
    return int(str(length)) - is_completions


def hash_token_ids(token_ids: Iterable[int]) -> str:
    """SHA-256 of the ids in decimal, separated by commas, so that any tool can compute it."""
    return hash_text(",".join(map(str, token_ids)))


def load_tokenizer(
    name: str, *, revision: str | None = None, trust_remote_code: bool = False
) -> PreTrainedTokenizerBase:
    """Load a fast tokenizer from a folder or the hub.

    Raises:
        ModelError: the folder does not exist or holds no tokenizer, the hub refuses or cannot be
            reached, or no fast tokenizer exists.
    """
    refuse_missing_folder(name)
    from transformers import AutoTokenizer

    with _hub_errors(name):
        tokenizer = AutoTokenizer.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    # some classes load without the files, and read every text as nothing or as unknown tokens
    if set(tokenizer("Find 1 + 1.")["input_ids"]) <= set(tokenizer.all_special_ids):
        raise ModelError(f"{name} has no tokenizer: expected tokenizer.json or tokenizer.model.")
    if not tokenizer.is_fast:
        raise ModelError(
            f"{name} has no fast tokenizer, and only fast tokenizers give character offsets."
        )
    # mless checks lengths itself, with a clearer message
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def refuse_missing_folder(name: str) -> None:
    """Raise ModelError if `name` looks like a path, and there is no such folder."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    path = Path(name).expanduser()
    if looks_like_path and not path.is_dir():
        trouble = "is a file" if path.is_file() else "does not exist"
        raise ModelError(
            f"Model folder {name} {trouble}. Expected a folder, a hub name or `smollm2`."
        )


@contextmanager
def _hub_errors(name: str) -> Iterator[None]:
    """Turn the errors of the hub, and of libraries that read a model's folder, into ModelErrors."""
    try:
        yield
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error


def _load_context_length(name: str, revision: str | None, trust_remote_code: bool) -> int | None:
    """Load the number of positions from the model's config; None if it states none."""
    from transformers import AutoConfig

    with _hub_errors(name):
        config = AutoConfig.from_pretrained(
            name, revision=revision, trust_remote_code=trust_remote_code
        )
    return getattr(config.get_text_config(), "max_position_embeddings", None)


def fetch_repository(name: str, revision: str | None, *, weights: bool) -> Path:
    """Download a model's files into the hub's cache. The name of their folder is the commit.

    Raises:
        ModelError: the hub refuses or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    ignored = ["*.pth", "*.gguf", "original/*"]
    if not weights:
        ignored += ["*.safetensors", "*.bin"]
    with _hub_errors(name):
        return Path(snapshot_download(name, revision=revision, ignore_patterns=ignored))


def encode(
    text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Encode a text into token ids, and the half-open range of characters of each.

    A text that begins with BOS gets no second BOS.
    """
    has_bos = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=not has_bos)
    return tuple(encoded["input_ids"]), encoded["offset_mapping"]


def decode_completion(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], token_ids: Sequence[int]
) -> str:
    """Decode a completion as vLLM does token by token. A last incomplete character is dropped.

    Args:
        tokenizer: A fast tokenizer.
        prompt_ids: The prompt. After it some tokenizers begin a word with a blank.
        token_ids: The completion, without the token that ended it.
    """
    token_bytes = _token_bytes(tokenizer)
    if token_bytes is not None:
        return _decode_bytes(token_bytes, token_ids)
    return _decode_with_tokenizer(tokenizer, prompt_ids, token_ids)


def _decode_bytes(token_bytes: Mapping[int, bytes], token_ids: Sequence[int]) -> str:
    """`decode_completion` for a byte-level tokenizer, ten times faster than its own decoder."""
    # a model's ids may go beyond its vocabulary
    data = b"".join(token_bytes.get(token_id, b"") for token_id in token_ids)
    # vLLM adds the text of a token only if it ends with a complete character. UTF-8 has at most
    # four bytes in a character, so the last four bytes decide.
    position = len(token_ids)
    while data and data[-4:].decode(errors="replace").endswith("\ufffd"):
        position -= 1
        data = data.removesuffix(token_bytes.get(token_ids[position], b""))
    return data.decode(errors="replace")


@lru_cache(maxsize=1)
def _token_bytes(tokenizer: PreTrainedTokenizerBase) -> dict[int, bytes] | None:
    """The bytes of every token; None if joining them does not give the text."""
    from tokenizers.decoders import ByteLevel
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    fast, added = tokenizer.backend_tokenizer, _added_tokens(tokenizer)
    if not isinstance(fast.decoder, ByteLevel):
        return None
    for token_id, text in added.items():
        if fast.decode([token_id], skip_special_tokens=False) != text:
            return None
    # a byte-level vocabulary spells each byte as a printable character, a blank as `Ġ`
    byte_of_character = {character: byte for byte, character in bytes_to_unicode().items()}
    token_bytes = {}
    for token, token_id in fast.get_vocab().items():
        try:
            token_bytes[token_id] = bytes(map(byte_of_character.__getitem__, token))
        except KeyError:  # another spelling, which the tokenizer's decoder does not change
            token_bytes[token_id] = token.encode()
    return token_bytes | {token_id: text.encode() for token_id, text in added.items()}


def _decode_with_tokenizer(
    tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], token_ids: Sequence[int]
) -> str:
    """`decode_completion` for any tokenizer.

    The completion is decoded at once, seven times faster than token by token, unless the results
    may differ: for bytes that are no text, and for tokenizers that put blanks between added tokens.
    """
    from tokenizers.decoders import DecodeStream

    fast, added = tokenizer.backend_tokenizer, _added_tokens(tokenizer)
    is_added = [token_id in added for token_id in token_ids]
    has_neighbours = any(map(all, pairwise(is_added)))
    if not (has_neighbours and _separates_added_tokens(tokenizer)):
        stream = DecodeStream(ids=list(prompt_ids), skip_special_tokens=False)
        text = stream.step(fast, list(token_ids))
        if text is not None and "\ufffd" not in text:
            return str(text)
    stream = DecodeStream(ids=list(prompt_ids), skip_special_tokens=False)
    text = ""
    for token_id, follows_added in zip(token_ids, [False, *is_added], strict=False):
        try:
            piece = stream.step(fast, token_id)
        except Exception as error:
            # tokenizers raises this without a class of its own; vLLM begins a new stream too
            if not str(error).startswith("Invalid prefix"):
                raise
            stream = DecodeStream(skip_special_tokens=False)
            piece = stream.step(fast, token_id)
        if follows_added and token_id in added:
            piece = added[token_id]
        text += piece or ""
    return text


@lru_cache(maxsize=1)
def _separates_added_tokens(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether decoding puts text between neighbouring added tokens, which vLLM prevents."""
    fast = tokenizer.backend_tokenizer
    return any(
        2 * text != fast.decode([token_id, token_id], skip_special_tokens=False)
        for token_id, text in _added_tokens(tokenizer).items()
    )


@lru_cache(maxsize=1)
def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Special and other added tokens, by id."""
    return {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}


def fit_filler(
    condition: Condition, tokenizer: PreTrainedTokenizerBase | None, key: str | None = None
) -> str:
    """The condition's filler as text: a sentence is cut to its exact count, token ids are decoded.

    If a `key` such as a problem's id is given, random tokens are drawn anew for each key.

    Raises:
        ConfigError: the filler needs a tokenizer, or no sentence has this length.
        PromptMismatchError: the tokenizer reads the decoded ids as other ids.
    """
    if tokenizer is None:
        return condition.filler_text()
    if condition.token_ids is None:

        def count_tokens(text: str) -> int:
            return len(_ids_between_separators(text, tokenizer))

        words = () if condition.random_ids is None else _words(tokenizer)
        return condition.filler_text(count_tokens, words, key)
    token_ids = list(islice(cycle(condition.token_ids), condition.count))
    text = str(tokenizer.decode(token_ids))
    encoded_ids = _ids_between_separators(text, tokenizer)
    if encoded_ids != token_ids:
        raise PromptMismatchError(
            f"Filler {condition.name!r}: its token_ids decode to {text[:40]!r}..., which this "
            f"tokenizer encodes as {len(encoded_ids)} other ids. "
            "Expected ids that this tokenizer gives for their text, or a `unit`."
        )
    return text


@lru_cache(maxsize=1)
def _words(tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The words of the vocabulary that are one token after a blank, in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return [token[1:] for token in tokens if re.fullmatch("[\u0120\u2581][A-Za-z]+", token)]


def _ids_between_separators(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token ids of a filler's text between two separators, as in a prompt."""
    begin = len(SEPARATOR) + 1
    end = begin + len(text)
    encoded = tokenizer(
        f".{SEPARATOR}{text}{SEPARATOR}A", return_offsets_mapping=True, add_special_tokens=False
    )
    token_ids = []
    for token_id, (low, high) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True):
        if low < high and low < end and begin < high:
            token_ids.append(token_id)
    return token_ids


def template_switches(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Read a chat template's variables from `chat_template_args` and `enable_thinking` of lm-eval.

    Raises:
        ConfigError: `chat_template_args` is no mapping.
    """
    switches = arguments.get("chat_template_args") or {}
    if not isinstance(switches, Mapping):
        raise ConfigError(
            f"chat_template_args: expected a mapping of the template's switches, got {switches!r}."
        )
    thinking = arguments.get("enable_thinking")
    return ({} if thinking is None else {"enable_thinking": thinking}) | dict(switches)


def apply_chat_template(
    tokenizer: PreTrainedTokenizerBase,
    turns: Sequence[Mapping[str, str]],
    *,
    add_generation_prompt: bool = True,
    switches: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Render a chat by the model's template, with PINNED_DATE as today's date.

    All chats must be rendered here, so that no prompt depends on the day.

    Args:
        tokenizer: The model's tokenizer.
        turns: The messages.
        add_generation_prompt: Whether the turn of the answer is opened.
        switches: The template's own variables, from `template_switches`.

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
            **{"date_string": PINNED_DATE.strftime("%d %b %Y"), **switches},
        )
    except Exception as error:  # a template can also make Python raise any error
        message = " ".join(str(error).split())[:400]
        raise ModelError(
            f"The chat template of {name} failed: {type(error).__name__}: {message}"
        ) from error
    assert isinstance(text, str)
    return text


def has_system_turn(
    tokenizer: PreTrainedTokenizerBase, switches: Mapping[str, Any] = MappingProxyType({})
) -> bool:
    """Whether the chat template prints a system turn. Some refuse it, and some drop it silently."""
    if not tokenizer.chat_template:
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
    """The role and the half-open range of characters of each segment in the templated text.

    The text between the segments is template. All segments of a turn are searched for as one text,
    so that a short problem such as "2" is not mistaken for a digit elsewhere. Templates may trim a
    turn's outer blanks. A turn is therefore searched for unchanged, then trimmed, and a separator
    that was trimmed is left out.

    Raises:
        PromptMismatchError: the template changed or dropped a turn.
    """
    spans: list[tuple[Role, tuple[int, int]]] = []
    stop = 0
    is_raw = text == prompt.text
    turns = [prompt.segments] if is_raw else prompt.turns
    for number, turn in enumerate(turns, start=1):
        turn_text = join_texts(turn)
        if not is_raw and not turn_text.strip():
            continue
        body = turn_text if text.find(turn_text, stop) >= 0 else turn_text.strip()
        is_last = bool(spans) and number == len(turns)
        start = 0 if is_raw else _find_turn(body, text, stop, is_last=is_last)
        stop = start + len(body)
        position = start - turn_text.index(body)
        for segment in turn:
            end = position + len(segment.text)
            low, high = max(position, start), min(end, stop)
            if segment.role != "turn" and (low < high or segment.role != "separator"):
                spans.append((segment.role, (low, high)))
            position = end
    return spans


def _find_turn(body: str, text: str, start: int, *, is_last: bool) -> int:
    """Find the first or the last occurrence of a turn from `start` on, if possible of entire words.

    Raises:
        PromptMismatchError: there is no occurrence.
    """
    before = r"(?<![^\W_])" if body[0].isalnum() else ""
    after = r"(?![^\W_])" if body[-1].isalnum() else ""
    for pattern in (before + re.escape(body) + after, re.escape(body)):
        matches = list(re.compile(f"(?={pattern})").finditer(text, start))
        if matches:
            return matches[-1 if is_last else 0].start()
    raise PromptMismatchError(
        f"The chat template changed the text of a turn: expected to find {body[:60]!r} "
        "in the templated prompt."
    )
