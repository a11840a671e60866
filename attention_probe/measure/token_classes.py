"""What kind of thing each token of a problem is: a digit, an operator, a conjunction, or other.

Tokens are read in their text, not one by one: `frac` is an operator where a backslash stands before it, `if` split
into two tokens is a conjunction still, and `and` inside `operand` is none. Of a token that holds several kinds, such as
`^2`, the first of CLASSES counts.

LaTeX commands that name an operation or a relation (`\\frac`, `\\cdot`, `\\le`) are operators: they are what `/`, `*`
and `<` would be in plain text. Commands that only set or name things (`\\left`, `\\pi`, `\\text`) are other. The class
goes to the command's letters alone: many tokenizers give the backslash a token of its own, whose activations cannot
know what follows it, so it is other, and a command counts the same with every tokenizer.

Read from context, because the character alone misleads: the hyphen or slash inside words (`two-digit`, `$x$-axis`) and
the mark after a word (`Great!`) are no operators; `^\\circ` is a unit; in [asy] drawings only the digits count.
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import yaml
from jaxtyping import Int8

CLASSES = ("digits", "operators", "conjunctions", "other")
"""In the order of precedence."""

LEXICON = Path(__file__).with_suffix(".yaml")

_DIGITS, _OPERATORS, _CONJUNCTIONS, _OTHER = range(len(CLASSES))
_LEXEMES = re.compile(
    r"""
      \[asy\].*?\[/asy\]
    | \^\s*\{?\s*\\circ(?![A-Za-z])
    | \\(?P<command>[A-Za-z]+)
    | \\[^A-Za-z]                                                  # an escape such as \% or \\
    | (?<=[\w})])\$-(?=[a-z]{2})                                     # $x$-axis
    | (?P<word>[A-Za-z]+)((?<=[a-z]{3})([-/](?=[a-z]{2})|!))?      # with a hyphen or mark of prose
    | (?P<character>[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)


@cache
def _read_lexicon() -> dict[tuple[str, str], int]:
    """The class of every entry of the lexicon. An entry is a character, a word in small letters, or a LaTeX command."""
    lists = yaml.safe_load(LEXICON.read_text(encoding="utf-8"))
    operators, conjunctions = lists["operators"], lists["conjunctions"]
    return {
        **{("character", entry): _OPERATORS for entry in operators["characters"]},
        **{("command", entry): _OPERATORS for entry in operators["commands"]},
        **{("command", entry): _CONJUNCTIONS for entry in conjunctions["commands"]},
        **{("word", entry): _CONJUNCTIONS for entry in conjunctions["words"]},
    }


def classify(tokens: Sequence[str]) -> Int8[np.ndarray, " token"]:
    """The class of each token, as an index into CLASSES.

    Args:
        tokens: The text of consecutive tokens, blanks included: joined they are the text.
    """
    of_character = _classify_characters("".join(tokens))
    classes, start = [], 0
    for token in tokens:
        classes.append(min(of_character[start : start + len(token)], default=_OTHER))
        start += len(token)
    return np.array(classes, dtype=np.int8)


def _classify_characters(text: str) -> list[int]:
    lexicon = _read_lexicon()
    classes = [_OTHER] * len(text)
    for found in _LEXEMES.finditer(text):
        for kind, entry in found.groupdict().items():
            if entry is not None:
                known = lexicon.get((kind, entry.lower() if kind == "word" else entry), _OTHER)
                classes[slice(*found.span(kind))] = [known] * len(entry)
    for place, character in enumerate(text):
        if character.isdecimal():
            classes[place] = _DIGITS
    return classes
