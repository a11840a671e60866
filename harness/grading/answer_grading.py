"""Grade an answer against the gold answer: the verdict, and its limits on the work.

`answer_equality` decides whether two answers are the same.
"""

from itertools import accumulate, product, starmap

from harness.decimal_commas import with_decimal_points
from harness.grading.answer_elements import is_readable, split_atoms, split_members
from harness.grading.answer_equality import same_mathematics
from harness.grading.answer_extraction import (
    LONGEST_ANSWER,
    TOO_LONG_REASON,
    Grade,
    GradeJob,
    Verdict,
    read_answer,
)
from harness.grading.formula import DEEPEST_NESTING, TooLarge, blame_gold_answer
from harness.grading.formula_values import begin_comparison
from harness.grading.notation import in_plain_notation

GRADER_VERSION = 9
"""Goes up whenever a verdict can change."""
MOST_EQUALS_SIGNS = 20
"""Most equals signs in a chain, such as `a=b=c`: each term is compared with the last term."""


def grade(
    completion: str, target: str, *, finish_reason: str | None = None, line: bool = False
) -> Grade:
    r"""Grade a completion in this process.

    For many completions, use `GraderPool`: it grades in parallel, in processes that can be killed.

    Args:
        completion: The text that the model wrote, without the prompt.
        target: The gold answer, as it would stand in a box.
        finish_reason: vLLM's finish reason, if known.
        line: Whether the answer is the first line instead of the content of the last box.

    Example:
        >>> mless.grade(r"so it is \boxed{\frac12}", "0.5").verdict
        'correct'
        >>> mless.grade("7\nThat is all.", "8", line=True).answer
        '7'
    """
    answer = read_answer(
        GradeJob(completion=completion, target=target, finish_reason=finish_reason, is_line=line)
    )
    return answer if isinstance(answer, Grade) else compare_answers(answer, target)


def compare_answers(answer: str, *targets: str, decimal_sign: str | None = None) -> Grade:
    """Grade the content of a box against the accepted answers.

    The length of the texts bounds the cost. Even so, text of a model is compared only in worker
    processes, because a fault of the grader may break this bound.

    Args:
        answer: The result of `read_answer`.
        *targets: The gold answer, as it would stand in a box, and further accepted answers.
        decimal_sign: If it is a comma, the answer is also read with a decimal comma. The targets
            have points.

    Raises:
        MemoryError: The worker, which knows its limit, handles this error.
    """
    verdict: Verdict
    reason = None
    answers = [answer]
    if decimal_sign == ",":
        answers.append(with_decimal_points(answer))
    begin_comparison()
    try:
        is_correct = any(starmap(_is_gold_answer, product(answers, targets)))
        verdict = "correct" if is_correct else "incorrect"
    except TooLarge as error:
        verdict = "refused"
        reason = str(error)
    except MemoryError:
        raise
    except Exception as error:  # a bug of the grader must not pass for a wrong answer
        verdict = "crashed"
        reason = type(error).__name__
    return Grade(verdict=verdict, answer=answer[:LONGEST_ANSWER], reason=reason)


def _is_gold_answer(answer: str, target: str) -> bool:
    """Whether an answer is the gold answer, as text or as mathematics."""
    if answer == target:
        return True
    _check_size(answer)
    with blame_gold_answer():
        _check_size(target)
    return same_mathematics(answer, target)


def _check_size(text: str) -> None:
    """Raise `TooLarge` if an answer would take too much work to compare."""
    if len(text) > LONGEST_ANSWER:
        raise TooLarge(TOO_LONG_REASON)
    plain_text = in_plain_notation(text)
    # plain notation writes some characters as many, so the length is checked again
    if len(plain_text) > LONGEST_ANSWER:
        raise TooLarge(TOO_LONG_REASON)
    if plain_text.count("=") > MOST_EQUALS_SIGNS:
        raise TooLarge(f"more than {MOST_EQUALS_SIGNS} equals signs")
    # deep nesting is refused before the text is read, because reading is recursive
    depths = accumulate((character in "([{") - (character in ")]}") for character in plain_text)
    if max(depths, default=0) > DEEPEST_NESTING:
        raise TooLarge(f"nested deeper than {DEEPEST_NESTING}")


def describe_gold(target: str) -> str | None:
    """Say why the grader cannot compare an answer with this gold answer; None if it can."""
    begin_comparison()
    try:
        with blame_gold_answer():
            _check_size(target)
        can_compare = all(map(is_readable, split_atoms(in_plain_notation(target))))
    except TooLarge as error:
        return str(error)
    return None if can_compare else "not read as mathematics"


def read_elements(target: str) -> list[str]:
    """The elements of a gold answer that is a list, as the grader reads them.

    A single answer is the only element.
    """
    return split_members(in_plain_notation(target))
