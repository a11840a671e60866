"""Fillers of an exact number of tokens: a cut sentence, a repeated and cut text, random words."""

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle, islice

from harness.errors import ConfigError

RANDOM_DRAWS = 100
"""Attempts to draw words with exactly the required number of tokens."""

PADDING_WORDS = ("and", "so", "in", "a", "he", "the", "to", "on")
"""Words that are appended to a sentence if no cut of it has the required number of tokens."""


def cut_sentence(words: list[str], count: int, count_tokens: Callable[[str], int] | None) -> str:
    """Cut a sentence to a number of tokens, and append short words if no cut has this number."""
    if count_tokens is None:
        sizes = range(1, len(words) + 1)
        fitting = [size for size in sizes if estimate_tokens(words[:size]) <= count]
        return _as_sentence(words[: max(fitting, default=1)])
    # The longest cut comes first, so that few words are appended.
    for size in range(min(len(words), count), 0, -1):
        missing = count - count_tokens(_as_sentence(words[:size]))
        if missing < 0:
            continue
        for shift in range(len(PADDING_WORDS)):
            padding = list(islice(cycle(PADDING_WORDS), shift, shift + missing))
            # a padding word may be several tokens: then fewer words fit
            for length in range(missing, -1, -1):
                sentence = _as_sentence(words[:size] + padding[:length])
                tokens = count_tokens(sentence)
                if tokens == count:
                    return sentence
                if tokens < count:
                    break
    raise ConfigError(
        f"No cut of the sentence has exactly {count} tokens in this tokenizer. "
        "Choose another count."
    )


def count_words(text: str) -> int:
    """Count the words of a text, as an estimate of its tokens without a tokenizer."""
    return len(text.split())


def cut_text(name: str, text: str, count: int, count_tokens: Callable[[str], int]) -> str:
    """Repeat a text with blanks between, and cut it to a number of tokens.

    The cut is after a word, else within the last word. If no such cut has exactly this number (a
    line break and a word may be two tokens), the text begins at its second word, or a later word.
    """
    text = text.strip()
    repeated = " ".join([text] * (3 + count // max(1, count_tokens(text))))

    def count_between(begin: int, end: int) -> int:
        return count_tokens(repeated[begin:end])

    word_ends = [match.end() for match in re.finditer(r"\S+", repeated)]
    for word in re.finditer(r"\S+", text):
        begin = word.start()
        ends = [begin, *(end for end in word_ends if end > begin)]
        # Token counts grow with the text, so the longest cut that fits is found by bisection.
        fitting = bisect_right(ends, count, key=partial(count_between, begin))
        longest = ends[fitting - 1]
        # after a word if that has the exact number, else within the next word
        for end in (longest, *range(ends[fitting] - 1, longest, -1)):
            candidate = repeated[begin:end].strip()
            if count_tokens(candidate) == count:
                return candidate
    raise ConfigError(
        f"Condition {name!r}: no cut of its text has exactly {count} tokens in this tokenizer."
    )


def draw_words(
    words: Sequence[str], count: int, count_tokens: Callable[[str], int], draw: random.Random
) -> str:
    """Draw random words with this number of tokens. The first word follows no blank."""
    for _ in range(RANDOM_DRAWS if words else 0):
        chosen = draw.choices(words, k=count)
        while chosen:
            text = " ".join(chosen)
            tokens = count_tokens(text)
            if tokens == count:
                return text
            if tokens < count:
                break
            chosen.pop()
    raise ConfigError(
        "Random tokens are drawn from the words of the model's vocabulary, and no draw of these "
        f"has {count} tokens. Name the model's tokenizer "
        "(--set model.model_args.tokenizer=NAME), or leave random_ids out."
    )


def estimate_tokens(words: list[str]) -> int:
    """Estimate the tokens of plain English: one for each word, each comma and the full stop."""
    return len(words) + sum(word.endswith(",") for word in words) + 1


def _as_sentence(words: list[str]) -> str:
    return " ".join(words).rstrip(",") + "."
