"""Find the answer of a completion: the content of its last closed box, or its first line.

Where answers are letters of choices, also what the answer must be.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal, Self

from msgspec import Struct

from harness.boxes import read_boxes
from harness.decimal_commas import with_decimal_points
from harness.grading.answer_equality import SEVERAL_ANSWERS
from harness.reasoning_markers import Markers, skip_reasoning

_MARKUP = re.compile(r"\\(?:text(?:bf|rm|it)?|math(?:bf|rm)|mbox)\{([^{}]*)\}|\\[ ,;:!]|\*\*|\$")
r"""Fonts and signs, which a choice and an answer need not share: `\textbf{B}`, `**B**`, `$B$`."""
_LETTER_AND_TEXT = re.compile(
    # `Option B`, `(B`, and a small letter only in brackets, because `b` alone may be a variable
    r"(?s)(?:(?i:option|choice|answer)\W{1,3})?[(\[]?(?P<letter>[A-Z]|(?<=\()[a-z](?=\)))"
    # the marks after the letter, and the text: `) 5`, `. 5`, `: 5`
    r"(?:[)\].:,]+ ?|\Z)(?P<text>.*)"
)
"""An answer that begins with the letter of a choice: `B`, `(b) 5`, `Option B: 5`."""
_FURTHER_LETTER = re.compile(r"\W*[A-Z](?:[)\].:,;]|\Z)")
"""The beginning of a text after a letter that names a further letter: `B,C` in `A,B,C`."""

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
GRADED_VERDICTS = ("correct", "incorrect")
"""The verdicts of an answer that was compared with the gold answer."""

TOO_LONG_REASON = f"longer than {LONGEST_ANSWER} characters"


@dataclass(frozen=True, kw_only=True)
class GradeJob:
    r"""A completion to be graded.

    Attributes:
        completion: The text that the model wrote, after the beginning of it that the prompt
            contains: the beginning of an answer, or the start of reasoning (see
            `harness.execution.sample_grading.grade_job`).
        target: The gold answer, as it would stand in a box.
        alternatives: Further answers that are accepted.
        choices: The texts of the choices, of which the gold answer is a letter.
        decimal_sign: The decimal sign of the gold answers if it is a comma. An answer may have
            either sign.
        finish_reason: See `finish_reasons.read_reason`. `length` tells a truncated completion
            from one without a box.
        is_line: Whether the answer is the first line instead of the content of the last box.
        reasoning_markers: The model's markers of reasoning, or none for those of all families.
        prompt: The prompt as text, which the authors' rule reads too.
        solution: The worked solution, from which math_verify takes the gold answer. "" stands for
            `\boxed{target}`.
    """

    completion: str
    target: str
    finish_reason: str | None = None
    is_line: bool = False
    reasoning_markers: Markers = ()
    alternatives: tuple[str, ...] = ()
    decimal_sign: str | None = None
    choices: tuple[str, ...] = ()
    prompt: str = ""
    solution: str = ""

    @classmethod
    def of(cls, doc: Mapping[str, Any], **fields: Any) -> Self:
        """The job for a completion of a problem in a document of lm-eval."""
        return cls(
            target=doc["answer"],
            alternatives=tuple(doc.get("alternatives") or ()),
            choices=tuple(doc.get("choices") or ()),
            decimal_sign=doc.get("decimal"),
            solution=doc.get("solution") or "",
            **fields,
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """All accepted answers, with decimal points."""
        targets = (self.target, *self.alternatives)
        return tuple(map(with_decimal_points, targets)) if self.decimal_sign == "," else targets


class Grade(Struct, frozen=True, kw_only=True):
    """The grader's verdict on one completion, and those of the other graders (the audit).

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
        math_verify: lm-eval's call of math_verify. Any expression in the text can count, even
            instead of the box. None, as in the other columns: the grader did not end, failed, or
            was left out.
        authors_rule: The rule of the study's authors, on prompt plus completion, with its substring
            bug.
        authors_rule_strict: The authors' rule with equality only.
        audit_reason: Why a column is None, or that the authors' code would have failed. "; "
            separates several reasons.
    """

    verdict: Verdict
    answer: str | None
    reason: str | None = None
    math_verify: bool | None = None
    authors_rule: bool | None = None
    authors_rule_strict: bool | None = None
    audit_reason: str | None = None

    @property
    def correct(self) -> bool:
        """Whether the answer was judged equal to the target."""
        return self.verdict == "correct"


def read_answer(job: GradeJob) -> Grade | str:
    """Read the answer of a completion. If there is none to compare, return the grade instead.

    This takes linear time and is safe in any process.
    """
    if job.finish_reason in ("filtered", "broken"):
        return Grade(verdict="no_reply", answer=None)
    text = skip_reasoning(job.completion, job.reasoning_markers)
    if text is None:
        return Grade(verdict="unfinished", answer=None)
    answers = read_line(text, job.finish_reason) if job.is_line else read_boxes(text)
    if not answers:
        return Grade(
            verdict="truncated" if job.finish_reason == "length" else "no_box", answer=None
        )
    answer = answers[-1]
    if len(answer) > LONGEST_ANSWER:
        return Grade(verdict="refused", answer=answer[:LONGEST_ANSWER], reason=TOO_LONG_REASON)
    return answer


def read_line(text: str, finish_reason: str | None) -> list[str]:
    """Read the boxes of the first line, or if it has none, the line without its full stop.

    The list is empty if the line is empty, or if generation reached its limit before the end of the
    line, because the answer might have gone on.
    """
    line, line_break, _ = text.lstrip().partition("\n")
    if finish_reason == "length" and not line_break:
        return []
    boxes = read_boxes(line)
    answer = line.strip().removesuffix(".").rstrip()
    if boxes or not answer:
        return boxes
    return [answer]


def list_accepted_texts(job: GradeJob, answer: str) -> tuple[str, ...]:
    """The texts with which an answer must be compared, with decimal points.

    Without choices they are the targets of the job. With choices they depend on the answer:

    - An answer that names the right choice is compared with itself, so it is correct.
    - An answer that names another choice, or contradicts itself, is compared with nothing.
    - An answer that names no choice is compared with the text of the right choice.

    An answer names a choice by its letter, with or without a text after the letter, or by the exact
    text of the choice. It contradicts itself if the text after the letter is that of another
    choice, or names several choices.

    Args:
        job: The job, whose target is the letter of the right choice if there are choices.
        answer: The answer that was read.
    """
    if not job.choices:
        return job.targets
    choice_texts = [*map(_simplify, job.choices)]
    right_index = ascii_uppercase.index(job.target)
    right_text = choice_texts[right_index]
    simple_answer = _simplify(answer)
    match = _LETTER_AND_TEXT.fullmatch(simple_answer)
    if match is None or match["letter"].upper() not in ascii_uppercase[: len(choice_texts)]:
        # an answer without the letter of a choice may still be the text of one
        if simple_answer in choice_texts:
            return (answer,) if simple_answer == right_text else ()
        accepted_text = job.choices[right_index]
        return (with_decimal_points(accepted_text) if job.decimal_sign == "," else accepted_text,)
    if match["letter"].upper() != job.target:
        return ()
    text_after_letter = match["text"]
    if text_after_letter == right_text:
        return (answer,)
    # `B. 5` contradicts itself if A is 5, and so do `B or C` and `B, C`
    if (
        text_after_letter in choice_texts
        or SEVERAL_ANSWERS.search(text_after_letter)
        or _FURTHER_LETTER.match(text_after_letter)
    ):
        return ()
    return (answer,)


def _simplify(text: str) -> str:
    r"""A text without font commands and signs, and with single blanks: B for `$\mathbf{B}$`."""
    return " ".join(_MARKUP.sub(r" \1 ", text).split())
