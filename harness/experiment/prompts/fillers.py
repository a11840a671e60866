"""Fillers with an exact number of tokens: a cut sentence, or random words."""

import random
from collections.abc import Callable, Sequence
from itertools import cycle, islice

from harness.errors import ConfigError

DRAW_ATTEMPTS = 100
"""Attempts to draw words with exactly the required number of tokens."""

PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")
"""Words that are appended to a sentence if no cut of it has the required number of tokens."""


def cut_sentence(words: list[str], token_count: int, count_tokens: Callable[[str], int]) -> str:
    """Cut a sentence to exactly this number of tokens.

    If the longest cut that is not too long has too few tokens, PADDING_WORDS are appended to it.
    Each of them is tried as the first. If none gives the exact number, the next shorter cut is
    tried.
    """
    # no word has less than one token
    for word_count in range(min(len(words), token_count), 0, -1):
        cut_words = words[:word_count]
        missing_count = token_count - count_tokens(_form_sentence(cut_words))
        if missing_count < 0:
            continue
        for first_index in range(len(PADDING_WORDS)):
            padding = list(islice(cycle(PADDING_WORDS), first_index, first_index + missing_count))
            # a padding word may have several tokens: then the last ones are left out
            while padding and count_tokens(_form_sentence(cut_words + padding)) > token_count:
                padding.pop()
            sentence = _form_sentence(cut_words + padding)
            if count_tokens(sentence) == token_count:
                return sentence
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
    """Draw random words whose text, joined by blanks, has exactly this number of tokens."""
    for _ in range(DRAW_ATTEMPTS if words else 0):
        drawn_words = generator.choices(words, k=token_count)
        # a word may have several tokens: then the last ones are left out
        while count_tokens(" ".join(drawn_words)) > token_count:
            drawn_words.pop()
        text = " ".join(drawn_words)
        if count_tokens(text) == token_count:
            return text
    raise ConfigError(
        f"No draw of random words has exactly {token_count} tokens in this tokenizer. "
        "Choose another count."
    )


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of plain English: one for each word, each comma and the full stop."""
    return len(text.split()) + text.count(",") + 1


def _form_sentence(words: list[str]) -> str:
    """Words with a full stop, which replaces a comma after the last one."""
    return " ".join(words).rstrip(",") + "."
