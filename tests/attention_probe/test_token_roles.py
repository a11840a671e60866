from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import (
    ABSENT,
    ROLES,
    common_masks,
    tokenize_prompts_of_problem,
)
from harness import Run, errors
from harness.constants import SEPARATOR
from harness.experiment.conditions import NAMED_CONDITIONS, Placement, UnitCondition, as_condition
from harness.experiment.problems import Dataset, Problem
from harness.experiment.prompts.prompt import hash_text
from harness.experiment.prompts.tokenizer import encode, token_texts
from harness.runs.prompt_sources import AnsweredProblem, build_source
from harness.runs.run_reader import source_of
from tests.conftest import build_tokenizer, load_vocabulary
from tests.experiment.test_checked_prompts import PROBLEMS, WO, layouts, texts
from tests.make import (
    GREEDY_RUN,
    TOY_PROBLEMS,
    answered_prompt,
    read_source,
    right,
    with_cases,
)
from tests.make import source_of as made_source

PLACEMENTS = [placement for placement in Placement if placement is not Placement.ANSWER]
"""A filler in the model's answer is refused: which of its tokens are the filler's is not known."""

PLACED = {
    placement: UnitCondition(name=f"at_{placement}", unit="/", count=20, placement=placement)
    for placement in PLACEMENTS
}


def make_source(problems, tokenizer, layout, conditions):
    dataset = Dataset(name="demo", source="here", problems=problems)
    return build_source(dataset, conditions, tokenizer, layout)


def make_problem(text, tokenizer, layout="raw", conditions=()):
    problems = (Problem(id="p", problem=text, answer="1"),)
    return make_source(problems, tokenizer, layout, [WO, *conditions]).problems[0]


def tokenize_all(problem, tokenizer):
    """The tokens of a problem under all of its conditions."""
    return tokenize_prompts_of_problem(problem, tokenizer, conditions=[*problem.prompts])


def lost_positions(base, prompt):
    """Positions of the baseline's tokens that the prompt does not have."""
    return set(range(len(base))) - set(prompt.original_pos.tolist())


def unpaired_positions(prompt):
    """Positions of tokens outside filler and separator that the baseline does not have."""
    is_inserted = prompt.has_role("filler") | prompt.has_role("separator")
    return np.flatnonzero((prompt.original_pos == ABSENT) & ~is_inserted).tolist()


def assert_aligned(tokenized):
    """Baseline tokens occur once, in order, with id and role; others are filler or separator."""
    base = tokenized["wo"]
    original_positions = list(range(len(base)))
    assert base.original_pos.tolist() == original_positions
    for prompt in tokenized.values():
        is_original = prompt.original_pos != ABSENT
        assert prompt.original_pos[is_original].tolist() == original_positions
        assert (prompt.token_ids[is_original] == base.token_ids).all()
        assert (prompt.roles[is_original] == base.roles).all()
        assert not unpaired_positions(prompt)
    assert all(mask.sum() == len(base) for mask in common_masks(tokenized).values())


@settings(max_examples=40)
@given(
    text=texts,
    filler=st.fixed_dictionaries(
        {
            "count": st.integers(1, 70),
            "unit": st.sampled_from(["/", "he", "?"]),
            "seed": st.integers(0, 99),
        }
    ),
    layout=st.sampled_from(["raw", "chat"]),
)
def test_any_problem_is_aligned_exactly_in_all_placements(toy_tokenizer, text, filler, layout):
    conditions = [
        UnitCondition(name=placement, placement=placement, **filler) for placement in PLACEMENTS
    ]
    tokenized = tokenize_all(make_problem(text, toy_tokenizer, layout, conditions), toy_tokenizer)
    assert_aligned(tokenized)
    for placement in PLACEMENTS:
        low, high = tokenized[placement].filler_span
        assert tokenized[placement].has_role("filler").sum() == high - low == filler["count"]
        tokens = set(tokenized[placement].tokens[low:high])
        assert tokens <= {filler["unit"], f" {filler['unit']}"}


def test_prompts_are_aligned_exactly_in_every_tokenizer(any_tokenizer):
    first, *_, later = any_tokenizer("a\na", add_special_tokens=False)["input_ids"]
    for layout in layouts(any_tokenizer):
        placed = dict(PLACED)
        if first != later and layout == "raw":
            del placed[Placement.BEFORE_SYSTEM]  # see the test below
        conditions = [*NAMED_CONDITIONS.values(), *placed.values()]
        for problem in make_source(PROBLEMS[20:], any_tokenizer, layout, conditions).problems:
            tokenized = tokenize_all(problem, any_tokenizer)
            assert_aligned(tokenized)
            for name in ("mless", "mful", "random"):
                assert np.diff(tokenized[name].filler_span) == 55


def test_a_word_that_no_longer_begins_the_prompt_has_no_partner():
    """SentencePiece puts a blank before the first word, so a filler there changes its token."""
    tokenizer = load_vocabulary("mistral-7b")
    conditions = [PLACED[Placement.BEFORE_SYSTEM]]
    problem = make_problem("Find $x$.", tokenizer, conditions=conditions)
    base, filled = tokenize_all(problem, tokenizer).values()
    assert lost_positions(base, filled) == {1}  # after BOS
    assert unpaired_positions(filled) == [24]  # after BOS, 20 slashes, a blank and two line breaks
    assert base.tokens[1] == filled.tokens[24] == "You"


def test_roles_and_segments_cover_the_text_in_order(toy_tokenizer):
    problem = make_problem("Find $x$.", toy_tokenizer, "chat", [as_condition("mless")])
    stored, prompt = problem.prompts["mless"], tokenize_all(problem, toy_tokenizer)["mless"]
    assert "".join(prompt.tokens) == stored.prompt
    changes = np.flatnonzero(np.diff(prompt.roles, prepend=-1))
    order = [ROLES[role] for role in prompt.roles[changes]]
    expected = "template instruction separator template filler separator problem template"
    assert order == expected.split()
    for segment in stored.requested_prompt.segments:
        if segment.role in ("instruction", "filler", "problem"):
            positions = np.flatnonzero(prompt.has_role(segment.role))
            assert "".join(prompt.tokens[position] for position in positions) == segment.text
    assert prompt.prompt_sha256 == hash_text(stored.prompt)


@with_cases
def test_the_second_of_two_separators_is_inserted(toy_tokenizer, placement):
    problem = make_problem("Find $x$.", toy_tokenizer, conditions=PLACED.values())
    prompt = tokenize_all(problem, toy_tokenizer)[f"at_{placement}"]
    low, high = prompt.filler_span
    inserted = np.flatnonzero(prompt.original_pos == ABSENT).tolist()
    end = inserted[-1] + 1
    assert inserted == list(range(low, end))
    assert "".join(prompt.tokens[high:end]) == SEPARATOR
    assert (low == 0) == (placement == "before_system")


@with_cases
def test_tokens_that_the_published_layout_merges_have_no_partner(kind):
    tokenizer = build_tokenizer(kind, bos=False)
    conditions = NAMED_CONDITIONS.values()
    source = make_source(TOY_PROBLEMS[:20], tokenizer, "as_published", conditions)
    for problem in source.problems:
        tokenized = tokenize_all(problem, tokenizer)
        base, mless = tokenized["wo"], tokenized["mless"]
        is_original = mless.original_pos != ABSENT
        original_positions = mless.original_pos[is_original]
        assert (mless.token_ids[is_original] == base.token_ids[original_positions]).all()
        assert (np.diff(original_positions) > 0).all()
        fillers = [
            mless.tokens[index].strip() for index in np.flatnonzero(mless.has_role("filler"))
        ]
        # a slash is merged with other text
        assert any("/" in token and token != "/" for token in fillers)
        assert lost_positions(base, mless)
        lost = set().union(*(lost_positions(base, prompt) for prompt in tokenized.values()))
        common = np.delete(base.token_ids, list(lost)).tolist()
        for name, mask in common_masks(tokenized).items():
            assert tokenized[name].token_ids[mask].tolist() == common


def test_a_separators_blank_is_not_the_blank_of_the_next_word(toy_tokenizer):
    """The toy tokenizer makes ` A` two tokens, and a separator begins with the same blank."""
    filler = {"unit": "/", "count": 3, "placement": Placement.RANDOM}
    conditions = [UnitCondition(name=str(seed), seed=seed, **filler) for seed in range(40)]
    text = "Is A or B or C or A or B or C or A or B or C it?"
    problem = make_problem(text, toy_tokenizer, conditions=conditions)
    assert_aligned(tokenize_all(problem, toy_tokenizer))
    prompts = " ".join(prompt.prompt for prompt in problem.prompts.values())
    assert "B \n\n/" in prompts or "or \n\n/" in prompts


def test_a_prompt_of_another_task_is_aligned(toy_tokenizer):
    """The filler's first token includes the blank before it."""
    before, after = ("instruction", "Q: "), [("problem", "Find $x$."), ("separator", "\nA:")]
    filled = [before, ("filler", "/ / /"), ("separator", " "), *after]
    prompts = {}
    for name, segments in (("wo", [before, *after]), ("mless", filled)):
        doc = {"segments": [{"role": role, "text": text} for role, text in segments]}
        text = "".join(text for _, text in segments)
        prompts[name] = answered_prompt(name, text=text, doc=doc)
    problem = AnsweredProblem(id="p", subject="", level=0, prompts=prompts)
    tokenized = tokenize_all(problem, toy_tokenizer)
    assert_aligned(tokenized)
    assert np.diff(tokenized["mless"].filler_span) == 3


@with_cases
def test_a_character_of_several_tokens_is_the_text_of_the_first(toy_tokenizer, text, expected):
    token_ids, offsets = encode(text, toy_tokenizer)
    texts = token_texts(token_ids, offsets, text, toy_tokenizer)
    assert "".join(texts) == text and [*texts] == expected
    assert token_texts([1], [(0, 0)], "", toy_tokenizer) == (
        toy_tokenizer.convert_ids_to_tokens(1),
    )


@with_cases
def test_a_prompt_that_is_not_the_runs_is_refused(toy_tokenizer, changes, options, error, message):
    problem = make_problem("Find $x$.", toy_tokenizer)
    prompt = problem.prompts["wo"]
    if "doc" in changes:
        changes = {"doc": prompt.doc | changes["doc"]}
    changed = replace(problem, prompts={"wo": structs.replace(prompt, **changes)})
    with pytest.raises(getattr(errors, error), match=message):
        tokenize_prompts_of_problem(changed, toy_tokenizer, **{"conditions": ["wo"], **options})


@with_cases
def test_a_filler_in_the_answer_is_refused(toy_tokenizer, layout, make_run, conditions):
    built = make_source(TOY_PROBLEMS[:2], toy_tokenizer, layout, [*map(as_condition, conditions)])
    settings = {"conditions": conditions, "layouts": [layout]}
    source = read_source(make_run(right, limit=2, **settings))
    assert built.answer_filled_conditions == source.answer_filled_conditions == ("dots", "bare")
    message = "does not record where in the answer the filler of dots"
    for names in ((), ("last", "dots")):
        with pytest.raises(errors.ConfigError, match=message):
            ProbeSettings(conditions=names).complete_from(source)
    names = ProbeSettings(conditions=("at-once", "last")).complete_from(source).conditions
    tokenized = tokenize_prompts_of_problem(built.problems[0], toy_tokenizer, conditions=names)
    assert [prompt.has_role("filler").sum() for prompt in tokenized.values()] == [0, 0, 50]


def test_an_engine_gets_no_arguments_of_another_backend():
    arguments = {"pretrained": "people/model", "device": "cuda:1", "revision": "older"}
    run = replace(Run.load(GREEDY_RUN), model_arguments=arguments)
    run.receipt["config"]["model"] = {"backend": "hf", "label": None}
    settings = ProbeSettings(engine={}).complete_from(source_of(run, layout="raw"))
    assert settings.engine == settings.arguments == {"revision": "older"}


@with_cases
def test_arguments_that_may_change_the_model_are_passed_on_or_refused(
    run, named, argument, probe, engine
):
    """`probe` and `engine` have the arguments that remain; None where the run is refused."""
    arguments = {"pretrained": "people/model", "seed": 1, **argument}
    facts = {"model": "people/model", "model_arguments": arguments, "is_vllm": run == "vllm"}
    source = replace(made_source(), **facts)
    for options, expected in ((None, probe), ({}, engine)):
        settings = ProbeSettings(model=named, engine=options)
        if expected is None:
            (name,) = argument
            with pytest.raises(errors.ConfigError, match=rf"model_args\.{name} .* may change"):
                settings.complete_from(source)
        else:
            assert settings.complete_from(source).arguments == expected


def test_a_condition_with_the_name_of_a_position_gap_is_a_condition(toy_tokenizer):
    names = ("mless-gap", "x-gap", "x")
    similar = [UnitCondition(name=name, unit=".", count=9) for name in names]
    conditions = [WO, as_condition("mless"), *similar]
    source = make_source(TOY_PROBLEMS[:1], toy_tokenizer, "raw", conditions)
    recorded = ProbeSettings().complete_from(source).conditions
    assert recorded == ("wo", "mless", *names, "mless+gap")
    tokenized = tokenize_prompts_of_problem(
        source.problems[0], toy_tokenizer, conditions=(*recorded, "x+gap")
    )
    sizes = {name: prompt.has_role("filler").sum() for name, prompt in tokenized.items()}
    expected = {"wo": 0, "mless": 55, "mless+gap": 0, "x+gap": 0}
    assert sizes == expected | dict.fromkeys(names, 9)
    assert tokenized["mless+gap"].positions[-1] - tokenized["wo"].positions[-1] > 55
