import time

from hypothesis import given
from hypothesis import strategies as st

from harness.boxes import read_boxes
from harness.grading import Grade, grade
from tests.make import with_cases


def first_box(text):
    return next(iter(read_boxes(text)), None)


def last_box(text):
    return next(reversed(read_boxes(text)), None)


def boxes_after_first(text):
    return len(read_boxes(text)[1:])


@with_cases
def test_the_last_closed_box(text, box):
    assert last_box(text) == box


@with_cases
def test_an_empty_box_is_no_box(empty):
    assert last_box(empty) is first_box(empty) is None
    repeated = f"Put it within {empty}. So \\boxed{{5}}, or \\boxed{{7}}. Put it within {empty}."
    assert (first_box(repeated), last_box(repeated), boxes_after_first(repeated)) == ("5", "7", 1)
    assert grade(repeated, "7").verdict == "correct"
    assert grade(empty, "7").verdict == "no_box"
    assert grade(empty, "7", finish_reason="length") == Grade(verdict="truncated", answer=None)
    assert grade(repeated, "7", finish_reason="length").verdict == "correct"


@with_cases
def test_a_box_with_any_content_is_not_empty(content):
    assert last_box(rf"\boxed{{5}} \boxed{{{content}}}") == content


@with_cases
def test_the_first_box_and_the_number_of_later_boxes(text, first, further):
    assert first_box(text) == first
    assert boxes_after_first(text) == further


@given(st.text("\\boxed{} 1", max_size=200))
def test_extraction_never_fails(text):
    first, last = first_box(text), last_box(text)
    assert last is None or last in text.replace("\\\\", "\\") or last in text
    assert (first is None) == (last is None)
    assert boxes_after_first(text) > 0 or first == last


@with_cases
def test_extraction_takes_linear_time(piece, end):
    def measure(count):
        started = time.process_time()  # without the time of other processes
        last_box(piece * count + end * count)
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
