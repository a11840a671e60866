"""One completion against one target: a verdict and the answer that was read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.grading.boxes import last_box, visible_answer
from harness.grading.equivalence import same_mathematics, same_text
from harness.grading.exact import TooLarge
from harness.grading.formula import as_number
from harness.grading.notation import plain
from harness.grading.size_limits import LONGEST_ANSWER, refusal

Verdict = Literal["correct", "incorrect", "no_box", "truncated", "refused", "timeout", "crashed"]

GRADER_VERSION = 3
"""Goes up whenever a verdict can change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What the grader says of one completion.

    Attributes:
        verdict: `correct` or `incorrect` if a closed box was read, however generation ended; without one `truncated`
            if generation ran into its limit, else `no_box`. An empty box is no box. `refused`: the box is too large
            to be read, or holds something that would have to be computed. `timeout` and `crashed`: the comparison did
            not end, or failed; counted apart, never as correct.
        answer: The content of the last closed box that holds something, cut to `LONGEST_ANSWER`; None without one.
        reason: Why `refused`, `timeout` or `crashed`, in a few words; None otherwise.
    """

    verdict: Verdict
    answer: str | None
    reason: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer was judged equal to the target."""
        return self.verdict == "correct"


def read(completion: str, *, finish_reason: str | None = None) -> Grade | str:
    """The answer of a completion, or its grade where there is nothing to compare. Linear time, safe in any process.

    Args:
        completion: What the model wrote, without the prompt. With think tags only what follows the last one counts.
        finish_reason: vLLM's, if known: `length` separates a truncated completion from one without a box.
    """
    answer = last_box(visible_answer(completion))
    if answer is None:
        return Grade(verdict="truncated" if finish_reason == "length" else "no_box", answer=None)
    if len(answer) > LONGEST_ANSWER:
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER], reason=refusal(answer))
    return answer


def compare(answer: str, target: str) -> Grade:
    """Grade the content of a box against the gold answer.

    May hang or exhaust memory on hostile text, though the gates leave little room for it: on what a model wrote only
    worker processes call it.

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


def grade(completion: str, target: str, *, finish_reason: str | None = None) -> Grade:
    """Grade a completion against the gold answer, in this process.

    Args:
        completion: What the model wrote, without the prompt.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's, if known.
    """
    found = read(completion, finish_reason=finish_reason)
    return found if isinstance(found, Grade) else compare(found, target)
