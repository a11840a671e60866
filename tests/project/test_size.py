from tools.size import measure

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
