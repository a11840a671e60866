"""Grades a completion: finds the answer in its last box, compares it with the gold answer, and gives a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from harness.grading.equivalence import same_mathematics, unreadable_part
from harness.grading.formula import DEEPEST, TooLarge, as_number
from harness.grading.notation import plain

Verdict = Literal["correct", "incorrect", "no_box", "truncated", "refused", "timeout", "crashed"]

GRADER_VERSION = 4
"""Goes up whenever a verdict can change."""

LONGEST_ANSWER = 2000
"""Characters of a box that are still read; the longest gold of MATH-500 has 53."""

TOO_LONG = f"longer than {LONGEST_ANSWER} characters"
MOST_RELATIONS = 20
"""Most terms of a chain such as `a=b=c`: each is compared with the last."""

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
            beginning, or `<think>` (see `harness.execution.scoring.grade_job`).
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
            too large to be read, or its value is. `timeout` and `crashed`: the comparison did not end, or failed. These
            three are counted apart, and never as correct.
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
    """Grade a completion in this process. For many, use `GraderPool`: it grades in parallel, in killable processes.

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
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER], reason=TOO_LONG)
    return answer


def compare(answer: str, target: str) -> Grade:
    """Grade the content of a box against the gold answer.

    What it costs is bounded by the length of the texts. On what a model wrote only worker processes call it all the
    same, since a bound is easier to state than to keep.

    Args:
        answer: What `read` returned.
        target: The gold answer, as it would stand in a box.

    Raises:
        MemoryError: Left to the worker, which knows its limit.
    """
    reason = None
    try:
        if answer == target:
            verdict: Verdict = "correct"
        elif max(len(answer), len(target)) > LONGEST_ANSWER:
            verdict, reason = "refused", TOO_LONG if len(answer) > LONGEST_ANSWER else f"gold answer: {TOO_LONG}"
        elif plain(answer) == plain(target):
            verdict = "correct"
        elif None not in (numbers := (as_number(plain(answer)), as_number(plain(target)))):
            verdict = "correct" if numbers[0] == numbers[1] else "incorrect"
        elif reason := refusal(answer) or refuse_target(target):
            verdict = "refused"
        else:
            verdict = "correct" if same_mathematics(answer, target) else "incorrect"
    except TooLarge as error:
        verdict, reason = "refused", str(error)
    except MemoryError:
        raise
    except Exception as error:  # a bug of ours must not pass for a wrong answer
        verdict, reason = "crashed", type(error).__name__
    return Grade(verdict=verdict, answer=answer[:LONGEST_ANSWER], reason=reason)


def refusal(text: str) -> str | None:
    """Why an answer would take too much work to compare, in a few words; None if it would not."""
    if len(text) > LONGEST_ANSWER or len(text := plain(text)) > LONGEST_ANSWER:  # one character may stand for many
        return TOO_LONG
    if text.count("=") > MOST_RELATIONS:
        return f"more than {MOST_RELATIONS} equals signs"
    depths = accumulate((character in "([{") - (character in ")]}") for character in text)
    return f"nested deeper than {DEEPEST}" if max(depths, default=0) > DEEPEST else None


@lru_cache(maxsize=4096)
def refuse_target(target: str) -> str | None:
    """Why no answer can be compared with this gold answer, unless it is the same text; None if one can."""
    found = refusal(target)
    return found and f"gold answer: {found}"


def describe_gold(target: str) -> str | None:
    """Why the grader cannot compare an answer with this gold answer; None if it can."""
    try:
        return refuse_target(target) or ("not read as mathematics" if unreadable_part(target) else None)
    except TooLarge as error:
        return str(error)


def read_boxes(completion: str) -> list[str]:
    r"""The contents of all closed `\boxed{...}` and `\fbox{...}` that hold something, in order.

    Only what follows the last `</think>` is read, up to a `<think>` that never ends. A box inside a closed box is part
    of it, and a box that holds nothing but a box is that box. Escaped braces do not nest. An unclosed box is skipped,
    so an earlier closed one still counts. So is an empty one: a base model that repeats its prompt ("put your final
    answer within \boxed{}") has not taken its answer back. `\boxed 5` and a doubled backslash, as in a text that was
    escaped twice, are read too.

    One pass with a stack: linear in the text, whatever the nesting.
    """
    text = completion.rpartition("</think>")[2].partition("<think>")[0]
    opened: list[tuple[int, bool] | None] = []  # where a box starts, and whether it is doubled; None for other braces
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
                while spans and spans[-1][0] > box[0]:  # boxes close inside out: those were inside this one
                    spans.pop()
                spans.append((box[0], match.start(), box[1]))
    contents = [
        text[start:end].replace("\\\\", "\\") if doubled else text[start:end]
        for start, end, doubled in spans
        if not _NOTHING.fullmatch(text, start, end)
    ]
    return [(inner[1] if (inner := _INNER_BOX.fullmatch(content)) else content).strip() for content in contents]
