"""The forms of answers that nobody has fixed."""

import time

import pytest

from harness.grading import grade
from harness.grading.answer_forms import find_answer, has_other_form


@pytest.mark.parametrize(
    ("completion", "form", "gold"),
    [
        (r"\boxed{4} Final Answer: The final answer is $5$. I hope it is correct.", "box", "4"),
        (
            "So.\nFinal Answer: The final answer is $\\frac{1}{3}$. I hope it is correct. #### 4",
            "Final Answer",
            r"\frac13",
        ),
        ("Final Answer: The final answer is $6$ I hope it is correct.", "Final Answer", "6"),
        ("#### Step 1\nadd\n#### $1,234", "####", "1234"),
        ("The answer is 3, so\n#### -2.50", "####", "-2.5"),
        ("**Answer: 42**", "Answer:", "42"),
        ("**Final Answer:** $x=3$", "Answer:", "x=3"),
        ("one\n\nAnswer:\n\\[ 2^5 \\]\n", "Answer:", "32"),
        ("The answer is 42.", "answer is", "42"),
        ("First the answer is 1. No, THE ANSWER IS: 3.25. I am sure", "answer is", "3.25"),
        ("The correct answer is (C) because of B.", "answer is", "C"),
        ("The answer is $5$ because 5 is odd.", "answer is", "5"),
        ("The answer is\n$$\n4\n$$", "answer is", "4"),
        ("Add both:\n17", "bare", "17"),
        ("</think>The answer is 7.", "answer is", "7"),
    ],
)
def test_the_last_answer_of_the_first_form_is_read(completion, form, gold):
    found_form, answer = find_answer(completion)
    assert found_form == form
    assert grade(" ".join(answer.split()), gold, line=True).correct, answer
    assert has_other_form(completion) == (form not in ("box", "bare"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        "#### Step 3",
        "#### 2. Solve",
        "<think>The answer is 4.",
        "x\nso",
    ],
)
def test_a_text_without_a_form_has_no_answer(text):
    assert find_answer(text) == ("none", "") and not has_other_form(text)


def test_only_text_after_the_models_own_reasoning_states_an_answer():
    markers = (("<plan>", "</plan>"),)
    for text in (r"<plan>\boxed{3}</plan>The answer is 4.", "<plan>so</plan>The answer is 4."):
        assert find_answer(text, markers) == ("answer is", "4")
        assert has_other_form(text, markers)
    for text in ("<plan>The answer is 4.", r"<plan>The answer is 4.</plan>\boxed{4}"):
        assert not has_other_form(text, markers)


@pytest.mark.parametrize("text", ["answer is ", "final answer:  ", "\n", "####\t", "** answer:"])
def test_hostile_text_takes_linear_time(text):
    started = time.monotonic()
    find_answer(text * 100_000)
    assert time.monotonic() - started < 2
