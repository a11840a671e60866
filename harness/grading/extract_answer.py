"""Find the answer of a completion: the content of its last closed box, or its first line."""

from dataclasses import dataclass
from typing import Literal

from harness.boxes import read_boxes
from harness.decimal_commas import with_decimal_points
from harness.reasoning_markers import Markers, skip_reasoning

LONGEST_ANSWER = 2000
"""Characters of an answer that are read. The longest gold answer of MATH-500 has 53
characters."""

Verdict = Literal[
    "correct",
    "incorrect",
    "no_box",
    "truncated",
    "unfinished",
    "refused",
    "timeout",
    "crashed",
    "no_reply",
]
GRADED = ("correct", "incorrect")
"""The verdicts of an answer that was compared with the gold answer."""

TOO_LONG = f"longer than {LONGEST_ANSWER} characters"


@dataclass(frozen=True, kw_only=True)
class GradeJob:
    """A completion to be graded.

    Attributes:
        completion: The text that the model wrote, after the beginning of it that the prompt
            contains: the beginning of an answer, or the start of reasoning (see
            `harness.execution.grade_samples.grade_job`).
        target: The gold answer, as it would stand in a box.
        alternatives: Further answers that are accepted.
        choices: The texts of the choices, of which the gold answer is a letter.
        decimal: The decimal sign of the gold answers if it is a comma. An answer may have either.
        finish_reason: See `finish_reasons.read_reason`. `length` tells a truncated completion
            from one without a box.
        line: Whether the answer is the first line instead of the content of the last box.
        thinking: The model's markers of reasoning; those of all families if there are none.
    """

    completion: str
    target: str
    finish_reason: str | None = None
    line: bool = False
    thinking: Markers = ()
    alternatives: tuple[str, ...] = ()
    decimal: str | None = None
    choices: tuple[str, ...] = ()

    @property
    def targets(self) -> tuple[str, ...]:
        """All accepted answers, with decimal points."""
        targets = (self.target, *self.alternatives)
        return tuple(map(with_decimal_points, targets)) if self.decimal == "," else targets


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The grader's verdict on one completion.

    Attributes:
        verdict: `correct` or `incorrect` if a closed box was read, however generation ended.
            Without such a box, `truncated` if generation reached its limit, else `no_box`; an empty
            box counts as no box. `unfinished`: the reasoning did not end, so nothing is read.
            `refused`: the content of the box is too long to be read, or its value too large.
            `timeout` and `crashed`: the comparison did not end, or failed. `no_reply`: a server
            gave no whole completion, so nothing is read. These five are counted separately, and
            never as correct.
        answer: The content of the last closed box that is not empty, or the first line, cut to
            `LONGEST_ANSWER` characters. None: there is no answer.
        reason: Why the verdict is `refused`, `timeout` or `crashed`, in a few words. None for the
            other verdicts.
    """

    verdict: Verdict
    answer: str | None
    reason: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer was judged equal to the target."""
        return self.verdict == "correct"


def read_answer(job: GradeJob) -> Grade | str:
    """Read the answer of a completion. If there is none to compare, return its grade.

    This takes linear time and is safe in any process.
    """
    if job.finish_reason in ("filtered", "broken"):
        return Grade(verdict="no_reply", answer=None)
    text = skip_reasoning(job.completion, job.thinking)
    if text is None:
        return Grade(verdict="unfinished", answer=None)
    answers = read_line(text, job.finish_reason) if job.line else read_boxes(text)
    if not answers:
        is_truncated = job.finish_reason == "length"
        return Grade(verdict="truncated" if is_truncated else "no_box", answer=None)
    answer = answers[-1]
    if len(answer) > LONGEST_ANSWER:
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER], reason=TOO_LONG)
    return answer


def read_line(text: str, finish_reason: str | None = None) -> list[str]:
    """Read the boxes of the first line, or if it has none, the line without its full stop.

    The list is empty if the line is empty, or if generation reached its limit before the end of the
    line, because the answer might have gone on.
    """
    line, line_break, _ = text.lstrip().partition("\n")
    # the line has not ended, so its answer may be incomplete
    if finish_reason == "length" and not line_break:
        return []
    boxes = read_boxes(line)
    answer = line.strip().removesuffix(".").rstrip()
    if boxes or not answer:
        return boxes
    return [answer]
