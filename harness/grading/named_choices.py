"""The answer that is expected where answers are letters of choices."""

import re
from collections.abc import Sequence
from string import ascii_uppercase

from harness.grading.same_answer import SEVERAL

_MARKUP = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:bf|rm)|mbox)\{([^{}]*)\}|\\[ ,;:!]|\*\*|\$")
_NAMED = re.compile(
    r"(?s)(?:(?i:option|choice|answer)\W{1,3})?[(\[]?(?P<letter>[A-Z]|(?<=\()[a-z](?=\)))"
    r"(?:[)\].:,]+ ?|\Z)(?P<text>.*)"
)
"""A letter and what follows it. A small letter without brackets may be a variable."""
_FURTHER = re.compile(r"\W*[A-Z](?:[)\].:,;]|\Z)")
"""Begins a text that names a further letter: `B,C` after `A,`."""


def expect_choice(answer: str, target: str, choices: Sequence[str]) -> tuple[str, ...]:
    """The text that an answer must be: itself if it names the right choice, nothing if another.

    If it names none, it must be the text of the right choice.

    An answer names a choice by its letter, with or without a text after it, or by its exact text. A
    text that is another choice's, or names several, is not the text of its letter.

    Args:
        answer: The answer.
        target: The letter of the right choice.
        choices: The texts of all choices in their order.
    """
    texts = dict(zip(ascii_uppercase, map(_simplify, choices), strict=False))
    text = _simplify(answer)
    match = _NAMED.fullmatch(text)
    if match and match["letter"].upper() in texts:
        text = match["text"]
        is_other = text in texts.values() or SEVERAL.search(text) or _FURTHER.match(text)
        is_right = match["letter"].upper() == target and (text == texts[target] or not is_other)
    elif text in texts.values():
        is_right = text == texts[target]
    else:
        return (choices[ascii_uppercase.index(target)],)
    return (answer,) if is_right else ()


def _simplify(text: str) -> str:
    """A text without commands of fonts, signs of formulas, and further blanks."""
    return " ".join(_MARKUP.sub(r" \1 ", text).split())
