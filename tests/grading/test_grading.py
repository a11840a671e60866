import time

from hypothesis import given
from hypothesis import strategies as st

from harness import grade
from harness.boxes import read_boxes
from harness.grading import Grade
from harness.grading.answer_forms import find_answer
from tests.make import one_line, with_cases


@with_cases
def test_all_closed_boxes_are_read_in_order(text, boxes):
    assert read_boxes(text) == boxes


@with_cases
def test_an_empty_box_is_not_a_box(empty):
    assert read_boxes(empty) == []
    repeated = f"Put it within {empty}. So \\boxed{{5}}, or \\boxed{{7}}. Put it within {empty}."
    assert read_boxes(repeated) == ["5", "7"]
    assert grade(repeated, "7").verdict == "correct"
    assert grade(empty, "7").verdict == "no_box"
    assert grade(empty, "7", finish_reason="length") == Grade(verdict="truncated", answer=None)
    assert grade(repeated, "7", finish_reason="length").verdict == "correct"


@given(st.text("\\boxed{} 1", max_size=200))
def test_extraction_never_fails(text):
    for box in read_boxes(text):
        assert box in text.replace("\\\\", "\\") or box in text


@with_cases
def test_extraction_takes_linear_time(piece, end):
    def measure(count):
        started = time.process_time()  # without the time of other processes
        read_boxes(piece * count + end * count)
        return time.process_time() - started

    small, large = (min(measure(count) for _ in range(3)) for count in (2_000, 20_000))
    # ten times the text; quadratic time would be a hundred times as long
    assert large < 40 * max(small, 1e-4)


@with_cases
def test_verdicts(completion, target, verdict):
    assert grade(completion, target).verdict == verdict


def test_a_refusal_is_explained_and_a_long_answer_cut():
    graded = grade(r"\boxed{" + "1" * 3000 + "}", "3")
    assert (len(graded.answer), graded.reason) == (2000, "longer than 2000 characters")
    assert grade(r"\boxed{4}", "3").reason is None
    assert grade("3", "3").reason is None


@with_cases
def test_the_last_answer_of_the_first_form_is_read(completion, form, gold):
    found_form, answer = find_answer(completion)
    assert found_form == form
    assert grade(one_line(answer), gold, line=True).correct, answer


@with_cases
def test_a_text_may_have_no_form_and_only_its_end_after_reasoning_states_an_answer(
    text, form, answer
):
    assert find_answer(text) == (form, answer)


@with_cases
def test_hostile_text_takes_linear_time(text):
    started = time.monotonic()
    find_answer(text * 100_000)
    assert time.monotonic() - started < 2
