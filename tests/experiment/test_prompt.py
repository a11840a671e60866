import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.constants import SEPARATOR
from harness.experiment.conditions import Condition, Placement, as_condition
from harness.experiment.prompt import (
    AS_PUBLISHED_INSTRUCTION,
    INSTRUCTION,
    Layout,
    build_prompt,
)

problems = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(str.strip)
placements = st.sampled_from(Placement)
layouts = st.sampled_from(Layout)
FILLER = {"unit": "/", "count": 7}


def built(problem, placement=Placement.BETWEEN, layout=Layout.RAW, **more):
    condition = Condition(name="x", **FILLER, placement=placement)
    return build_prompt(problem, condition, filler_text=condition.filler_text(), layout=layout, **more)


def joined(prompt, role):
    return "".join(segment.text for segment in prompt.segments if segment.role == role)


def test_the_study_layout_without_a_template():
    prompt = built("What is $1+1$?")
    assert prompt.text == f"{INSTRUCTION}{SEPARATOR}/ / / / / / /{SEPARATOR}What is $1+1$?"
    assert [segment.role for segment in prompt.segments] == [
        "instruction",
        "separator",
        "filler",
        "separator",
        "problem",
    ]


def test_the_filler_stands_between_the_turns_of_a_chat():
    system, user = built("What?", layout=Layout.CHAT).messages
    assert system["content"].strip() == INSTRUCTION
    assert user["content"] == f"/ / / / / / /{SEPARATOR}What?"


def test_as_published_is_the_authors_string():
    mless = as_condition("mless")
    prompt = build_prompt("What?", mless, filler_text=mless.filler_text(), layout=Layout.AS_PUBLISHED)
    assert prompt.text == AS_PUBLISHED_INSTRUCTION + " ".join(["/"] * 55) + "What?"
    assert "\\boxed{{}}." in prompt.text
    wo = build_prompt("What?", as_condition("wo"), filler_text="", layout=Layout.AS_PUBLISHED)
    assert wo.text == AS_PUBLISHED_INSTRUCTION + "What?"


@pytest.mark.parametrize(
    ("placement", "roles"),
    [
        (Placement.BEFORE_SYSTEM, ["filler", "instruction", "problem"]),
        (Placement.BETWEEN, ["instruction", "filler", "problem"]),
        (Placement.END, ["instruction", "problem", "filler"]),
    ],
)
def test_placements_order_the_segments(placement, roles):
    segments = built("What is it?", placement).segments
    assert [segment.role for segment in segments if segment.role != "separator"] == roles


@given(problems, placements, layouts, st.booleans(), st.text())
def test_the_problem_and_the_instruction_are_never_changed(problem, placement, layout, system_turn, key):
    prompt = built(problem, placement, layout, system_turn=system_turn, key=key)
    assert joined(prompt, "problem") == problem
    asked = "".join(segment.text for segment in prompt.segments)
    fillers = [segment.text for segment in (*prompt.segments, *prompt.answer) if segment.role == "filler"]
    assert fillers == ["/ / / / / / /"] and ("/ / / / / / /" in asked) == (placement is not Placement.ANSWER)
    published = layout is Layout.AS_PUBLISHED
    assert joined(prompt, "instruction") == (AS_PUBLISHED_INSTRUCTION if published else INSTRUCTION)
    assert asked == prompt.text == prompt.system + prompt.user


@given(problems, placements, layouts, st.text())
def test_the_raw_text_does_not_depend_on_where_the_turns_are_split(problem, placement, layout, key):
    with_turn = built(problem, placement, layout, key=key)
    without = built(problem, placement, layout, key=key, system_turn=False)
    assert with_turn.text == without.text
    assert without.system == "" and without.messages == [{"role": "user", "content": without.text}]


def test_a_random_place_is_seeded_by_problem_and_varies():
    words = "Find the sum of all whole numbers that divide the number of days in a week"
    texts = [built(words, Placement.RANDOM, key=str(i)).text for i in range(60)]
    assert texts == [built(words, Placement.RANDOM, key=str(i)).text for i in range(60)]
    assert len(set(texts)) > 15
