import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.constants import SEPARATOR
from harness.display.dry_run import describe_plan
from harness.engines.engine_options import engine_arguments
from harness.errors import ConfigError, DataError
from harness.experiment.conditions import Condition, Placement, as_condition
from harness.experiment.plan import make_plan, make_requests, sample_key
from harness.experiment.prompt import (
    AS_PUBLISHED_INSTRUCTION,
    INSTRUCTION,
    Layout,
    PromptSettings,
    build_prompt,
)
from harness.experiment.run_config import load_config
from harness.experiment.tokenizer import encode
from tests.make import TOY_CONFIG

problems = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(
    str.strip
)
placements = st.sampled_from(Placement)
layouts = st.sampled_from(Layout)
FILLER = {"unit": "/", "count": 7}


def built(problem, placement=Placement.BETWEEN, layout=Layout.RAW, system_turn=True, key=""):
    condition = Condition(name="x", **FILLER, placement=placement)
    settings = PromptSettings(layout=layout, has_system_turn=system_turn)
    return build_prompt(
        problem, condition, filler_text=condition.filler_text(), key=key, settings=settings
    )


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
    settings = PromptSettings(layout=Layout.AS_PUBLISHED)
    prompt = build_prompt("What?", mless, filler_text=mless.filler_text(), settings=settings)
    assert prompt.text == AS_PUBLISHED_INSTRUCTION + " ".join(["/"] * 55) + "What?"
    assert "\\boxed{{}}." in prompt.text
    wo = build_prompt("What?", as_condition("wo"), filler_text="", settings=settings)
    assert wo.text == AS_PUBLISHED_INSTRUCTION + "What?"


@given(problems, placements, layouts, st.booleans(), st.text())
def test_the_problem_and_the_instruction_are_never_changed(
    problem, placement, layout, system_turn, key
):
    prompt = built(problem, placement, layout, system_turn=system_turn, key=key)
    assert joined(prompt, "problem") == problem
    asked = "".join(segment.text for segment in prompt.segments)
    fillers = [
        segment.text for segment in (*prompt.segments, *prompt.answer) if segment.role == "filler"
    ]
    assert fillers == ["/ / / / / / /"] and ("/ / / / / / /" in asked) == (
        placement is not Placement.ANSWER
    )
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


def planned(*changes, limit):
    plan = make_plan(load_config(TOY_CONFIG, changes), limit=limit)
    assert plan.rows and describe_plan(plan)
    return plan, list(make_requests(plan, plan.config.resolve_sampling({})))


def test_the_token_ids_that_were_checked_are_those_that_run(toy_tokenizer):
    plan, requests = planned("layouts=[raw,chat]", limit=3)
    checked = {id(built.token_ids): built for arm in plan.arms.values() for built in arm.prompts}
    assert len(checked) == len(requests) == len(plan.rows)
    for request in requests:
        assert checked[id(request.prompt_token_ids)].text == request.prompt
        assert encode(request.prompt, toy_tokenizer)[0] == request.prompt_token_ids


def test_conditions_that_share_some_prompts_have_a_sample_each():
    places = "conditions=[wo, mless, {name: anywhere, unit: /, placement: random}]"
    _, requests = planned(places, limit=60)
    assert len({sample_key(request, "setting") for request in requests}) == len(requests) == 3 * 60
    shared = [request for request in requests if request.again]
    assert 0 < len(shared) < 60 and {request.task for request in shared} == {"demo_anywhere"}


def test_gold_answers_that_the_grader_cannot_read_are_named_before_a_run(tmp_path):
    golds = [r"\frac12", r"\sum_{k=1}^n a_k", "(" * 50, *[rf"\int_0^{n} f" for n in range(5)]]
    lines = [
        json.dumps({"unique_id": f"p{n}", "problem": "?", "answer": gold})
        for n, gold in enumerate(golds)
    ]
    (tmp_path / "odd.jsonl").write_text("\n".join(lines))
    said = describe_plan(
        make_plan(load_config(TOY_CONFIG, [f"dataset={{path: {tmp_path / 'odd.jsonl'}}}"]))
    )
    said = " ".join(said.split())
    assert (
        "golds 7 of 8 gold answers cannot be compared: only an identical text is correct." in said
    )
    assert (
        r"p1: \sum_{k=1}^n a_k (not read as mathematics)" in said
        and "((( (nested deeper than 40)" in said
    )
    assert "p5" in said and "p6" not in said and "and 2 more" in said
    assert "golds" not in describe_plan(make_plan(load_config(TOY_CONFIG), limit=5))


def test_an_answer_of_two_lines_is_refused_where_one_is_read(tmp_path):
    (tmp_path / "two.jsonl").write_text(json.dumps({"question": "?", "answer": "1\n2"}))
    with pytest.raises(
        DataError, match="problem 0 has an answer of several lines; `answer: line` reads one"
    ):
        planned(f"dataset={{path: {tmp_path / 'two.jsonl'}}}", "answer=line", limit=None)


def test_a_line_without_examples_is_begun_by_the_prompt_as_with_them():
    plan, requests = planned("answer=line", "layouts=[raw, chat]", limit=1)
    asked = plan.dataset.problems[0].problem
    raw = [one.prompt for one in requests if "_chat" not in one.task]
    assert len(raw) == 4 and all(one.endswith(f"Q: {asked}\nA:") for one in raw)
    assert not any("Q: " in one.prompt for one in requests if "_chat" in one.task)


def test_a_switch_of_the_chat_template_is_in_the_prompts_the_identity_and_the_dry_run(
    toy_tokenizer, tmp_path
):
    tokenizer = copy.copy(toy_tokenizer)
    tokenizer.chat_template = (
        toy_tokenizer.chat_template + "{% if enable_thinking is false %}<think></think>{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path)
    own = ("layouts=[chat]", f"model.model_args.tokenizer={tmp_path}")
    changed, requests = planned(
        *own, "model.model_args.chat_template_args={enable_thinking: false}", limit=2
    )
    assert all(one.prompt.endswith("<think></think>") for one in requests)
    assert all(encode(one.prompt, tokenizer)[0] == one.prompt_token_ids for one in requests)
    assert changed.config.identity()["model"]["model_args"]["chat_template_args"] == {
        "enable_thinking": False
    }
    assert "template  enable_thinking: false" in describe_plan(changed).splitlines()
    assert "enable_thinking" not in engine_arguments({"pretrained": "m", "enable_thinking": True})
    served = {"model": "m", "base_url": "http://x", "max_length": 99, "enable_thinking": True}
    unknown = f"model={{backend: local-completions, model_args: {json.dumps(served)}}}"
    with pytest.raises(
        ConfigError, match="sets enable_thinking of the chat template, but the layout is raw"
    ):
        planned("layouts=[]", unknown, limit=1)


def test_without_layouts_a_model_with_a_chat_template_is_asked_through_it(toy_tokenizer, tmp_path):
    assert make_plan(load_config(TOY_CONFIG, ["layouts=[]"]), limit=1).config.layouts == ("chat",)
    tokenizer = copy.deepcopy(toy_tokenizer)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    plain = make_plan(
        load_config(TOY_CONFIG, ["layouts=[]", f"model.model_args.tokenizer={tmp_path}"]), limit=1
    )
    assert plain.config.layouts == ("raw",) and plain.config.identity()["layouts"] == ["raw"]
    assert "layouts   raw; before text outside a chat: no BOS token" in describe_plan(plain)
