"""A figure as files: pictures with its receipt inside, and its numbers beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib
import pandas
from matplotlib.figure import Figure
from PIL import Image, PngImagePlugin

from harness.errors import ConfigError


def write_figure(
    figure: Figure, numbers: pandas.DataFrame, folder: Path, name: str, receipt: Mapping[str, Any]
) -> list[Path]:
    """Write a figure as PNG, SVG and PDF and its numbers as CSV, and return the files.

    Args:
        figure: What to save.
        numbers: What it shows.
        folder: Where the files go; made if it is missing.
        name: Of the files, without a suffix.
        receipt: What was drawn from what.

    Raises:
        ConfigError: the files cannot be written.
    """
    path, table = folder / name, folder / f"{name}.csv"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = save_figure(figure, path, receipt, formats=("png", "svg", "pdf"), dpi=300)
        numbers.to_csv(table, index=False)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Choose another folder.") from None
    return [*files, table]


def save_figure(
    figure: Figure,
    path: Path,
    receipt: Mapping[str, Any],
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: float = 160,
) -> list[Path]:
    """Write the figure in each of the formats (png, svg, pdf), the receipt inside, and return the files."""
    note = json.dumps(dict(receipt), sort_keys=True, default=str)
    # PDF has fixed fields; a date would make two drawings of the same numbers differ
    metadata = {"svg": {"Description": note, "Date": None}, "pdf": {"Subject": note, "CreationDate": None}}
    files = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for file, kind in zip(files, formats, strict=True):
        if kind == "png":
            _save_png(figure, file, note, dpi)
        else:
            with matplotlib.rc_context({"svg.hashsalt": "mless"}):  # and so would names drawn by chance
                figure.savefig(file, dpi=dpi, metadata=metadata[kind])
    return files


def _save_png(figure: Figure, path: Path, note: str, dpi: float) -> None:
    """Write a PNG with a palette of 256 colours, at about a third of its size.

    A chart has few colours. Only the mixed ones at the edges of lines and letters move, by 15 of 255 at most in the
    figures of this project.
    """
    drawn = BytesIO()
    figure.savefig(drawn, dpi=dpi)
    about = PngImagePlugin.PngInfo()
    about.add_text("Description", note)
    with Image.open(drawn) as image:
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        palette.save(path, optimize=True, pnginfo=about, dpi=(dpi, dpi))
