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
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import yaml
from jaxtyping import Int8
from pydantic import Field, StringConstraints

from harness.experiment.yaml_settings import Strict

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
_Command = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]+$")]
_Word = Annotated[str, StringConstraints(pattern=r"^[a-z]+$")]
_Symbols = Annotated[str, StringConstraints(pattern=r"^[^\w\s]+$")]


class Operators(Strict):
    """Characters, and LaTeX commands without their backslash."""

    characters: _Symbols
    commands: frozenset[_Command]


class Conjunctions(Strict):
    """English words in small letters, and LaTeX commands without their backslash."""

    words: frozenset[_Word]
    commands: frozenset[_Command]


class Lexicon(Strict):
    """The committed lists.

    Attributes:
        operators: What is an operator.
        conjunctions: What is a conjunction.
        sha256: Of the file, for receipts.
    """

    operators: Operators
    conjunctions: Conjunctions
    sha256: str = Field(exclude=True)


@cache
def read_lexicon() -> Lexicon:
    """The lexicon beside this module."""
    content = LEXICON.read_bytes()
    return Lexicon.model_validate({**yaml.safe_load(content), "sha256": hashlib.sha256(content).hexdigest()})


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
    lexicon = read_lexicon()
    classes = [_OTHER] * len(text)

    def mark(span: tuple[int, int], kind: int) -> None:
        classes[slice(*span)] = [kind] * (span[1] - span[0])

    for found in _LEXEMES.finditer(text):
        if (command := found["command"]) in lexicon.operators.commands:
            mark(found.span("command"), _OPERATORS)
        elif command in lexicon.conjunctions.commands:
            mark(found.span("command"), _CONJUNCTIONS)
        elif (found["word"] or "").lower() in lexicon.conjunctions.words:
            mark(found.span("word"), _CONJUNCTIONS)
        elif (found["character"] or " ") in lexicon.operators.characters:
            mark(found.span("character"), _OPERATORS)
    for place, character in enumerate(text):
        if character.isdecimal():
            classes[place] = _DIGITS
    return classes
