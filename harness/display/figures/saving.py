"""A figure as files, its receipt inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_figure(
    figure: Figure,
    path: Path,
    receipt: Mapping[str, Any],
    *,
    formats: Sequence[str] = ("png", "svg"),
    dpi: float = 160,
) -> list[Path]:
    """Write the figure in each of the formats (png, svg, pdf), the receipt inside, and return the files."""
    import matplotlib

    note = json.dumps(dict(receipt), sort_keys=True)
    # PDF has fixed fields; a date would make two drawings of the same numbers differ
    metadata = {
        "png": {"Description": note},
        "svg": {"Description": note, "Date": None},
        "pdf": {"Subject": note, "CreationDate": None},
    }
    files = [path.with_name(f"{path.name}.{kind}") for kind in formats]
    for file, kind in zip(files, formats, strict=True):
        with matplotlib.rc_context({"svg.hashsalt": "mless"}):  # and so would names drawn by chance
            figure.savefig(file, dpi=dpi, metadata=metadata[kind])
        if kind == "png":
            shrink_picture(file)
    return files


def shrink_picture(path: Path) -> None:
    """Rewrite a PNG with a palette of 256 colours, at about a third of its size, its text chunks kept.

    A chart has few colours. Only the mixed ones at the edges of lines and letters move, by 15 of 255 at most in the
    figures of this project.
    """
    from PIL import Image, PngImagePlugin

    with Image.open(path) as image:
        image.load()
        text = PngImagePlugin.PngInfo()
        for name, value in image.info.items():
            if isinstance(name, str) and isinstance(value, str):
                text.add_text(name, value)
        palette = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
        palette.save(path, optimize=True, pnginfo=text, dpi=image.info.get("dpi", (72, 72)))
