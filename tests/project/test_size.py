"""What counts as code: no docstrings, no comments, no blank lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tools.size import PARTS, measure, measure_folder

ROOT = Path(__file__).resolve().parents[2]

TINY = '''"""A module
of two lines."""

# a comment
LIMIT = 3  # and another
"""An attribute's docstring."""


def name(one):
    """A function's docstring."""
    text = """two
    lines"""
    return (
        text  # three lines of code
    )
'''


def test_docstrings_comments_and_blank_lines_are_no_code():
    # LIMIT = 3 / def name(one): / text = "...", on two lines / return ( text ), on three
    assert measure(TINY) == (1 + 1 + 2 + 3, 3 + 6 + 3 + 4)
    assert measure("") == measure('"""Nothing but a docstring."""\n# and a comment\n') == (0, 0)


def test_a_folder_is_all_its_modules(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text(TINY)
    (tmp_path / "inner" / "two.py").write_text("x = 1\n")
    (tmp_path / "notes.md").write_text("x = 1\n")
    assert measure_folder(tmp_path) == (8, 19)


def test_the_command_prints_a_line_for_each_part():
    done = subprocess.run(
        [sys.executable, "-m", "tools.size"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = {line[:18].strip(): [int(number.replace(",", "")) for number in line[18:].split()] for line in done[1:]}
    assert list(rows) == list(PARTS)
    packages = rows["harness"], rows["attention_probe"]
    assert rows["both packages"] == [sum(column) for column in zip(*packages, strict=True)]
    assert all(tokens > lines > 1000 for lines, tokens in rows.values())
