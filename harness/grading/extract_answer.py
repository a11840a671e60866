"""Finds the answer of a completion: what its last closed box holds, or its first line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

LONGEST_ANSWER = 2000
"""Characters of an answer that are still read; the longest gold of MATH-500 has 53. lm-eval's normalisation, which is
quadratic in them, gets no more either."""


Verdict = Literal["correct", "incorrect", "no_box", "truncated", "refused", "timeout", "crashed"]
GRADED = ("correct", "incorrect")
"""The verdicts of an answer that was compared with the gold answer."""

TOO_LONG = f"longer than {LONGEST_ANSWER} characters"
_BRACE = re.compile(
    r"\\{1,2}(?:boxed|fbox)\s*(?:\{|(?P<bare>[-+]?(?:\d+(?:[.,/]\d+)*|\.\d+|\\[dt]?frac(?:\{[^{}]*\}|\w){2}))"
    r"(?=[\s.,;:$)]|\\[)\]]|\Z))"
    r"|\\[\\{}]|[{}]"
)
# Nothing here may repeat possessively: before Python 3.11.5 that lets a lookahead pass that has failed.
_NOTHING = re.compile(  # blanks, TeX's spaces, dots that stand for an answer, and braces and fonts around them
    r"(?:[\s~{}$]|\.{2,}(?!\.)|\\[ ,;:!>]|\\(?:quad|qquad|enspace|thinspace|space|[lc]?dots)(?![A-Za-z])"
    r"|\\(?:[hv]space\*?|[hv]?phantom)\{[^{}]*\}"
    r"|\\(?:boxed|fbox|mbox|text(?:bf|it|rm)?|math(?:rm|bf|it|sf))(?=\s*\{))*"
)
_INNER_BOX = re.compile(r"\s*\\(?:boxed|fbox)\s*\{([^{}]*)\}\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeJob:
    """A completion to be graded.

    Attributes:
        completion: What the model wrote, without the prompt, but with what the prompt had begun of it: an answer's
            beginning, or `<think>` (see `harness.execution.grade_samples.grade_job`).
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's, if known. `length` tells a truncated completion from one without a box.
        line: Whether the answer is the first line, instead of the last box.
    """

    completion: str
    target: str
    finish_reason: str | None = None
    line: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The grader's verdict on one completion.

    Attributes:
        verdict: `correct` or `incorrect` if a closed box was read, however generation ended. Without such a box,
            `truncated` if generation ran into its limit, else `no_box`; an empty box is no box. `refused`: the box is
            too large to be read, or its value is. `timeout` and `crashed`: the comparison did not end, or failed. These
            three are counted apart, and never as correct.
        answer: The content of the last closed box that holds something, or the line, cut to `LONGEST_ANSWER`, or None.
        reason: Why the verdict is `refused`, `timeout` or `crashed`, in a few words. None for the other verdicts.
    """

    verdict: Verdict
    answer: str | None
    reason: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer was judged equal to the target."""
        return self.verdict == "correct"


def read(completion: str, *, finish_reason: str | None = None, line: bool = False) -> Grade | str:
    """The answer of a completion, or its grade if there is nothing to compare. Takes linear time, safe in any process.

    Args:
        completion: What the model wrote, without the prompt.
        finish_reason: vLLM's, if known.
        line: Whether the answer is the first line, instead of the last box.
    """
    boxes = read_line(completion, finish_reason) if line else read_boxes(completion)
    if not boxes:
        return Grade(verdict="truncated" if finish_reason == "length" else "no_box", answer=None)
    answer = boxes[-1]
    if len(answer) > LONGEST_ANSWER:
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER], reason=TOO_LONG)
    return answer


def read_line(completion: str, finish_reason: str | None = None) -> list[str]:
    """The first line without a full stop at its end, or what a box in it holds. Empty without one.

    It is none if generation ran into its limit before the line's end: there might have been more.
    """
    line, end, _ = completion.rpartition("</think>")[2].lstrip().partition("\n")
    if finish_reason == "length" and not end:
        return []
    return read_boxes(line) or [text for text in [line.strip().removesuffix(".").rstrip()] if text]


def read_boxes(completion: str) -> list[str]:
    r"""The contents of all closed `\boxed{...}` and `\fbox{...}` that hold something, in order.

    Only what follows the last `</think>` is read, up to a `<think>` that never ends. A box inside a closed box is part
    of it, and a box that holds nothing but a box is that box. Escaped braces do not nest. An unclosed box is skipped,
    so an earlier closed one still counts. So is an empty one: a base model that repeats its prompt ("put your final
    answer within \boxed{}") has not taken its answer back. `\boxed 5` and a doubled backslash, as in a text that was
    escaped twice, are read too.

    """
    text = completion.rpartition("</think>")[2].partition("<think>")[0]
    contents = [
        text[start:end].replace("\\\\", "\\") if doubled else text[start:end]
        for start, end, doubled in _find_boxes(text)
        if not _NOTHING.fullmatch(text, start, end)
    ]
    return [
        (inner[1] if (inner := _INNER_BOX.fullmatch(content)) else content).strip()
        for content in contents
    ]


def _find_boxes(text: str) -> list[tuple[int, int, bool]]:
    """Where the content of each closed box begins and ends, in order, and whether its backslash is doubled.

    One pass with a stack: linear in the text, whatever the nesting.
    """
    opened: list[
        tuple[int, bool] | None
    ] = []  # where a box starts, and whether it is doubled; None for other braces
    spans: list[tuple[int, int, bool]] = []
    first = text.find("box")  # braces before the first box close none
    for match in _BRACE.finditer(text, max(0, first - 3)) if first >= 0 else ():
        token = match.group()
        doubled = token.startswith("\\\\")
        if match["bare"]:
            spans.append((*match.span("bare"), doubled))
        elif "b" in token:  # of \boxed or \fbox
            opened.append((match.end(), doubled))
        elif token == "{":
            opened.append(None)
        elif token == "}" and opened:
            box = opened.pop()
            if box is not None:
                while (
                    spans and spans[-1][0] > box[0]
                ):  # boxes close inside out: those were inside this one
                    spans.pop()
                spans.append((box[0], match.start(), box[1]))
    return spans
