from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import PromptMismatchError
from harness.experiment.conditions import NAMED_CONDITIONS, as_condition
from harness.experiment.problems import Problem
from harness.experiment.prompts.checked_prompts import build_checked_prompts
from harness.experiment.prompts.prompt import Layout, PromptSettings
from harness.experiment.prompts.tokenizer import ModelTokenizer
from tests.conftest import build_tokenizer
from tests.make import TOY_PROBLEMS, with_cases

WO, MLESS = (NAMED_CONDITIONS[name] for name in ("wo", "mless"))


def make_problems(**texts):
    return [Problem(id=name, problem=text, answer="1") for name, text in texts.items()]


PROBLEMS = [
    *TOY_PROBLEMS[:25],
    *make_problems(
        digit="2",
        symbols="$$x/y = ?$$",
        slashes="Is / / / or // a word?",
        blank_lines="Let\n\n\\[x=1.\\]\nFind $x$.",
    ),
]


def layouts(tokenizer):
    return [Layout.RAW, Layout.CHAT] if tokenizer.chat_template else [Layout.RAW]


def build(tokenizer, *conditions, problems=PROBLEMS, context_length=None, **settings):
    """The prompts of each condition; prompts that break a guarantee are refused."""
    model = ModelTokenizer(name="model", tokenizer=tokenizer, context_length=context_length)
    settings = PromptSettings(**settings)
    return [*build_checked_prompts(problems, conditions, settings, model, max_gen_toks=1)]


def filler_sizes(task):
    return {prompt.filler_tokens for prompt in task.prompts}


texts = st.text("abcdefghij ABCxyz0123456789$\\{}()+-=.,/?\n", min_size=1, max_size=60).filter(
    lambda text: text == text.strip() and text
)
fillers = st.fixed_dictionaries(
    {"unit": st.sampled_from(["/", "he", "\\", "?"]), "count": st.integers(1, 70)}
) | st.fixed_dictionaries({"sentence": st.integers(1, 5), "count": st.integers(3, 55)})


@settings(max_examples=45)
@given(text=texts, filler=fillers)
def test_any_problem_keeps_its_ids_and_any_count_is_exact(any_tokenizer, text, filler):
    problems = make_problems(p=text)
    (task,) = build(any_tokenizer, as_condition({"name": "x", **filler}), problems=problems)
    assert filler_sizes(task) == {filler["count"]}


@with_cases
def test_units_that_are_not_one_token_each_are_refused(any_tokenizer, filler, message):
    with pytest.raises(
        PromptMismatchError, match=f"Condition 'x', layout raw, model: .*({message})"
    ):
        build(any_tokenizer, as_condition({"name": "x", **filler}))


@with_cases
def test_as_many_but_different_token_ids_of_the_problem_are_refused(
    toy_tokenizer, template, message
):
    """Without the filler, the problem's first token does not include a blank."""
    condition = as_condition({"name": "x", "text": "/", "template": template})
    refused = pytest.raises(PromptMismatchError, match=message)
    with refused if message else nullcontext():
        build(toy_tokenizer, condition, problems=make_problems(p="he is 2"))


def test_a_token_that_covers_filler_and_problem_is_refused():
    tokenizer = build_tokenizer("gpt2", bos=False)
    # the text before the problem is then part of its first token
    tokenizer.add_tokens(["/ \n\nWhat"])
    message = "problem p: 1 tokens cover both filler and neighbouring text"
    with pytest.raises(PromptMismatchError, match=message):
        build(tokenizer, MLESS, problems=make_problems(p="What is $2$?"))


def test_the_published_filler_straddles_the_full_stop_in_tokenizers_that_merge():
    tokenizer = build_tokenizer("qwen2", bos=False)
    (task,) = build(tokenizer, MLESS, layout=Layout.AS_PUBLISHED)
    assert {(prompt.straddling_tokens, prompt.filler_tokens) for prompt in task.prompts} == {
        (1, 54)
    }
