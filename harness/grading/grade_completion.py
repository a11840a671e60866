"""Grades a completion: finds the answer in its last box, compares it with the gold answer, and gives a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from harness.grading.equivalence import same_mathematics, same_text
from harness.grading.exact import TooLarge
from harness.grading.formula import as_number
from harness.grading.notation import plain
from harness.grading.size_limits import LONGEST_ANSWER, refusal

Verdict = Literal["correct", "incorrect", "no_box", "truncated", "refused", "timeout", "crashed"]

GRADER_VERSION = 3
"""Goes up whenever a verdict can change."""

_BRACE = re.compile(r"\\boxed\s*\{|\\fbox\s*\{|\\[\\{}]|[{}]")
_NOTHING = re.compile(  # blanks, TeX's spaces, dots that stand for an answer, and braces and fonts around them
    r"(?:[\s~{}$]|\.{2,}+|\\[ ,;:!>]|\\(?:quad|qquad|enspace|thinspace|space|[lc]?dots)(?![A-Za-z])"
    r"|\\(?:[hv]space\*?|[hv]?phantom)\{[^{}]*\}"
    r"|\\(?:boxed|fbox|mbox|text(?:bf|it|rm)?|math(?:rm|bf|it|sf))(?=\s*\{))*+"
)
_INNER_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeJob:
    """A completion to be graded.

    Attributes:
        completion: What the model wrote, without the prompt.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's, if known. `length` tells a truncated completion from one without a box.
    """

    completion: str
    target: str
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The grader's verdict on one completion.

    Attributes:
        verdict: `correct` or `incorrect` if a closed box was read, however generation ended. Without such a box,
            `truncated` if generation ran into its limit, else `no_box`; an empty box is no box. `refused`: the box is
            too large to be read, or holds something that would have to be computed. `timeout` and `crashed`: the
            comparison did not end, or failed. These three are counted apart, and never as correct.
        answer: The content of the last closed box that holds something, cut to `LONGEST_ANSWER`. None without one.
        reason: Why the verdict is `refused`, `timeout` or `crashed`, in a few words. None for the other verdicts.
    """

    verdict: Verdict
    answer: str | None
    reason: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer was judged equal to the target."""
        return self.verdict == "correct"


def grade(completion: str, target: str, *, finish_reason: str | None = None) -> Grade:
    """Grade a completion in this process. For what a model wrote, use `GraderPool`: hostile text may hang this one.

    Args:
        completion: What the model wrote, without the prompt.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's, if known.
    """
    found = read(completion, finish_reason=finish_reason)
    return found if isinstance(found, Grade) else compare(found, target)


def read(completion: str, *, finish_reason: str | None = None) -> Grade | str:
    """The answer of a completion, or its grade if there is nothing to compare. Takes linear time, safe in any process.

    Args:
        completion: What the model wrote, without the prompt.
        finish_reason: vLLM's, if known.
    """
    boxes = read_boxes(completion)
    if not boxes:
        return Grade(verdict="truncated" if finish_reason == "length" else "no_box", answer=None)
    answer = boxes[-1]
    if len(answer) > LONGEST_ANSWER:
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER], reason=refusal(answer))
    return answer


def compare(answer: str, target: str) -> Grade:
    """Grade the content of a box against the gold answer.

    May hang or exhaust memory on hostile text, though the size limits leave little room for it. So only worker
    processes call it on what a model wrote.

    Args:
        answer: What `read` returned.
        target: The gold answer, as it would stand in a box.

    Raises:
        MemoryError: Left to the worker, which knows its limit.
    """
    reason = None
    try:
        if same_text(answer, target):
            verdict: Verdict = "correct"
        elif None not in (numbers := (as_number(plain(answer)), as_number(plain(target)))):
            verdict = "correct" if numbers[0] == numbers[1] else "incorrect"
        elif reason := refusal(answer) or refusal(plain(answer)):  # plain text has `⁹` and `^\\text{9}` as powers
            verdict = "refused"
        else:
            verdict = "correct" if same_mathematics(answer, target) else "incorrect"
    except TooLarge as error:
        verdict, reason = "refused", str(error)
    except MemoryError:
        raise
    except Exception as error:  # sympy raises anything at all on malformed input
        verdict, reason = "crashed", type(error).__name__
    return Grade(verdict=verdict, answer=answer[:LONGEST_ANSWER], reason=reason)


def read_boxes(completion: str) -> list[str]:
    r"""The contents of all closed `\boxed{...}` and `\fbox{...}` that hold something, in order.

    Only what follows the last `</think>` is read, up to a `<think>` that never ends. A box inside a closed box is part
    of it, and a box that holds nothing but a box is that box. Escaped braces do not nest. An unclosed box is skipped,
    so an earlier closed one still counts. So is an empty one: a base model that repeats its prompt ("put your final
    answer within \boxed{}") has not taken its answer back.

    One pass with a stack: linear in the text, whatever the nesting.
    """
    text = completion.rpartition("</think>")[2].partition("<think>")[0]
    opened: list[int | None] = []  # where the content of a box starts; None for other braces
    spans: list[tuple[int, int]] = []
    for match in _BRACE.finditer(text):
        token = match.group()
        if token.startswith(("\\boxed", "\\fbox")):
            opened.append(match.end())
        elif token == "{":
            opened.append(None)
        elif token == "}" and opened:
            start = opened.pop()
            if start is not None:
                while spans and spans[-1][0] > start:  # boxes close inside out: those were inside this one
                    spans.pop()
                spans.append((start, match.start()))
    contents = [text[start:end].strip() for start, end in spans if not _NOTHING.fullmatch(text, start, end)]
    return [inner[1].strip() if (inner := _INNER_BOX.fullmatch(content)) else content for content in contents]
