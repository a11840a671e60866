"""How large the code is: lines and tokens without docstrings, comments and blank lines. Run as python -m tools.size."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PARTS = {
    "harness": ("harness",),
    "attention_probe": ("attention_probe",),
    "both packages": ("harness", "attention_probe"),
    "tests": ("tests",),
    "benchmarks, tools": ("benchmarks", "tools"),
}
"""Rows and the folders that each counts."""
LAYOUT = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
"""Tokens that say how code is laid out, and comments."""


def measure(source: str) -> tuple[int, int]:
    """Code lines and tokens of a module. Every string that stands alone is a docstring, of an attribute too."""
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    code = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT and token.start[0] not in docstrings
    ]
    lines = {line for token in code for line in range(token.start[0], token.end[0] + 1)}
    return len(lines), len(code)


def measure_folder(folder: Path) -> tuple[int, int]:
    """Code lines and tokens of all modules in a folder and in those below it."""
    sizes = [measure(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    return sum(lines for lines, _ in sizes), sum(tokens for _, tokens in sizes)


def main() -> None:
    """Print a line for each part."""
    print(f"{'':<18}{'code lines':>12}{'tokens':>10}")
    for name, folders in PARTS.items():
        lines, tokens = zip(*(measure_folder(ROOT / folder) for folder in folders), strict=True)
        print(f"{name:<18}{sum(lines):>12,}{sum(tokens):>10,}")


if __name__ == "__main__":
    main()
