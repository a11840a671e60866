"""Options that the probe's commands share, how they are read, and how a table is printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.constants import Definition
from harness.errors import ConfigError

if TYPE_CHECKING:
    import pandas

TracesPath = Annotated[Path, typer.Argument(help="A folder of traces, as `mless probe` writes it.")]
Averaged = Annotated[
    Definition,
    typer.Option(help="common: queries that every condition has; published: all later ones, filler tokens too."),
]


def write_frame(frame: pandas.DataFrame, form: str, output: Path | None) -> None:
    """Print a table, or write it to `output`; `form` is text, csv or json."""
    if form == "text":
        text = frame.to_string(index=False, float_format="{:.5f}".format)
    else:
        text = frame.to_csv(index=False).rstrip("\n") if form == "csv" else frame.to_json(orient="records", indent=1)
    if output is None:
        typer.echo(text)
        return
    from harness.runs.folder import write_output

    write_output(output, text + "\n")


def split_words(text: str | None) -> tuple[str, ...]:
    """The words between commas, each once, without spaces around them."""
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip())) if text else ()


def parse_indices(text: str, option: str) -> tuple[int, ...]:
    """Indices such as 0,2 or 11-13."""
    found: list[int] = []
    for part in split_words(text):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if match is None:
            raise ConfigError(f"{option} {text}: expected indices from 0 such as 0,2 or 11-13, got {part!r}.")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high:
            raise ConfigError(f"{option} {text}: expected ranges from low to high such as 11-13, got {part!r}.")
        found += range(low, high + 1)
    if not found:
        raise ConfigError(f"{option} {text!r}: expected at least one index, such as 0.")
    return tuple(dict.fromkeys(found))
