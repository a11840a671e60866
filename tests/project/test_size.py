"""What counts as code: no docstrings, no comments, no blank lines."""

from __future__ import annotations

from tools.size import measure, measure_folder

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
