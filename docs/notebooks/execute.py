"""Run the code cells of a notebook and keep what they print and draw in it; Jupyter is not needed.

python docs/notebooks/execute.py docs/notebooks/compare.ipynb
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def execute(notebook: dict[str, Any], folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The outputs of the code cells, run in order in the folder, without their lines of magic."""
    names: dict[str, Any] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        for number, cell in enumerate(code_cells(notebook), start=1):
            source = "".join(line for line in cell["source"] if not line.startswith("%"))
            tree = ast.parse(source)
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            printed, value = io.StringIO(), None
            with contextlib.redirect_stdout(printed):
                exec(compile(tree, f"cell {number}", "exec"), names)
                if isinstance(last, ast.Expr):
                    value = eval(
                        compile(ast.Expression(last.value), f"cell {number}", "eval"), names
                    )
            yield [*_stream(printed.getvalue()), *_shown(value, number)]


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that hold code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _stream(text: str) -> list[dict[str, Any]]:
    return (
        [{"name": "stdout", "output_type": "stream", "text": text.splitlines(keepends=True)}]
        if text
        else []
    )


def _shown(value: Any, number: int) -> list[dict[str, Any]]:
    """What a notebook shows of a cell's last value: a figure as a picture, all else as text."""
    from matplotlib.figure import Figure

    if value is None:
        return []
    data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
    if isinstance(value, Figure):
        picture = io.BytesIO()
        value.savefig(picture, format="png", dpi=110, metadata={"Software": None})
        data = {
            "image/png": base64.b64encode(picture.getvalue()).decode() + "\n",
            "text/plain": ["<Figure>"],
        }
    return [
        {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
    ]


def main() -> None:
    """Execute the notebooks that are named, in place."""
    os.environ["MPLBACKEND"] = "agg"
    for path in map(Path, sys.argv[1:]):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        results = list(execute(notebook, path.parent))
        for number, (cell, outputs) in enumerate(
            zip(code_cells(notebook), results, strict=True), start=1
        ):
            cell["execution_count"], cell["outputs"] = number, outputs
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
