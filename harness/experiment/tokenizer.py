"""A model's tokenizer: loaded or refused, its token ids, and fillers of an exact length."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.constants import SEPARATOR
from harness.errors import ConfigError, ModelError, PromptMismatchError
from harness.experiment.conditions import Condition

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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

    missing = ModelError(f"{name} holds no tokenizer. Expected tokenizer.json, or tokenizer.model, in it.")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=trust_remote_code)
    except Exception as error:
        if "instantiate the backend tokenizer" in str(error):
            raise missing from error
        raise ModelError(explain_hub_error(name, error)) from error
    # without the files some classes load all the same, and read every text as nothing, or as unknown
    if set(tokenizer("Find 1 + 1.")["input_ids"]) <= set(tokenizer.all_special_ids):
        raise missing
    if not tokenizer.is_fast:
        raise ModelError(f"The tokenizer of {name} has no fast version, and only fast ones give character offsets.")
    # mless itself checks lengths against the model's context, with an error that says what to do
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def refuse_missing_folder(name: str) -> None:
    """Raise ModelError if `name` is written as a path, and there is no such folder."""
    looks_like_path = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        trouble = "is a file" if Path(name).expanduser().is_file() else "does not exist"
        raise ModelError(f"Model folder {name} {trouble}. Expected a folder, a hub name, or `demo`.")


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


def encode(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Token ids, and the characters (start, end) that each covers. A text that begins with BOS gets no second one."""
    bos = tokenizer.bos_token
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=not (bos and text.startswith(bos)))
    return tuple(encoded["input_ids"]), [tuple(o) for o in encoded["offset_mapping"]]


def fit_filler(condition: Condition, tokenizer: PreTrainedTokenizerBase | None, key: str | None = None) -> str:
    """The condition's filler as text: a sentence is cut to its exact count, and token ids are decoded.

    Random tokens are drawn anew for each `key`, such as a problem's id, if one is given.

    Raises:
        ConfigError: the filler needs a tokenizer and none was given, or it has no such ids or no sentence so long.
        PromptMismatchError: the tokenizer reads the decoded ids back as other ids.
    """
    if tokenizer is None:
        return condition.filler_text()
    if condition.token_ids is None:

        def count_tokens(text: str) -> int:
            return len(_ids_between_separators(text, tokenizer))

        words = () if condition.random_ids is None else _words(tokenizer)
        return condition.filler_text(count_tokens, words, key)
    wanted, largest = condition.repeated_ids(), max(condition.token_ids)
    if largest >= len(tokenizer):
        raise ConfigError(f"Filler {condition.name!r}: token id {largest} of {len(tokenizer)} in the tokenizer.")
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
