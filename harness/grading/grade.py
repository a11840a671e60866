"""One completion against one target: a verdict and the answer that was read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from harness.grading.equivalence import as_integer, same_mathematics, same_text
from harness.grading.extraction import last_box, visible_answer

Verdict = Literal["correct", "incorrect", "no_box", "truncated", "refused", "timeout", "crashed"]

GRADER_VERSION = 1
"""Goes up whenever a verdict can change."""

_EXPLOSIVE = re.compile(
    r"\^\s*\{?[-+(]*\d{5,}"  # 2^{10000000}
    r"|\^\s*\{[^{}A-Za-z]*\d[^{}A-Za-z]*\^|\d\s*\^\s*\{?\d+\}?\s*\^"  # 9^{9^9}, 9^9^9
    r"|\d{5,}\)?\s*!|!\s*\)*!"  # 100000000!, 9!!
)
"""Powers, towers and factorials whose value would not fit anywhere: sympy would try. No gold has any."""

LONGEST_ANSWER = 2000
"""Characters of a box that are still read; the longest gold of MATH-500 has 53."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What the grader says of one completion.

    Attributes:
        verdict: `correct` or `incorrect` if a closed box was read, however generation ended; without one `truncated`
            if generation ran into its limit, else `no_box`. `refused`: the box is too large to be read, or names a
            number too large to be computed. `timeout` and `crashed`: the comparison did not end, or failed; counted
            apart, never as correct.
        answer: The content of the last closed box; None without one.
    """

    verdict: Verdict
    answer: str | None

    @property
    def correct(self) -> bool:
        """Whether the answer was judged equal to the target."""
        return self.verdict == "correct"


def grade(completion: str, target: str, *, finish_reason: str | None = None) -> Grade:
    """Grade a completion against the gold answer.

    Args:
        completion: What the model wrote, without the prompt. With think tags only what follows the last one counts.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's, if known: `length` separates a truncated completion from one without a box.
    """
    answer = last_box(visible_answer(completion))
    if answer is None:
        return Grade(verdict="truncated" if finish_reason == "length" else "no_box", answer=None)
    if len(answer) > LONGEST_ANSWER or _EXPLOSIVE.search(answer):
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER])
    return Grade(verdict=_compare(answer, target), answer=answer)


def _compare(answer: str, target: str) -> Verdict:
    if not answer:
        return "incorrect"
    if same_text(answer, target):
        return "correct"
    numbers = as_integer(answer), as_integer(target)
    if None not in numbers:
        return "correct" if numbers[0] == numbers[1] else "incorrect"
    try:
        return "correct" if same_mathematics(answer, target) else "incorrect"
    except TimeoutError:
        return "timeout"
    except Exception:  # sympy and the LaTeX parser raise anything at all on malformed input
        return "crashed"
