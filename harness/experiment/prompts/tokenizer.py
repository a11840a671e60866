"""A model's tokenizer: loading, token ids with offsets, and fillers of an exact length."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import smollm2_model
from harness.constants import SEPARATOR
from harness.errors import ConfigError, ModelError, explain_hub_error
from harness.experiment.conditions import (
    SENTENCES,
    Condition,
    RandomCondition,
    SentenceCondition,
    TextCondition,
    UnitCondition,
)
from harness.experiment.prompts.chat_template import (
    ModelArguments,
    choose_template,
    template_switches,
)
from harness.experiment.prompts.fillers import cut_sentence, draw_words, estimate_tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class ModelTokenizer:
    """A model's tokenizer and context length: all that its prompts depend on.

    Attributes:
        name: The name for error messages.
        tokenizer: The tokenizer.
        context_length: The number of positions; None if it is unknown.
        switches: The variables of its chat template; see `template_switches`.
        template_names: The names of its chat templates, if there are several.
    """

    name: str
    tokenizer: PreTrainedTokenizerBase
    context_length: int | None = None
    switches: Mapping[str, Any] = field(default_factory=dict)
    template_names: Sequence[str] = ()

    @property
    def template(self) -> str:
        """The chat template; empty if there is none."""
        return self.tokenizer.chat_template or ""

    @classmethod
    def from_arguments(cls, arguments: ModelArguments) -> ModelTokenizer | None:
        """Load the tokenizer that lm-eval's model arguments name; None if they name no local one.

        A bare `model`, as the API backends have it, is loaded only if it is a folder: a served
        model may have any name.

        Raises:
            ModelError: the tokenizer cannot be loaded.
            ConfigError: the context length is not a number, or is missing where it is required; no
                chat template has the requested name, or it does not read a switch.
        """
        weights_name = arguments.get("pretrained") or None
        served_name = str(arguments.get("model") or "")
        if not weights_name and served_name and Path(served_name).is_dir():
            weights_name = served_name
        name = arguments.get("tokenizer") or weights_name
        # lm-eval also takes loaded models and tokenizers instead of names
        if not isinstance(name, str) or not isinstance(weights_name, str | None):
            return None
        tokenizer = load_tokenizer(name, arguments)
        templates = tokenizer.chat_template
        tokenizer.chat_template = choose_template(name, templates, arguments.get("chat_template"))
        model_tokenizer = cls(
            name=name,
            tokenizer=tokenizer,
            context_length=_find_context_length(name, weights_name, arguments),
            switches=template_switches(arguments),
            template_names=sorted(templates) if isinstance(templates, Mapping) else (),
        )
        for switch in model_tokenizer.switches:
            if not re.search(rf"\b{re.escape(switch)}\b", model_tokenizer.template):
                raise ConfigError(f"The chat template of {name} reads no switch {switch!r}.")
        return model_tokenizer


def _find_context_length(
    name: str, weights_name: str | None, arguments: ModelArguments
) -> int | None:
    """The stated context length, or the limit of the model's config if this is smaller.

    `name` is that of the tokenizer. None: neither is known.
    """
    stated_length = _stated_length(arguments)
    # with another model's tokenizer the model's limit is unknown
    if weights_name != name:
        return stated_length
    # overrides of the config, such as those of RoPE, can extend the model's limit
    if stated_length and arguments.get("hf_overrides"):
        return stated_length
    model_config = load_model_config(name, arguments)
    lengths = (stated_length, getattr(model_config, "max_position_embeddings", None))
    return min(filter(None, lengths), default=None)


def _stated_length(arguments: ModelArguments) -> int | None:
    """The context length that the arguments state; None if they state none.

    Of a completions API it must be stated. Otherwise lm-eval assumes 2048 tokens, of which 2047 are
    for prompt and completion, and cuts the front of longer prompts.

    Raises:
        ConfigError: the length is not a number, or is missing where it is required.
    """
    context_length = arguments.get("max_model_len", arguments.get("max_length"))
    length_text = str(context_length)
    base_url = str(arguments.get("base_url") or "").rstrip("/")
    is_completions_api = bool(base_url) and not base_url.endswith("chat/completions")
    if context_length is None and not is_completions_api:
        return None
    if not length_text.isdigit() or int(length_text) == 0:
        reason = ", without which lm-eval cuts prompts to 2048 tokens" if is_completions_api else ""
        raise ConfigError(
            f"The context length, model.model_args.max_model_len or max_length{reason}: "
            f"expected a whole number above 0, got {context_length!r}."
        )
    # lm-eval's client for completions APIs reserves one token: True counts as 1
    return int(length_text) - is_completions_api


def load_tokenizer(name: str, arguments: Mapping[str, Any] = {}) -> PreTrainedTokenizerBase:
    """Load a fast tokenizer of a folder, a hub name or `smollm2`.

    Of the model's arguments, the revision and `trust_remote_code` are used.

    Raises:
        ModelError: the folder does not exist or holds no tokenizer, the hub refuses or cannot be
            reached, or no fast tokenizer exists.
    """
    name = smollm2_model.resolve_model(name)
    refuse_missing_folder(name)
    from transformers import AutoTokenizer

    revision = arguments.get("tokenizer_revision") or arguments.get("revision")
    tokenizer: PreTrainedTokenizerBase = _load_pretrained(AutoTokenizer, name, revision, arguments)
    # without its files, a tokenizer of some classes loads, but makes no tokens or unknown ones only
    if set(tokenizer("Find 1 + 1.")["input_ids"]) <= set(tokenizer.all_special_ids):
        raise ModelError(f"{name} has no tokenizer: expected tokenizer.json or tokenizer.model.")
    if not tokenizer.is_fast:
        raise ModelError(
            f"{name} has no fast tokenizer, and only fast tokenizers give character offsets."
        )
    # this turns off a warning about long texts, because mless checks lengths itself
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def refuse_missing_folder(name: str) -> None:
    """Raise ModelError if `name` looks like a path, and there is no such folder."""
    # a hub name is OWNER/NAME
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    path = Path(name).expanduser()
    if looks_like_path and not any(path.glob("*.json")):
        fault = "is a file" if path.is_file() else "does not exist, or has no config.json"
        raise ModelError(
            f"Model folder {name} {fault}. Expected a folder, a hub name or `smollm2`."
        )


def _load_pretrained(
    loader: Any, name: str, revision: str | None, arguments: ModelArguments
) -> Any:
    """What a class of transformers loads.

    Raises:
        ModelError: the hub, or a library that reads the model's folder, raises an error.
    """
    try:
        return loader.from_pretrained(
            name, revision=revision, trust_remote_code=trusts_code(arguments)
        )
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error


def trusts_code(arguments: ModelArguments) -> bool:
    """Whether a model's own code may run."""
    return arguments.get("trust_remote_code") in (True, "True", "true")


def load_model_config(name: str, arguments: Mapping[str, Any] = {}) -> PretrainedConfig:
    """The config of a model, or of the text layers of a multimodal one.

    Of the model's arguments, `revision` and `trust_remote_code` are used.

    Raises:
        ModelError: it cannot be read, or the hub refuses or cannot be reached.
    """
    from transformers import AutoConfig

    name = smollm2_model.resolve_model(name)
    model_config: PretrainedConfig = _load_pretrained(
        AutoConfig, name, arguments.get("revision"), arguments
    )
    return model_config.get_text_config()


def encode(
    text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Encode a text into token ids, and the half-open range of characters of each.

    A text that begins with BOS gets no second BOS.
    """
    has_bos = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
    encoding = tokenizer(text, return_offsets_mapping=True, add_special_tokens=not has_bos)
    return tuple(encoding["input_ids"]), encoding["offset_mapping"]


def token_texts(
    token_ids: Iterable[int],
    offsets: Iterable[tuple[int, int]],
    text: str,
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[str, ...]:
    """The text of each token; the vocabulary's name for tokens without text, such as an added BOS.

    If a character is split over several tokens, the first one has all of it, and the text of the
    others is empty.
    """
    texts = []
    previous_end = 0
    for token_id, (start, end) in zip(token_ids, offsets, strict=True):
        # each token of a split character has the offsets of the whole character
        token_text = text[max(start, previous_end) : end]
        if start >= end:
            token_text = str(tokenizer.convert_ids_to_tokens(token_id))
        texts.append(token_text)
        previous_end = max(previous_end, end)
    return tuple(texts)


def fit_filler(
    condition: Condition, tokenizer: PreTrainedTokenizerBase | None, draw_key: str = ""
) -> str:
    """The condition's filler as text; empty without a filler.

    Without a tokenizer the length of a sentence is estimated: one token for each word and comma.
    A random text is drawn by the condition's seed and the key, which names the problem and the
    sample of a fresh filler.

    Raises:
        ConfigError: the filler needs a tokenizer, or no such filler has exactly this length.
    """
    count_tokens: Callable[[str], int] = estimate_tokens
    if tokenizer is not None:
        count_tokens = partial(_count_between_separators, tokenizer=tokenizer)
    match condition:
        case UnitCondition(unit=unit, count=count):
            return (" " if unit.strip() else "").join([unit] * count)
        case SentenceCondition(sentence=sentence_number, count=token_count):
            return cut_sentence(SENTENCES[sentence_number - 1].split(), token_count, count_tokens)
        case TextCondition(text=text):
            return text
        case RandomCondition(random_ids=token_count, seed=seed):
            if tokenizer is None:
                raise ConfigError(
                    "Random tokens are drawn from the words of the model's vocabulary. Name the "
                    "model's tokenizer (--set model.model_args.tokenizer=NAME), or leave "
                    "random_ids out."
                )
            generator = random.Random(f"{seed}:{draw_key}" if draw_key else seed)
            return draw_words(_list_words(tokenizer), token_count, count_tokens, generator)
        case _:
            return ""


@lru_cache(maxsize=1)
def _list_words(tokenizer: PreTrainedTokenizerBase) -> Sequence[str]:
    """The words of the vocabulary that are one token after a blank, in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    return [token[1:] for token in tokens if re.fullmatch("[\u0120\u2581][A-Za-z]+", token)]


def _count_between_separators(text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """The number of tokens of a filler's text between two separators, as in a prompt."""
    # after the full stop and a separator
    filler_start = 1 + len(SEPARATOR)
    filler_end = filler_start + len(text)
    encoding = tokenizer(
        f".{SEPARATOR}{text}{SEPARATOR}A", return_offsets_mapping=True, add_special_tokens=False
    )
    # a token that the filler shares with a separator counts too, so that such a merge is found
    return sum(
        max(start, filler_start) < min(end, filler_end) for start, end in encoding["offset_mapping"]
    )
