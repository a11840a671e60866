r"""The grading rule of the study's authors, with its faults, written from a description of what it does.

It differs from our rule in three ways. It reads prompt **plus** completion, so that an empty `\boxed{}` in the prompt
counts as an answer. It accepts any answer that is a substring of the gold answer: an empty box is always right, and `1`
is right for `100`. And it knows no mathematics beyond the rewriting below. It is kept as a column, to show what the
published accuracies may owe to it, and never decides a verdict.

Source: arXiv 2510.01032 and what its code does. The rewriting is that of the MATH data set (Hendrycks et al. 2021,
arXiv 2103.03874).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_UNIT = "\\text{ "
"""A text command that begins with a blank. In MATH, units are written like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorsVerdict:
    r"""The verdict of the authors' rule.

    Attributes:
        right: The rule as it is: the answer is a substring of the gold answer, both rewritten.
        strict: The rule without the substring bug: the answer equals the gold answer, both rewritten.
        failed: Whether their code would have stopped with an IndexError, at a `\frac` or `\sqrt` with nothing after
            it. Then `right` and `strict` are False.
    """

    right: bool
    strict: bool
    failed: bool


def authors_rule(text: str, gold: str | None) -> AuthorsVerdict:
    """Judge a text, prompt and completion joined, against the gold answer.

    Args:
        text: The prompt followed by the completion.
        gold: The gold answer. None: the problem has no boxed answer.
    """
    answer = authors_answer(text)
    if answer is None or gold is None:
        agreed = answer == gold
        return AuthorsVerdict(right=agreed, strict=agreed, failed=False)
    try:
        rewritten, expected = rewrite(answer), rewrite(gold)
    except IndexError:
        return AuthorsVerdict(right=False, strict=False, failed=True)
    return AuthorsVerdict(right=rewritten in expected, strict=rewritten == expected, failed=False)


def authors_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`. None: there is no box, or the last one is not closed.

    An unclosed box hides the closed ones before it. Their code also looks for an `\fbox` if there is no `\boxed`, and
    then refuses its form.
    """
    start = text.rfind("\\boxed")
    if start < 0:
        return None
    depth = 0
    for brace in re.compile(r"[{}]").finditer(text, start):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0:
            box = text[start : brace.end()]
            prefix = "\\boxed{"
            return box[len(prefix) : -1] if box.startswith(prefix) else None
    return None


def rewrite(answer: str) -> str:
    r"""Rewrite an answer, or the gold answer, by the rule's steps in their order.

    Raises:
        IndexError: nothing follows a `\frac` or a `\sqrt`, as in their code.
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
    text = _brace_fractions(_brace_roots(text).replace(" ", ""))
    if text == "0.5":
        return "\\frac{1}{2}"
    slash = re.fullmatch(r"(0|-?[1-9][0-9]*)/(0|-?[1-9][0-9]*)", text)
    return f"\\frac{{{slash[1]}}}{{{slash[2]}}}" if slash else text


def _brace_roots(text: str) -> str:
    r"""`\sqrt3` as `\sqrt{3}`. Only the first character after the command is braced."""
    first, *rest = text.split("\\sqrt")
    return first + "".join("\\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest)


def _brace_fractions(text: str) -> str:
    r"""`\frac12` and `\frac1{2}` as `\frac{1}{2}`. If only one character follows a `\frac`, the whole text stays."""
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
