"""The forms of answers that nobody has fixed."""

import time

from harness.grading import grade
from harness.grading.answer_forms import find_answer, has_other_form
from tests.make import with_cases


@with_cases
def test_the_last_answer_of_the_first_form_is_read(completion, form, gold):
    found_form, answer = find_answer(completion)
    assert found_form == form
    assert grade(" ".join(answer.split()), gold, line=True).correct, answer
    assert has_other_form(completion) == (form not in ("box", "bare"))


@with_cases
def test_a_text_without_a_form_has_no_answer(text):
    assert find_answer(text) == ("none", "") and not has_other_form(text)


@with_cases
def test_hostile_text_takes_linear_time(text):
    started = time.monotonic()
    find_answer(text * 100_000)
    assert time.monotonic() - started < 2
