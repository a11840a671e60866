"""Fillers as texts of an exact number of tokens: a sentence cut and filled up, a text repeated and cut, words drawn."""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from harness.errors import ConfigError

RANDOM_DRAWS = 100
"""Draws of random tokens before a tokenizer is said to have none of that count."""

PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")
"""What a sentence is filled up with where no cut of it has its count of tokens."""


def cut_sentence(words: list[str], count: int, count_tokens: Callable[[str], int] | None) -> str:
    """A sentence cut to so many tokens and, where needed, filled up with short words."""
    if count_tokens is None:
        fitting = [
            size for size in range(1, len(words) + 1) if estimate_tokens(words[:size]) <= count
        ]
        return _as_sentence(words[: max(fitting, default=1)])
    for size in range(min(len(words), count), 0, -1):
        missing = count - count_tokens(_as_sentence(words[:size]))
        if missing < 0:
            continue
        for shift in range(len(PADDING_WORDS)):
            padding = [PADDING_WORDS[(shift + i) % len(PADDING_WORDS)] for i in range(missing)]
            for padded in range(
                missing, -1, -1
            ):  # a padding word may be several tokens: then fewer words fit
                candidate = _as_sentence(words[:size] + padding[:padded])
                if (got := count_tokens(candidate)) == count:
                    return candidate
                if got < count:
                    break
    raise ConfigError(
        f"No cut of the sentence has exactly {count} tokens in this tokenizer. Choose another count."
    )


def count_words(text: str) -> int:
    """How many words a text has, which stands for its tokens where no tokenizer is known."""
    return len(text.split())


def cut_text(name: str, text: str, count: int, count_tokens: Callable[[str], int]) -> str:
    """A text repeated, with a blank between, and cut to so many tokens: behind a word, else within the last one.

    Where neither is possible (a line break and a word may be two tokens), it begins at the second word, or a later one.
    """
    text = text.strip()
    whole = " ".join([text] * (3 + count // max(1, count_tokens(text))))

    def length(begin: int, end: int) -> int:
        return count_tokens(whole[begin:end])

    for begin in (word.start() for word in re.finditer(r"\S+", text)):
        words = [begin, *(word.end() for word in re.compile(r"\S+").finditer(whole, begin))]
        fitting = bisect_right(words, count, key=partial(length, begin))
        for end in (words[fitting - 1], *range(words[fitting] - 1, words[fitting - 1], -1)):
            if count_tokens(cut := whole[begin:end].strip()) == count:
                return cut
    raise ConfigError(
        f"Condition {name!r}: no cut of its text has exactly {count} tokens in this tokenizer."
    )


def draw_words(
    words: Sequence[str], count: int, count_tokens: Callable[[str], int], draw: random.Random
) -> str:
    """So many tokens' worth of words, drawn at random; the first of them follows no blank."""
    for _ in range(RANDOM_DRAWS if words else 0):
        drawn = draw.choices(words, k=count)
        while drawn and (got := count_tokens(" ".join(drawn))) >= count:
            if got == count:
                return " ".join(drawn)
            drawn.pop()
    raise ConfigError(
        f"Random tokens are drawn from the words of the model's vocabulary, and no draw of these has {count} tokens. "
        "Name the model's tokenizer (--set model.model_args.tokenizer=NAME), or leave random_ids out."
    )


def estimate_tokens(words: list[str]) -> int:
    """Tokens of plain English in a large vocabulary: one per word, one per comma, one for the full stop."""
    return len(words) + sum(word.endswith(",") for word in words) + 1


def _as_sentence(words: list[str]) -> str:
    return " ".join(words).rstrip(",") + "."
