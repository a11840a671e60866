import pytest

from harness import grade
from harness.execution.sample_grading import grade_job
from harness.experiment.prompts.built_prompts import tokenize_prompt
from harness.experiment.prompts.prompt import Layout, Prompt, PromptSettings, Segment
from harness.experiment.prompts.tokenizer import ModelTokenizer
from harness.grading.answer_extraction import read_answer
from harness.reasoning_markers import (
    add_reasoning,
    family_markers,
    find_hidden_start,
    find_open_reasoning,
    read_markers,
    skip_reasoning,
)
from tests.execution.test_scoring import prompt, sample
from tests.make import read_data, with_cases

FAMILIES = read_data("reasoning")
CUT = r"Perhaps \boxed{4}. But let me"
OPENED = [(case["prompt"], case["continued"]) for case in FAMILIES.values() if "prompt" in case]


def test_every_pair_of_the_table_has_its_completions():
    finished = [case["finished"] for case in FAMILIES.values()]
    for start, end in family_markers():
        assert any(start in text and end in text for text in finished), start


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_only_what_follows_the_reasoning_is_read(family, reason):
    case = FAMILIES[family]
    assert grade(case["finished"], "4", finish_reason=reason).verdict == "correct"
    assert grade(case["finished"], "3", finish_reason=reason).verdict == "incorrect"
    assert grade(case["cut"], "4", finish_reason=reason).verdict == "unfinished"


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize(("text", "continued"), OPENED)
def test_a_prompt_may_open_the_reasoning(text, continued, reason):
    assert read_answer(grade_job(prompt(text), sample(continued, reason))) == "4"
    assert read_answer(grade_job(prompt(text), sample(CUT, reason))).verdict == "unfinished"
    # the prompt of a closed think block opens none
    _, end = find_open_reasoning(text)
    closed = prompt(f"{text}{end}\n")
    assert read_answer(grade_job(closed, sample(CUT, reason))) == "4"


@with_cases
def test_a_word_of_the_text_is_not_a_marker(text, verdict):
    assert grade(text, "4").verdict == verdict
    assert find_open_reasoning("Give your analysis") == ("", "")


def test_the_markers_of_the_model_have_precedence_over_those_of_all_families():
    markers = (("<plan>", "</plan>"),)
    finished = r"<plan>\boxed{3}</plan><think>\boxed{4}"
    assert skip_reasoning(finished, markers) == r"<think>\boxed{4}"
    assert skip_reasoning(r"<plan>\boxed{4}", markers) is None
    assert skip_reasoning(r"<plan>\boxed{4}") == r"<plan>\boxed{4}"
    assert skip_reasoning(r"</plan><think>\boxed{4}") is None


@with_cases
def test_completions_tell_of_the_start_in_prompts_that_are_unknown(completions, start):
    assert find_hidden_start(completions) == start


@with_cases
def test_a_chat_template_states_the_markers(template, markers):
    assert [*map(list, read_markers(template))] == markers


def test_reasoning_of_a_server_stands_before_its_text():
    assert add_reasoning("4", "", ()) == "4"
    assert add_reasoning("4", "2 + 2", ()) == "<think>2 + 2</think>4"
    assert add_reasoning("4", "2 + 2", (("[T]", "[/T]"),)) == "[T]2 + 2[/T]4"
    # without a text the reasoning did not end
    assert grade(add_reasoning("", r"\boxed{4}", ()), "4").verdict == "unfinished"


@with_cases
def test_an_answer_that_the_prompt_begins_stands_after_the_reasoning(
    toy_tokenizer, opening, closing
):
    answered = Prompt(
        segments=(Segment("problem", f"2 + 2? {opening}"),),
        system_size=0,
        answer_segments=(Segment("separator", "It is"),),
    )
    model = ModelTokenizer(name="toy", tokenizer=toy_tokenizer)
    built = tokenize_prompt(answered, PromptSettings(layout=Layout.RAW), model)
    assert built.answer_prefix.split() == [*([closing] if closing else []), "It", "is"]
    assert (
        read_answer(
            grade_job(prompt(built.text, answer_prefix=built.answer_prefix), sample(r" \boxed{4}"))
        )
        == "4"
    )
