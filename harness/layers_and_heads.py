"""Layers, heads and rows as users name them. Layers and heads count from 1, as in the study.

A row has the attention weights of one query, a token, to all tokens up to it.
"""

import re
from collections.abc import Iterable

from harness.errors import ConfigError


def split_words(text: str | None) -> tuple[str, ...]:
    """The distinct words between commas, without spaces around them."""
    words = [word.strip() for word in (text or "").split(",")]
    return tuple(dict.fromkeys(filter(None, words)))


def parse_numbers(choice: str | int | Iterable[str | int] | None, option: str) -> tuple[int, ...]:
    """Read numbers of layers or heads, such as 1,3 or 11-13, or a list of these, each number once.

    Args:
        choice: Numbers and ranges between commas, or a list of them. None means no number.
        option: The option or key, for messages.

    Raises:
        ConfigError: the choice is empty, or one of its words is neither a number from 1 nor a range
            that counts up.
    """
    if choice is None:
        return ()
    numbers: list[int] = []
    choice_text = (
        ",".join(map(str, choice)) if isinstance(choice, list | tuple | range) else str(choice)
    )
    # a text without a word, such as `,`, is checked and refused as a whole
    for word in split_words(choice_text) or [choice_text]:
        match = re.fullmatch(r"([1-9]\d*)(?:-(\d+))?", word)
        # a single number is a range with one end; a range that counts down is empty
        word_numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else ()
        if not word_numbers:
            raise ConfigError(
                f"{option} {choice_text}: expected numbers such as 1,3 or 11-13, counted from 1; "
                f"got {word!r}."
            )
        numbers += word_numbers
    return tuple(dict.fromkeys(numbers))


def count_rows(row_choice: str | None, token_count: int) -> int:
    """The number of last tokens whose attention rows are stored.

    Args:
        row_choice: `last:16` for that many tokens, or `all`; None for no token.
        token_count: The length of the prompt.

    Raises:
        ConfigError: `row_choice` is something else.
    """
    if row_choice is None:
        return 0
    if match := re.fullmatch(r"last:([1-9]\d*)", row_choice):
        return min(int(match[1]), token_count)
    if row_choice != "all":
        raise ConfigError(f"rows {row_choice!r}: expected `last:16` or `all`.")
    return token_count


def list_numbers(indices: Iterable[int]) -> str:
    """The numbers of layers or heads from their indices, for messages: `1, 2, 3`."""
    return ", ".join(str(index + 1) for index in indices)
