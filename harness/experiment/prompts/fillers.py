"""Fillers of an exact number of tokens: a cut sentence, random words."""

import random
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from harness.errors import ConfigError

DRAW_ATTEMPTS = 100
"""Attempts to draw words with exactly the required number of tokens."""

PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")
"""Words that are appended to a sentence if no cut of it has the required number of tokens."""


def cut_sentence(words: list[str], token_count: int, count_tokens: Callable[[str], int]) -> str:
    """Cut a sentence to a number of tokens, and append short words if no cut has this number."""
    # The longest cut comes first, so that few words are appended.
    for word_count in range(min(len(words), token_count), 0, -1):
        missing_count = token_count - count_tokens(_as_sentence(words[:word_count]))
        if missing_count < 0:
            continue
        # each padding word is tried as the first
        for first_index in range(len(PADDING_WORDS)):
            padding = list(islice(cycle(PADDING_WORDS), first_index, first_index + missing_count))
            # a padding word may be several tokens: then fewer words fit
            for padding_size in range(missing_count, -1, -1):
                sentence = _as_sentence(words[:word_count] + padding[:padding_size])
                sentence_length = count_tokens(sentence)
                if sentence_length == token_count:
                    return sentence
                if sentence_length < token_count:
                    break
    raise ConfigError(
        f"No cut of the sentence has exactly {token_count} tokens in this tokenizer. "
        "Choose another count."
    )


def draw_words(
    words: Sequence[str],
    token_count: int,
    count_tokens: Callable[[str], int],
    generator: random.Random,
) -> str:
    """Draw random words with this number of tokens. The first word follows no blank."""
    for _ in range(DRAW_ATTEMPTS if words else 0):
        drawn_words = generator.choices(words, k=token_count)
        # words of several tokens make the text too long: the last words are then dropped
        while drawn_words:
            text = " ".join(drawn_words)
            text_length = count_tokens(text)
            if text_length == token_count:
                return text
            if text_length < token_count:
                break
            drawn_words.pop()
    raise ConfigError(
        f"No draw of random words has exactly {token_count} tokens in this tokenizer. "
        "Choose another count."
    )


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of plain English: one for each word, each comma and the full stop."""
    return len(text.split()) + text.count(",") + 1


def _as_sentence(words: list[str]) -> str:
    """Words with a full stop, which replaces a comma after the last one."""
    return " ".join(words).rstrip(",") + "."
