"""Token exactness of every condition over real tokenizer kinds."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, Filler, Placement, Sentence, named_conditions
from harness.experiment.problems import load_demo
from harness.experiment.prompt import Layout, build_prompt
from harness.experiment.token_checks import check_condition, check_context
from harness.experiment.tokens import fit_filler, measure

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
        check = check_condition(PROBLEMS, condition, layout, any_tokenizer)
        assert check.violations == ()
        assert check.filler_tokens == (check.count, check.count)
        assert check.same_problem_ids == len(PROBLEMS)


@pytest.mark.parametrize("placement", list(Placement))
def test_every_placement_keeps_the_problems_token_ids(any_tokenizer, placement):
    condition = Condition(name="x", filler=Filler(unit="/", count=20), placement=placement)
    for layout in layouts(any_tokenizer):
        assert check_condition(PROBLEMS, condition, layout, any_tokenizer).violations == ()


words = st.text("abcdefghij xyz0123456789$\\{}()+-=.,/\n", min_size=1, max_size=60).filter(
    lambda t: t == t.strip() and t
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problem=words, count=st.integers(1, 70), unit=st.sampled_from(["/", "he", "\\", "?"]))
def test_any_problem_keeps_its_ids_and_any_count_is_exact(any_tokenizer, problem, count, unit):
    condition = Condition(name="x", filler=Filler(unit=unit, count=count))
    check = check_condition({"p": problem}, condition, Layout.RAW, any_tokenizer)
    assert check.violations == ()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(3, 55), seed=st.integers(0, 1000))
def test_a_sentence_is_cut_to_its_exact_count(any_tokenizer, count, seed):
    condition = Condition(name="random", filler=Sentence(count=count, seed=seed))
    assert check_condition({"p": "Find $x$."}, condition, Layout.RAW, any_tokenizer).violations == ()


def test_unspaced_units_merge_and_are_refused(any_tokenizer):
    condition = Condition(name="slashes", filler=Filler(unit="/", separator=""))
    check = check_condition(PROBLEMS, condition, Layout.RAW, any_tokenizer)
    assert check.merged[1] > 0 and check.filler_tokens[1] < 55
    with pytest.raises(PromptMismatchError, match="merges neighbouring units: expected 55 filler tokens, got"):
        check.refuse("model")


def test_a_unit_of_several_tokens_is_refused(any_tokenizer):
    condition = Condition(name="long", filler=Filler(unit="qxzvkj", count=5))
    check = check_condition(PROBLEMS, condition, Layout.RAW, any_tokenizer)
    with pytest.raises(PromptMismatchError, match=r"splits the unit 'qxzvkj': 5 units became \d+ tokens, expected 5"):
        check.refuse("model")


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
    check = check_condition({"p": problem}, mless, Layout.RAW, tokenizer)
    assert check.same_problem_ids == 0
    assert "problem p: its token ids differ from those without a filler." in check.violations


def test_as_published_reports_and_does_not_refuse(any_tokenizer):
    for condition in named_conditions().values():
        check_condition(PROBLEMS, condition, Layout.AS_PUBLISHED, any_tokenizer).refuse("model")


def test_the_published_filler_straddles_the_full_stop_where_tokenizers_merge():
    from tests.conftest import build_tokenizer

    check = check_condition(
        PROBLEMS, named_conditions()["mless"], Layout.AS_PUBLISHED, build_tokenizer("qwen2", bos=False)
    )
    assert check.straddling == (1, 1) and check.filler_tokens == (54, 54)


def test_a_prompt_longer_than_the_context_is_refused(demo_tokenizer):
    check = check_condition(PROBLEMS, named_conditions()["mless"], Layout.RAW, demo_tokenizer)
    with pytest.raises(PromptMismatchError, match=r"over the context of 128; the prompt would be cut"):
        check_context(check, 128, 64)
    check_context(check, 4096, 2048)
