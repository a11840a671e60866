"""Layers and heads as people name them: counted from 1, as in the study. Indices, in arrays and models, are from 0."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.errors import ConfigError


def split_words(text: str | None) -> tuple[str, ...]:
    """The words between commas, each once, without spaces around them."""
    return (
        tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
        if text
        else ()
    )


def parse_numbers(text: str | int | Iterable[str | int] | None, where: str) -> tuple[int, ...]:
    """Numbers of layers or heads such as 1,3 or 11-13, or a list of these, each once; of None no number.

    Raises:
        ConfigError: a part is no number or range from 1; `where` says whose.
    """
    found: list[int] = []
    if text is None:
        return ()
    text = ",".join(map(str, text)) if isinstance(text, list | tuple | range) else str(text)
    for part in split_words(text) or [text]:
        match = re.fullmatch(r"([1-9]\d*)(?:-(\d+))?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low > high:
            raise ConfigError(
                f"{where} {text}: expected such as 1,3 or 11-13, counted from 1; got {part!r}."
            )
        found += range(low, high + 1)
    return tuple(dict.fromkeys(found))


def count_from_one(indices: Iterable[int]) -> str:
    """Indices as messages have them: `1, 2, 3`."""
    return ", ".join(str(index + 1) for index in indices)
