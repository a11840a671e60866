import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import load_config
from harness.display.dry_run import describe_plan
from harness.errors import ConfigError
from harness.experiment.conditions import Placement, UnitCondition, as_condition
from harness.experiment.plan import make_plan, sample_key
from harness.experiment.problems import Problem
from harness.experiment.prompts.prompt import (
    AS_PUBLISHED_INSTRUCTION,
    INSTRUCTION,
    Layout,
    PromptSettings,
    build_prompt,
)
from harness.experiment.prompts.tokenizer import encode
from harness.runs.records import stored_prompts
from harness.yaml_settings import parse_overrides
from tests.experiment.test_data_files import write_lines
from tests.make import TOY_CONFIG, list_requests, one_line, with_cases

FILLER = "/ / / / / / /"
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1).filter(
    str.strip
)
placements, layouts = st.sampled_from(Placement), st.sampled_from(Layout)


def build(text, placement=Placement.BETWEEN, layout=Layout.RAW, has_system_turn=True, key=""):
    condition = UnitCondition(name="x", unit="/", count=7, placement=placement)
    settings = PromptSettings(layout=layout, has_system_turn=has_system_turn)
    problem = Problem(id=key, problem=text, answer="1")
    return build_prompt(problem, condition, filler_text=FILLER, settings=settings)


def texts_of(segments, role):
    return [segment.text for segment in segments if segment.role == role]


@with_cases
def test_as_published_is_the_string_of_the_authors(name, slashes):
    filler = " ".join("/" * slashes)
    settings = PromptSettings(layout=Layout.AS_PUBLISHED)
    problem = Problem(id="p", problem="What?", answer="1")
    prompt = build_prompt(problem, as_condition(name), filler_text=filler, settings=settings)
    assert prompt.text == AS_PUBLISHED_INSTRUCTION + filler + "What?"
    assert "\\boxed{{}}." in prompt.text


@given(texts, placements, layouts, st.booleans(), st.text())
def test_the_problem_and_the_instruction_are_never_changed(
    text, placement, layout, has_system_turn, key
):
    prompt = build(text, placement, layout, has_system_turn, key)
    assert "".join(texts_of(prompt.segments, "problem")) == text
    is_published = layout is Layout.AS_PUBLISHED
    instruction = AS_PUBLISHED_INSTRUCTION if is_published else INSTRUCTION
    assert "".join(texts_of(prompt.segments, "instruction")) == instruction
    segments = prompt.answer_segments if placement is Placement.ANSWER else prompt.segments
    assert texts_of(segments, "filler") == [FILLER]
    assert texts_of((*prompt.segments, *prompt.answer_segments), "filler") == [FILLER]
    joined = "".join(segment.text for segment in prompt.segments)
    assert joined == prompt.text == prompt.system + prompt.user


@given(texts, placements, layouts, st.text())
def test_the_raw_text_does_not_depend_on_the_system_turn(text, placement, layout, key):
    prompt = build(text, placement, layout, has_system_turn=False, key=key)
    assert prompt.text == build(text, placement, layout, key=key).text
    assert prompt.system == ""
    assert prompt.messages == [{"role": "user", "content": prompt.text}]


def test_a_random_position_depends_on_the_problem_and_is_reproducible():
    text = "Find the sum of all whole numbers that divide the number of days in a week"
    first, second = (
        [build(text, Placement.RANDOM, key=str(key)).text for key in range(60)] for _ in range(2)
    )
    assert first == second
    assert len(set(first)) > 15


def plan_of(*overrides, limit=None):
    plan = make_plan(load_config(TOY_CONFIG, parse_overrides(overrides)), limit=limit)
    return plan, list_requests(plan)


def test_the_checked_token_ids_are_those_of_the_requests(toy_tokenizer):
    plan, requests = plan_of("layouts=[raw,chat]", limit=3)
    checked = {
        id(prompt.token_ids): prompt for task in plan.tasks.values() for prompt in task.prompts
    }
    assert len(checked) == len(requests) == len(plan.rows)
    for request in requests:
        assert checked[id(request.prompt_token_ids)].text == request.prompt
        assert encode(request.prompt, toy_tokenizer)[0] == request.prompt_token_ids


def test_a_budget_of_reasoning_is_vllms_own_and_changes_the_keys_of_samples():
    budget = "gen_kwargs={temperature: 0, thinking_token_budget: 5}"
    markers = "model.model_args.reasoning_config={reasoning_end_str: </think>}"
    (request, *_) = plan_of(budget, markers, limit=1)[1]
    (without, *_) = plan_of(markers, limit=1)[1]
    assert without.prompt == request.prompt
    arguments = without.sampling.vllm_arguments()
    assert arguments | {"thinking_token_budget": 5} == request.sampling.vllm_arguments()
    assert "thinking_token_budget" not in arguments
    assert sample_key(without, "setting") != sample_key(request, "setting")


def test_conditions_with_some_equal_prompts_have_separate_samples():
    conditions = "conditions=[wo, mless, {name: anywhere, unit: /, placement: random}]"
    _, requests = plan_of(conditions, limit=60)
    assert len({sample_key(request, "setting") for request in requests}) == len(requests) == 3 * 60
    equal = [request.task for request in requests if request.duplicate_number]
    assert 0 < len(equal) < 60
    assert set(equal) == {"demo_anywhere"}


def test_a_repeat_run_has_other_seeds_and_another_order():
    sampled = ("gen_kwargs={temperature: 0.7}", "repeats=2", "replicates=2")
    _, requests = plan_of("conditions=[wo, mless, mful]", "primary=mless - wo", *sampled, limit=6)
    first, repeat = requests[:36], requests[36:]
    assert [request.replicate for request in requests] == [0] * 36 + [1] * 24
    repeated_tasks = {"demo_wo", "demo_mless"}
    assert {request.task for request in repeat} == repeated_tasks
    assert {request.task for request in first} == repeated_tasks | {"demo_mful"}
    assert {request.seed for request in repeat}.isdisjoint(request.seed for request in first)
    order, repeat_order = (
        [request.problem_id for request in replicate if request.task == "demo_wo"]
        for replicate in (first, repeat)
    )
    assert sorted(order) == sorted(repeat_order) and order != repeat_order


def test_gold_answers_that_the_grader_cannot_read_are_named_before_a_run(tmp_path):
    golds = [
        [r"\frac12", "0.5"],
        r"\sum_{k=1}^n a_k",
        "(" * 50,
        *[rf"\int_0^{n} f" for n in range(5)],
    ]
    lines = [
        {"unique_id": f"p{number}", "problem": f"{number}?", "answer": gold}
        for number, gold in enumerate(golds)
    ]
    plan, _ = plan_of(f"dataset={{path: {write_lines(tmp_path, *lines)}}}")
    text = one_line(describe_plan(plan))
    for message in (
        "golds 7 of 9 gold answers cannot be compared: only an identical text is correct.",
        r"p1: \sum_{k=1}^n a_k (not read as mathematics)",
        "((( (nested deeper than 40)",
        "p5",
        "and 2 more",
    ):
        assert message in text
    assert "p6" not in text
    assert "golds     all 5 can be compared" in describe_plan(plan_of(limit=5)[0])


def test_without_examples_only_a_raw_prompt_begins_the_line_of_the_answer():
    plan, requests = plan_of("answer=line", "layouts=[raw, chat]", limit=1)
    ending = f"Q: {plan.dataset.problems[0].problem}\nA:"
    raw = [request.prompt for request in requests if "_chat" not in request.task]
    chat = [request.prompt for request in requests if "_chat" in request.task]
    assert len(raw) == len(chat) == 4
    assert all(prompt.endswith(ending) for prompt in raw)
    assert not any("Q: " in prompt for prompt in chat)


def save_tokenizer(tokenizer, template, folder):
    """Save a tokenizer with a chat template, and name it in the config's words."""
    changed = copy.deepcopy(tokenizer)
    changed.chat_template = template
    changed.save_pretrained(folder)
    return f"model.model_args.tokenizer={folder}"


def test_a_switch_of_the_chat_template_is_in_the_prompts_the_identity_and_the_dry_run(
    toy_tokenizer, tmp_path
):
    thinking = "{% if enable_thinking is false %}<think></think>{% endif %}"
    tokenizer = save_tokenizer(toy_tokenizer, toy_tokenizer.chat_template + thinking, tmp_path)
    switch = "model.model_args.chat_template_args={enable_thinking: false}"
    plan, requests = plan_of("layouts=[chat]", tokenizer, switch, limit=2)
    _, plain = plan_of("layouts=[chat]", tokenizer, limit=2)
    assert [request.prompt for request in requests] == [
        request.prompt + "<think></think>" for request in plain
    ]
    arguments = plan.config.identity()["model"]["model_args"]
    assert arguments["chat_template_args"] == {"enable_thinking": False}
    assert "template  enable_thinking: false" in describe_plan(plan).splitlines()


@with_cases
def test_stop_strings_that_would_end_the_reasoning_are_refused_or_noted(
    ending, change, outcome, toy_tokenizer, tmp_path
):
    ending += "{% if false %}</think>{% endif %}"
    tokenizer = save_tokenizer(toy_tokenizer, toy_tokenizer.chat_template + ending, tmp_path)
    changes = ["layouts=[chat]", tokenizer, change]
    if outcome == "refused":
        with pytest.raises(ConfigError, match=r"ends in <think>. Set `answer: box`"):
            plan_of(*changes, limit=1)
        return
    plan, _ = plan_of(*changes, limit=1)
    assert ("note      stop strings end reasoning" in describe_plan(plan)) == (outcome == "noted")


@with_cases
def test_one_of_several_chat_templates_is_chosen_by_name_and_told(
    names, name, used, message, toy_tokenizer, tmp_path
):
    text = toy_tokenizer.chat_template
    templates = {each: f"{text}[{each}]" for each in names} or text
    tokenizer = save_tokenizer(toy_tokenizer, templates, tmp_path)
    switch = [f"model.model_args.chat_template={name}"] if name else []
    if message:
        with pytest.raises(ConfigError, match=message):
            plan_of("layouts=[chat]", tokenizer, *switch, limit=1)
        return
    plan, requests = plan_of("layouts=[chat]", tokenizer, *switch, limit=1)
    assert all(request.prompt.endswith(f"[{used}]") for request in requests)
    text = one_line(describe_plan(plan))
    assert f"chat template {used} of {', '.join(names)} (--set model.model_args" in text
    assert ("chat_template" in plan.config.identity()["model"]["model_args"]) == bool(name)


@with_cases
def test_the_config_states_the_markers_of_reasoning_else_the_template(
    template, override, markers, is_reported, toy_tokenizer, tmp_path
):
    template = f"{toy_tokenizer.chat_template}{{% if false %}}{template}{{% endif %}}"
    tokenizer = save_tokenizer(toy_tokenizer, template, tmp_path)
    plan, _ = plan_of("layouts=[chat]", tokenizer, *filter(None, [override]), limit=1)
    expected = ((f"<{markers}>", f"</{markers}>"),) if markers else ()
    assert plan.reasoning_markers == expected
    assert {stored.thinking for stored in stored_prompts(plan)} == {expected}
    assert ("thinking" in plan.config.identity()) == bool(override)
    text = one_line(describe_plan(plan))
    assert text.count("No chat template states the markers") == is_reported
