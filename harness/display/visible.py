"""Text of others as characters that are seen: what a terminal or a browser would obey rather than show is spelt out."""

from __future__ import annotations

import unicodedata

HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Unicode's categories of control, format (directions, widths) and unassigned characters, half surrogate pairs, and
separators of lines and paragraphs."""


def is_hidden(character: str) -> bool:
    """Whether a character is one that could hide others, turn them around, or give an order to a terminal."""
    return unicodedata.category(character) in HIDDEN


def name_character(character: str) -> str:
    """A character by its number, as `<U+202E>`."""
    return f"<U+{ord(character):04X}>"


def visible(text: object, *, keep: str = "\n\t") -> str:
    """Text with every hidden character spelt out but those to `keep`; none are kept where it must stay one line."""
    shown = str(text)
    if shown.isprintable():  # nearly always
        return shown
    return "".join(name_character(one) if is_hidden(one) and one not in keep else one for one in shown)
