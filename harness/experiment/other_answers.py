"""Other answers, with which a gold answer is compared: gold answers of other problems.

A text before the question can make every answer likelier, the right one no more than wrong ones. So
other answers of the same form and length are scored after the same prompts. An answer that is
frequent in the data must not come first for this reason. So the problems of a form and length are
dealt to blocks of five or a few more, and the other answers of a problem are those of its block: a
model that ignores the questions then puts one gold answer of five first.
"""

import random
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from string import ascii_uppercase as LETTERS

from harness.constants import OTHER_ANSWER_COUNT
from harness.decimal_commas import with_decimal_points
from harness.errors import DataError
from harness.experiment.problems import Problem
from harness.experiment.prompts.prompt import hash_text
from harness.grading.answer_grading import compare_answers

NUMBER_PATTERN = re.compile(r"[-+]?(\\?\$)?(?=\.?\d)(\d{1,3}(,(\\!)?\d{3})+|\d*)(\.\d+)?(\\?%)?")
"""An entire number, such as `-5`, `1,234.5`, `\\$3` and `50\\%`."""
FRACTION_PATTERN = re.compile(r"[-+]?\d*(\\[dt]?frac|/\d+\Z)")
"""The beginning of a fraction in LaTeX, or an entire one such as `1/2`."""


def find_form(answer: str) -> str:
    """The form of an answer: `number`, `fraction`, or `text` for all others."""
    if NUMBER_PATTERN.fullmatch(answer):
        return "number"
    return "fraction" if FRACTION_PATTERN.match(answer) else "text"


def draw_other_answers(
    problems: Sequence[Problem],
    requested_ids: Collection[str],
    count_tokens: Callable[[str], int],
    seed: int,
) -> dict[str, tuple[str, ...]]:
    """Draw the other answers of each requested problem, by the problem's id.

    A problem with choices has the letters of all its other choices. Any other problem has answers
    of its block. If these are too few, answers with its number of tokens follow, then those with
    the nearest numbers of tokens.

    Args:
        problems: All problems whose answers may be drawn.
        requested_ids: The ids of the problems that need other answers.
        count_tokens: The number of tokens of an answer.
        seed: The seed of blocks and draws.

    Raises:
        DataError: there are too few other answers for a problem.
    """
    answers_by_id = {}
    # a kind is the form of an answer and its number of tokens
    problems_by_kind: dict[tuple[str, int], list[Problem]] = {}
    for problem in problems:
        if problem.choices:
            other_letters = LETTERS[: len(problem.choices)].replace(problem.answer, "")
            answers_by_id[problem.id] = tuple(other_letters)
            continue
        answer = problem.answer.strip()
        answer_with_point = with_decimal_points(answer) if problem.decimal else answer
        kind = find_form(answer_with_point), count_tokens(answer)
        problems_by_kind.setdefault(kind, []).append(replace(problem, answer=answer))
    for kind_problems in problems_by_kind.values():
        # equal answers are neighbours in this random order, and so come into different blocks
        kind_problems.sort(key=lambda problem: (hash_text(f"{seed}:{problem.answer}"), problem.id))
    for (form, token_count), kind_problems in problems_by_kind.items():
        for index, problem in enumerate(kind_problems):
            if problem.id in requested_ids:
                candidates = chain(
                    _list_block(kind_problems, index),
                    _shuffle_nearest(problems_by_kind, form, token_count, f"{seed}:{problem.id}"),
                )
                answers_by_id[problem.id] = _choose_answers(problem, form, candidates)
    return answers_by_id


def _list_block(kind_problems: list[Problem], index: int) -> list[Problem]:
    """The other problems in the block of the problem with this index.

    Block b of n blocks has the problems b, b + n, b + 2n and so on. The list goes from the next
    problem to the end of the block, and then from its beginning to the problem.
    """
    # a block needs a problem and its other answers; too few problems are one block
    block_count = max(1, len(kind_problems) // (1 + OTHER_ANSWER_COUNT))
    block = kind_problems[index % block_count :: block_count]
    index_in_block = index // block_count
    return block[index_in_block + 1 :] + block[:index_in_block]


def _shuffle_nearest(
    problems_by_kind: Mapping[tuple[str, int], Sequence[Problem]],
    form: str,
    token_count: int,
    seed_text: str,
) -> Iterator[Problem]:
    """Problems of a form, those of the nearest numbers of tokens first.

    Problems of equal length are in random order, and each answer is there once.
    """
    generator = random.Random(seed_text)
    token_counts = [count for kind_form, count in problems_by_kind if kind_form == form]
    for count in sorted(token_counts, key=lambda count: (abs(count - token_count), count)):
        problem_by_answer = {problem.answer: problem for problem in problems_by_kind[form, count]}
        yield from generator.sample([*problem_by_answer.values()], len(problem_by_answer))


def _choose_answers(problem: Problem, form: str, candidates: Iterable[Problem]) -> tuple[str, ...]:
    """The first answers that the grader tells from the accepted answers and from one another.

    The grader gives no verdict on answers that are too long or too complex, so these are never
    chosen.

    Raises:
        DataError: the candidates, which are all other problems of this form, have too few of them.
    """
    chosen_answers: list[str] = []
    normalise = with_decimal_points if problem.decimal else str
    for answer in dict.fromkeys(candidate.answer for candidate in candidates):
        targets = map(normalise, (problem.answer, *problem.alternatives, *chosen_answers))
        if compare_answers(normalise(answer), *targets).verdict == "incorrect":
            chosen_answers.append(answer)
        if len(chosen_answers) == OTHER_ANSWER_COUNT:
            return tuple(chosen_answers)
    raise DataError(
        f"endpoint: problem {problem.id} has the gold answer {problem.answer:.60}, and only "
        f"{len(chosen_answers)} gold answers of other problems have its form "
        f"({form}) and are different answers; {OTHER_ANSWER_COUNT} are needed."
    )
