"""The forms of answers that nobody has fixed."""

import time

from harness import grade
from harness.grading.answer_forms import find_answer, has_other_form
from tests.make import one_line, with_cases


@with_cases
def test_the_last_answer_of_the_first_form_is_read(completion, form, gold):
    found_form, answer = find_answer(completion)
    assert found_form == form
    assert grade(one_line(answer), gold, line=True).correct, answer
    assert has_other_form(completion) == (form not in ("box", "bare"))


@with_cases
def test_a_text_without_a_form_has_no_answer(text):
    assert find_answer(text) == ("none", "") and not has_other_form(text)


def test_only_text_after_the_models_own_reasoning_states_an_answer():
    markers = (("<plan>", "</plan>"),)
    for text in (r"<plan>\boxed{3}</plan>The answer is 4.", "<plan>so</plan>The answer is 4."):
        assert find_answer(text, markers) == ("answer is", "4")
        assert has_other_form(text, markers)
    for text in ("<plan>The answer is 4.", r"<plan>The answer is 4.</plan>\boxed{4}"):
        assert not has_other_form(text, markers)


@with_cases
def test_hostile_text_takes_linear_time(text):
    started = time.monotonic()
    find_answer(text * 100_000)
    assert time.monotonic() - started < 2
