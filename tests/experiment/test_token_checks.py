"""Token exactness of every condition over real tokenizer kinds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, Placement, named_conditions
from harness.experiment.problems import load_demo
from harness.experiment.prompt import INSTRUCTION, Layout, build_prompt
from harness.experiment.token_checks import PromptBuilder, check_context, measure
from harness.experiment.tokenizer import fit_filler

PROBLEMS = {p.id: p.problem for p in load_demo().problems[:25]} | {
    "digit": "2",
    "symbols": "$$x/y = ?$$",
    "slashes": "Is / / / or // a word?",
    "blank lines": "Let\n\n\\[x=1.\\]\nFind $x$.",
}


def layouts(tokenizer):
    return [Layout.RAW, Layout.CHAT] if tokenizer.chat_template else [Layout.RAW]


@pytest.mark.parametrize("name", ["wo", "mless", "mful", "random"])
def test_named_conditions_are_exact_in_every_tokenizer(any_tokenizer, name):
    condition = named_conditions()[name]
    for layout in layouts(any_tokenizer):
        built = PromptBuilder(PROBLEMS, layout, any_tokenizer).build(condition)
        assert built.violations == ()
        count = condition.tokens
        assert {report.filler_tokens for report in built.reports} == {count}
        assert built.same_problem_ids == len(PROBLEMS)


@pytest.mark.parametrize("placement", list(Placement))
def test_every_placement_keeps_the_problems_token_ids(any_tokenizer, placement):
    condition = Condition(name="x", unit="/", count=20, placement=placement)
    for layout in layouts(any_tokenizer):
        assert PromptBuilder(PROBLEMS, layout, any_tokenizer).build(condition).violations == ()


words = st.text("abcdefghij xyz0123456789$\\{}()+-=.,/\n", min_size=1, max_size=60).filter(
    lambda t: t == t.strip() and t
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=words, count=st.integers(1, 70), unit=st.sampled_from(["/", "he", "\\", "?"]))
def test_any_problem_keeps_its_ids_and_any_count_is_exact(any_tokenizer, problem, count, unit):
    condition = Condition(name="x", unit=unit, count=count)
    built = PromptBuilder({"p": problem}, Layout.RAW, any_tokenizer).build(condition)
    assert built.violations == ()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(3, 55), seed=st.integers(1, 5))
def test_a_sentence_is_cut_to_its_exact_count(any_tokenizer, count, seed):
    condition = Condition(name="random", sentence=seed, count=count)
    assert PromptBuilder({"p": "Find $x$."}, Layout.RAW, any_tokenizer).build(condition).violations == ()


def test_unspaced_units_merge_and_are_refused(any_tokenizer):
    condition = Condition(name="slashes", unit="/", separator="")
    built = PromptBuilder(PROBLEMS, Layout.RAW, any_tokenizer).build(condition)
    assert all(report.filler_tokens < 55 for report in built.reports) and any(r.merged for r in built.reports)
    with pytest.raises(PromptMismatchError, match=r"merges units .* expected 55 filler tokens, got"):
        built.refuse("model")


def test_a_unit_of_several_tokens_is_refused(any_tokenizer):
    condition = Condition(name="long", unit="qxzvkj", count=5)
    built = PromptBuilder(PROBLEMS, Layout.RAW, any_tokenizer).build(condition)
    with pytest.raises(PromptMismatchError, match=r"splits the unit 'qxzvkj': expected 5 filler tokens, got \d+"):
        built.refuse("model")


def test_other_token_ids_of_the_problem_are_refused_if_there_are_as_many(demo_tokenizer):
    condition = Condition(name="close", instruction=INSTRUCTION)
    condition._gap = " "
    problems = {"p": "he is 2"}
    builder = PromptBuilder(problems, Layout.RAW, demo_tokenizer)
    plain, close = (builder.build(one) for one in (named_conditions()["wo"], condition))
    sizes = [len(report.problem_token_ids) for built in (plain, close) for report in built.reports]
    assert sizes[0] == sizes[1] and close.same_problem_ids == 0
    with pytest.raises(PromptMismatchError, match="problem p: its token ids differ from those without a filler"):
        close.refuse("model")


def test_other_ids_of_the_problem_are_a_violation_even_if_they_are_as_many():
    from tests.conftest import build_tokenizer

    tokenizer = build_tokenizer("gpt2", bos=False)
    tokenizer.add_tokens([". \n\nWhat", "/ \n\nWhat"])  # what precedes the problem is then part of its first token
    problem, mless = "What is $2$?", named_conditions()["mless"]
    without, filled = (
        measure(build_prompt(problem, one, filler_text=fit_filler(one, tokenizer)), Layout.RAW, tokenizer)
        for one in (named_conditions()["wo"], mless)
    )
    assert len(without.problem_token_ids) == len(filled.problem_token_ids)
    check = PromptBuilder({"p": problem}, Layout.RAW, tokenizer).build(mless)
    assert check.same_problem_ids == 0
    assert "problem p: its token ids differ from those without a filler." in check.violations


def test_as_published_reports_and_does_not_refuse(any_tokenizer):
    for condition in named_conditions().values():
        PromptBuilder(PROBLEMS, Layout.AS_PUBLISHED, any_tokenizer).build(condition).refuse("model")


def test_the_published_filler_straddles_the_full_stop_where_tokenizers_merge():
    from tests.conftest import build_tokenizer

    builder = PromptBuilder(PROBLEMS, Layout.AS_PUBLISHED, build_tokenizer("qwen2", bos=False))
    built = builder.build(named_conditions()["mless"])
    assert {(report.straddling, report.filler_tokens) for report in built.reports} == {(1, 54)}


def test_a_prompt_longer_than_the_context_is_refused(demo_tokenizer):
    built = PromptBuilder(PROBLEMS, Layout.RAW, demo_tokenizer).build(named_conditions()["mless"])
    with pytest.raises(PromptMismatchError, match=r"with 64 .* is 185, over the context of 128"):
        check_context(built, 128, 64)
    check_context(built, 4096, 2048)
