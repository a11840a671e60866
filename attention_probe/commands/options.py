"""Options that the probe's commands share, and how they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from harness.constants import Definition
from harness.errors import ConfigError

TracesPath = Annotated[Path, typer.Argument(help="A folder of traces, as `mless probe` writes it.")]
Averaged = Annotated[
    Definition,
    typer.Option(help="common: queries that every condition has; published: all later ones, filler tokens too."),
]


def split_words(text: str | None) -> tuple[str, ...]:
    """The words between commas, each once, without spaces around them."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip())) if text else ()


def parse_indices(text: str, option: str) -> tuple[int, ...]:
    """Indices such as 0,2 or 11-13."""
    found: list[int] = []
    for part in split_words(text) or [text]:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if low > high:
            raise ConfigError(f"{option} {text}: expected indices from 0 such as 0,2 or 11-13, got {part!r}.")
        found += range(low, high + 1)
    return tuple(dict.fromkeys(found))
