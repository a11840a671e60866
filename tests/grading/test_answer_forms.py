"""The forms of answers that nobody has fixed."""

import time

from harness import grade
from harness.grading.answer_forms import find_answer
from tests.make import one_line, with_cases


@with_cases
def test_the_last_answer_of_the_first_form_is_read(completion, form, gold):
    found_form, answer = find_answer(completion)
    assert found_form == form
    assert grade(one_line(answer), gold, line=True).correct, answer


@with_cases
def test_a_text_without_a_form_has_no_answer(text):
    assert find_answer(text) == ("none", "")


def test_only_text_after_the_models_own_reasoning_states_an_answer():
    for text in (r"<think>\boxed{3}</think>The answer is 4.", "<think>so</think>The answer is 4."):
        assert find_answer(text) == ("answer is", "4")
    assert find_answer("<think>The answer is 4.") == ("none", "")
    assert find_answer(r"<think>The answer is 4.</think>\boxed{4}") == ("box", "4")


@with_cases
def test_hostile_text_takes_linear_time(text):
    started = time.monotonic()
    find_answer(text * 100_000)
    assert time.monotonic() - started < 2
