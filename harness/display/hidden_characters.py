"""Spell out characters that a terminal or a browser would obey rather than show."""

from __future__ import annotations

import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of control, format (directions, widths) and unassigned characters, half surrogate pairs, and
separators of lines and paragraphs."""


def name_character(character: str) -> str:
    """A character by its number, as `<U+202E>`."""
    return f"<U+{ord(character):04X}>"


def visible(text: object, *, keep: str = "\n\t") -> str:
    """The text with hidden characters spelt out, except those in `keep`. Keep none for text on a single line."""
    shown = str(text)
    if shown.isprintable():  # nearly always
        return shown
    return "".join(
        name_character(one) if unicodedata.category(one) in HIDDEN and one not in keep else one for one in shown
    )
