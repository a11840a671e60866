"""Count tokens of code by folder, without docstrings and comments, and words of the docs.

python -m tools.size
"""

import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("harness", "attention_probe")
FOLDERS = (*PACKAGES, "mless", "tests", "benchmarks", "tools")
GENERATED = ("config.md", "columns.md", "api.md")
"""Pages in docs that tools write."""
LAYOUT = (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
"""Tokens that say how code is laid out, besides comments and line breaks inside brackets."""


def count_tokens(source: bytes) -> int:
    """Count the tokens of a module. Strings that stand alone are docstrings, also of attributes."""
    tokens = tokenize.tokenize(io.BytesIO(source).readline)
    types = [token.type for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    count = 0
    for before, here, after in zip(types, types[1:], types[2:]):  # noqa: B905
        is_docstring = here == tokenize.STRING and before in LAYOUT and after in LAYOUT
        count += here not in LAYOUT and not is_docstring
    return count


def main() -> None:
    """Print a line for each folder, and the totals."""
    folders: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for name in FOLDERS:
        for path in (ROOT / name).rglob("*.py"):
            tokens = count_tokens(path.read_bytes())
            folders["/".join(path.relative_to(ROOT).parent.parts[:2])] += tokens
            totals[name] += tokens
    totals["both packages"] = sum(totals[name] for name in PACKAGES)
    for page in (ROOT / "docs").glob("*.md"):
        kind = "generated pages" if page.name in GENERATED else "written pages"
        totals[f"words of {kind}"] += len(page.read_bytes().split())
    for title, sizes in (
        ("tokens by folder", sorted(folders.items())),
        ("in total", totals.items()),
    ):
        print(f"{title}:")
        for name, size in sizes:
            print(f"  {name:<32}{size:>9,}")


if __name__ == "__main__":
    main()
