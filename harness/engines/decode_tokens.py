"""Decode the tokens of a finished completion into the text that vLLM makes token by token.

vLLM decodes token by token, in the only thread of its client. Here a completion is decoded once,
when it is finished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        # such a tokenizer changes the text of its special tokens as it decodes
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
    """`decode_completion` for any tokenizer, token by token."""
    from tokenizers.decoders import DecodeStream

    fast, added = tokenizer.backend_tokenizer, _added_tokens(tokenizer)
    stream = DecodeStream(ids=list(prompt_ids), skip_special_tokens=False)
    text = ""
    follows_added = False
    for token_id in token_ids:
        try:
            piece = stream.step(fast, token_id)
        except Exception as error:
            # tokenizers raises this without a class of its own; vLLM begins a new stream too
            if not str(error).startswith("Invalid prefix"):
                raise
            stream = DecodeStream(skip_special_tokens=False)
            piece = stream.step(fast, token_id)
        # some decoders put a blank between two added tokens, which vLLM prevents
        if follows_added and token_id in added:
            piece = added[token_id]
        text += piece or ""
        follows_added = token_id in added
    return text


@lru_cache(maxsize=1)
def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
    """Special and other added tokens, by id."""
    return {token_id: token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
