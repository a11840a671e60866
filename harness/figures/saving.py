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
    return files
