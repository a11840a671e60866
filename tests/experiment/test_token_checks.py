from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import PromptMismatchError
from harness.experiment.conditions import Condition, named_conditions
from harness.experiment.problems import Problem
from harness.experiment.prompt import INSTRUCTION, Layout, PromptSettings, build_prompt
from harness.experiment.token_checks import build_checked_prompts
from harness.experiment.tokenizer import ModelTokenizer
from tests.make import TOY_PROBLEMS

OWN = {
    "digit": "2",
    "symbols": "$$x/y = ?$$",
    "slashes": "Is / / / or // a word?",
    "blank lines": "Let\n\n\\[x=1.\\]\nFind $x$.",
}


def problems(**texts):
    return [Problem(id=name, problem=text, answer="1") for name, text in texts.items()]


PROBLEMS = [*TOY_PROBLEMS[:25], *problems(**OWN)]


def layouts(tokenizer):
    return [Layout.RAW, Layout.CHAT] if tokenizer.chat_template else [Layout.RAW]


def build(
    tokenizer, *conditions, layout=Layout.RAW, of=PROBLEMS, length=None, draw=None, **options
):
    """The prompts of each condition, refused if they break a guarantee."""
    model = ModelTokenizer(name="model", tokenizer=tokenizer, context_length=length)
    settings = PromptSettings(layout=layout, draw=draw)
    return build_checked_prompts(of, conditions, settings, model, **options)


def sizes(built):
    return {prompt.filler_tokens for prompt in built.prompts}


def test_named_conditions_are_exact_in_every_tokenizer(any_tokenizer):
    named = named_conditions().values()
    for layout in layouts(any_tokenizer):
        plain, *filled = build(any_tokenizer, *named, layout=layout)
        assert sizes(plain) == {0} and [sizes(built) for built in filled] == [{55}] * 3
        for built in filled:
            ids = zip(built.prompts, plain.prompts, strict=True)
            assert all(one.problem_token_ids == without.problem_token_ids for one, without in ids)


words = st.text("abcdefghij xyz0123456789$\\{}()+-=.,/\n", min_size=1, max_size=60).filter(
    lambda t: t == t.strip() and t
)


fillers = st.one_of(
    st.fixed_dictionaries(
        {"unit": st.sampled_from(["/", "he", "\\", "?"]), "count": st.integers(1, 70)}
    ),
    st.fixed_dictionaries({"sentence": st.integers(1, 5), "count": st.integers(3, 55)}),
)


@settings(
    max_examples=45, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(problem=words, filler=fillers)
def test_any_problem_keeps_its_ids_and_any_count_is_exact(any_tokenizer, problem, filler):
    (built,) = build(any_tokenizer, Condition(name="x", **filler), of=problems(p=problem))
    assert sizes(built) == {filler["count"]}


@pytest.mark.parametrize(
    ("filler", "message"),
    [
        (
            {"unit": "/", "separator": ""},
            r"merges the unit '/': expected 55 filler tokens, got|cover both filler and",
        ),
        (
            {"unit": "qxzvkj", "count": 5},
            r"splits the unit 'qxzvkj': expected 5 filler tokens, got \d+",
        ),
    ],
)
def test_units_that_are_not_one_token_each_are_refused(any_tokenizer, filler, message):
    with pytest.raises(
        PromptMismatchError, match=f"Condition 'x', layout raw, model: .*({message})"
    ):
        build(any_tokenizer, Condition(name="x", **filler))


def test_other_token_ids_of_the_problem_are_refused_if_there_are_as_many(
    toy_tokenizer, monkeypatch
):
    def without_break(problem, condition, **options):
        """The problem follows a blank, which its first token takes in."""
        prompt = build_prompt(problem, condition, **options)
        instruction, separator, *rest = prompt.segments
        close = (instruction, replace(separator, text=" "), *rest)
        return replace(prompt, segments=close) if condition.name == "close" else prompt

    monkeypatch.setattr("harness.experiment.token_checks.build_prompt", without_break)
    close = Condition(name="close", instruction=INSTRUCTION)
    with pytest.raises(
        PromptMismatchError, match="problem p: its token ids differ from those without a filler"
    ):
        build(toy_tokenizer, close, of=problems(p="he is 2"))


def test_a_token_that_covers_filler_and_problem_is_seen():
    from tests.conftest import build_tokenizer

    tokenizer = build_tokenizer("gpt2", bos=False)
    tokenizer.add_tokens(
        ["/ \n\nWhat"]
    )  # what precedes the problem is then part of its first token
    with pytest.raises(
        PromptMismatchError, match="problem p: 1 tokens cover both filler and neighbouring text"
    ):
        build(tokenizer, named_conditions()["mless"], of=problems(p="What is $2$?"))


def test_the_published_filler_straddles_the_full_stop_where_tokenizers_merge():
    from tests.conftest import build_tokenizer

    tokenizer = build_tokenizer("qwen2", bos=False)
    (built,) = build(tokenizer, named_conditions()["mless"], layout=Layout.AS_PUBLISHED)
    assert {(prompt.straddling, prompt.filler_tokens) for prompt in built.prompts} == {(1, 54)}


def test_a_prompt_longer_than_the_context_is_refused(toy_tokenizer):
    mless = named_conditions()["mless"]
    with pytest.raises(
        PromptMismatchError, match=r"max_gen_toks 64 exceed the context length of 128"
    ):
        build(toy_tokenizer, mless, length=128, max_gen_toks=64)
    assert build(toy_tokenizer, mless, length=4096, max_gen_toks=2048)
