r"""The grading rule of the study's authors, written from a description of what it does, faults included.

It differs from ours in three ways that matter: it reads prompt **plus** completion, so that an empty `\boxed{}` in the
prompt stands in for an answer; it accepts any answer that is a substring of the gold one, so that an empty box is
always right and `1` is right for `100`; and it knows no mathematics beyond the rewriting below. It is kept as a column,
to say what the published accuracies may owe to it, and never decides a verdict.

Source: arXiv 2510.01032 and its code, in effect; the rewriting is that of the MATH data set (Hendrycks et al. 2021,
arXiv 2103.03874).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNIT = "\\text{ "
"""A text command that opens with a blank: in MATH this is how units are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorsVerdict:
    r"""What the authors' rule says.

    Attributes:
        right: Their verdict: equal after rewriting, or a substring of the gold answer.
        strict: The same without the substring bug: equal after rewriting.
        failed: Whether their code would have stopped with an IndexError (a `\frac` or `\sqrt` with nothing after it);
            both verdicts are then wrong.
    """

    right: bool
    strict: bool
    failed: bool


def authors_rule(text: str, gold: str | None) -> AuthorsVerdict:
    """Judge a text, prompt and completion joined, against the gold answer (None: the problem has no boxed answer)."""
    answer = authors_answer(text)
    if answer is None or gold is None:
        agreed = answer is None and gold is None
        return AuthorsVerdict(right=agreed, strict=agreed, failed=False)
    try:
        rewritten, expected = rewrite(answer), rewrite(gold)
    except IndexError:
        return AuthorsVerdict(right=False, strict=False, failed=True)
    return AuthorsVerdict(right=rewritten in expected, strict=rewritten == expected, failed=False)


def authors_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, None if there is none, it is never closed, or it is an `\fbox`.

    Only the last one is looked at: an unclosed one hides the closed ones before it. An `\fbox` is looked for where
    there is no `\boxed`, but then fails the test of its form.
    """
    start = text.rfind("\\boxed")
    if start < 0:
        return None  # an \fbox, found or not, is not of the form that is asked for
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            box = text[start : brace.end()]
            prefix = "\\boxed{"
            return box[len(prefix) : -1] if box.startswith(prefix) else None
    return None


def rewrite(answer: str) -> str:
    r"""The rewriting of both sides, in the order that the rule has.

    Raises:
        IndexError: Nothing follows a `\frac` or a `\sqrt`; theirs raises it too.
    """
    text = answer.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = text.replace("tfrac", "frac").replace("dfrac", "frac")
    text = text.replace("\\left", "").replace("\\right", "")
    text = text.replace("^{\\circ}", "").replace("^\\circ", "").replace("\\$", "")
    text = text.partition(_UNIT)[0].replace("\\%", "")
    text = text.replace(" .", " 0.").replace("{.", "{0.")
    text = "0" + text if text.startswith(".") else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = _brace_roots(text).replace(" ", "")
    text = _brace_fractions(text)
    return _slash_as_fraction("\\frac{1}{2}" if text == "0.5" else text)


def _brace_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`: the first character after it is the radicand."""
    first, *rest = text.split("\\sqrt")
    return first + "".join("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)


def _brace_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`; with one character after a `\frac` the whole text stays as it is."""
    first, *rest = text.split("\\frac")
    parts = [first]
    for part in rest:
        if part[0] == "{":
            braced = part
        elif len(part) < 2:
            return text
        else:
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            braced = f"{{{part[0]}}}{below}"
        parts.append("\\frac" + braced)
    return "".join(parts)


def _slash_as_fraction(text: str) -> str:
    r"""`a/b` with two plain integers as `\frac{a}{b}`."""
    sides = text.split("/")
    if len(sides) != 2:
        return text
    try:
        above, below = (int(side) for side in sides)
    except ValueError:
        return text
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text
