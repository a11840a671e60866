from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import ABSENT, FILLER, ROLES, common_tokens, tokenize
from harness.constants import SEPARATOR as GAP
from harness.errors import ConfigError, PromptMismatchError, RunError
from harness.experiment.conditions import Condition, Placement, as_condition, named_conditions
from harness.experiment.problems import Dataset
from harness.experiment.problems import Problem as Asked
from harness.experiment.prompt import hash_text
from harness.experiment.tokenizer import encode
from harness.runs.prompt_sources import Problem, build_source
from harness.runs.read_runs import Run, source_of
from tests.conftest import build_tokenizer, load_vocabulary
from tests.make import GREEDY_RUN, TOY_PROBLEMS, answered_prompt, read_source

PLACEMENTS = [placement for placement in Placement if placement is not Placement.ANSWER]
"""A filler in the model's own answer is refused: which of its tokens are the filler's is not recorded."""

WO = Condition(name="wo")
PLACED = {
    f"at_{placement}": Condition(name=f"at_{placement}", unit="/", count=20, placement=placement)
    for placement in PLACEMENTS
}


def problem_of(text, tokenizer, layout, conditions):
    dataset = Dataset(
        name="made", source="here", problems=(Asked(id="p", problem=text, answer="1"),)
    )
    return build_source(dataset, [WO, *conditions], tokenizer, layout).problems[0]


def lost(base, prompt):
    """Positions of the baseline's tokens that the prompt does not have."""
    return set(range(len(base))) - set(prompt.original_pos.tolist())


def unpaired(prompt):
    """Positions of tokens outside the filler and its separator that the baseline does not have."""
    absent = np.flatnonzero(prompt.original_pos == ABSENT)
    return {int(at) for at in absent if prompt.roles[at] not in (FILLER, ROLES.index("separator"))}


def assert_exact(tokenized):
    """Every baseline token is there once, in order, with its id and role; all else is filler and separator."""
    base = tokenized["wo"]
    assert base.original_pos.tolist() == list(range(len(base)))
    for prompt in tokenized.values():
        kept = prompt.original_pos != ABSENT
        assert prompt.original_pos[kept].tolist() == list(range(len(base)))
        assert (prompt.token_ids[kept] == base.token_ids).all() and (
            prompt.roles[kept] == base.roles
        ).all()
        assert set(prompt.roles[~kept].tolist()) <= {FILLER, ROLES.index("separator")}
        assert prompt.has_role("filler").sum() == (
            0 if prompt.filler_span is None else np.diff(prompt.filler_span)[0]
        )
    assert all(mask.sum() == len(base) for mask in common_tokens(tokenized).values())


texts = st.text("abcdefghij ABCxyz0123456789$\\{}()+-=.,/?\n", min_size=1, max_size=60).filter(
    lambda t: t == t.strip() and t
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=texts,
    count=st.integers(1, 70),
    unit=st.sampled_from(["/", "he", "?"]),
    layout=st.sampled_from(["raw", "chat"]),
    seed=st.integers(0, 99),
)
def test_any_problem_at_any_placement_is_aligned_exactly(
    toy_tokenizer, text, count, unit, layout, seed
):
    conditions = [
        Condition(name=str(placement), unit=unit, count=count, placement=placement, seed=seed)
        for placement in PLACEMENTS
    ]
    tokenized = tokenize(
        problem_of(text, toy_tokenizer, layout, conditions),
        toy_tokenizer,
        conditions=["wo", *map(str, PLACEMENTS)],
    )
    assert_exact(tokenized)
    for name in map(str, PLACEMENTS):
        low, high = tokenized[name].filler_span
        assert high - low == count and not set(tokenized[name].tokens[low:high]) - {
            unit,
            f" {unit}",
        }


@pytest.mark.parametrize("layout", ["raw", "chat"])
def test_every_tokenizer_kind_is_aligned_exactly(any_tokenizer, layout):
    if layout == "chat" and not any_tokenizer.chat_template:
        pytest.skip("this tokenizer kind has no chat template")
    dataset = Dataset(name="demo", source="here", problems=TOY_PROBLEMS[:8])
    first, *_, later = any_tokenizer("a\na", add_special_tokens=False)["input_ids"]
    opening = (
        Placement.BEFORE_SYSTEM if first != later and layout == "raw" else None
    )  # see the test below
    conditions = [
        *named_conditions().values(),
        *(c for c in PLACED.values() if c.placement != opening),
    ]
    for problem in build_source(dataset, conditions, any_tokenizer, layout).problems:
        tokenized = tokenize(
            problem, any_tokenizer, conditions=[condition.name for condition in conditions]
        )
        assert_exact(tokenized)
        assert {
            np.diff(tokenized[name].filler_span)[0] for name in ("mless", "mful", "random")
        } == {55}


def test_a_word_that_no_longer_begins_the_prompt_has_no_partner():
    """SentencePiece writes the first word of a text with a blank before it, so a filler there changes its token."""
    tokenizer, name = load_vocabulary("mistral-7b"), "at_before_system"
    problem = problem_of("Find $x$.", tokenizer, "raw", [PLACED[name]])
    tokenized = tokenize(problem, tokenizer, conditions=["wo", name])
    base, filled = tokenized.values()
    assert lost(base, filled) == {1} and unpaired(filled) == {
        24
    }  # after BOS; after 20 slashes, 2 newlines
    assert base.tokens[1] == filled.tokens[24] == "You"


def test_roles_and_pieces_cover_the_text_in_order(toy_tokenizer):
    problem = problem_of("Find $x$.", toy_tokenizer, "chat", [as_condition("mless")])
    prompt = tokenize(problem, toy_tokenizer, conditions=["mless"])["mless"]
    assert "".join(prompt.tokens) == problem.prompts["mless"].prompt
    order = [
        ROLES[role]
        for index, role in enumerate(prompt.roles)
        if index == 0 or role != prompt.roles[index - 1]
    ]
    assert (
        order == "template instruction separator template filler separator problem template".split()
    )
    for segment in problem.prompts["mless"].requested.segments:
        if segment.role in ("instruction", "filler", "problem"):
            pieces = [
                piece
                for piece, has in zip(prompt.tokens, prompt.has_role(segment.role), strict=True)
                if has
            ]
            assert "".join(pieces) == segment.text
    assert prompt.sha256 == hash_text(problem.prompts["mless"].prompt)
    assert (prompt.token_ids.dtype, prompt.roles.dtype, prompt.original_pos.dtype) == (
        np.int32,
        np.int8,
        np.int32,
    )


def test_of_the_two_separators_the_second_is_inserted(toy_tokenizer):
    problem = problem_of("Find $x$.", toy_tokenizer, "raw", PLACED.values())
    for name, prompt in tokenize(
        problem, toy_tokenizer, conditions=["at_between", "at_before_system"]
    ).items():
        low, high = prompt.filler_span
        inserted = np.flatnonzero(prompt.original_pos == ABSENT)
        assert inserted.tolist() == list(range(low, inserted[-1] + 1)) and inserted[-1] >= high
        assert "".join(prompt.tokens[high : inserted[-1] + 1]) == GAP
        assert (low == 0) == (name == "at_before_system")


@pytest.mark.parametrize("kind", ["qwen2", "llama3", "gpt2"])
def test_what_the_published_layout_merges_has_no_partner(kind):
    tokenizer = build_tokenizer(kind, bos=False)
    dataset = Dataset(name="demo", source="here", problems=TOY_PROBLEMS[:20])
    source = build_source(dataset, list(named_conditions().values()), tokenizer, "as_published")
    merged = 0
    for problem in source.problems:
        tokenized = tokenize(problem, tokenizer, conditions=source.conditions)
        base, mless = tokenized["wo"], tokenized["mless"]
        kept = mless.original_pos != ABSENT
        assert (mless.token_ids[kept] == base.token_ids[mless.original_pos[kept]]).all()
        assert (np.diff(mless.original_pos[kept]) > 0).all()
        fillers = [
            mless.tokens[index].strip() for index in np.flatnonzero(mless.has_role("filler"))
        ]
        glued = [token for token in fillers if token != "/" and "/" in token]
        merged += bool(glued)
        assert bool(lost(base, mless)) == bool(glued or unpaired(mless))
        masks = common_tokens(tokenized)
        shared = [prompt.token_ids[masks[name]].tolist() for name, prompt in tokenized.items()]
        assert all(ids == shared[0] for ids in shared)
        assert len(shared[0]) == len(base) - len(
            set.union(*(lost(base, prompt) for prompt in tokenized.values()))
        )
    assert merged == len(source.problems)


def test_a_separators_blank_is_not_the_blank_of_the_next_word(toy_tokenizer):
    """The bundled tokenizer makes ` A` two tokens, and a separator begins with the same blank."""
    slashes = {"unit": "/", "count": 3, "placement": Placement.RANDOM}
    conditions = [Condition(name=str(seed), seed=seed, **slashes) for seed in range(40)]
    problem = problem_of(
        "Is A or B or C or A or B or C or A or B or C it?", toy_tokenizer, "raw", conditions
    )
    assert_exact(
        tokenize(
            problem, toy_tokenizer, conditions=["wo", *(condition.name for condition in conditions)]
        )
    )
    assert any(
        "B \n\n/" in problem.prompts[str(seed)].prompt
        or "or \n\n/" in problem.prompts[str(seed)].prompt
        for seed in range(40)
    )


def test_a_prompt_without_segments_of_its_own_is_aligned_all_the_same(toy_tokenizer):
    """As logs of other tasks give it: the filler's first token takes the blank before it along."""
    plain, filled = "Q: Find $x$.\nA:", "Q: / / / Find $x$.\nA:"
    parts = {
        "wo": [("instruction", "Q: "), ("problem", "Find $x$."), ("separator", "\nA:")],
    }
    parts["mless"] = [parts["wo"][0], ("filler", "/ / /"), ("separator", " "), *parts["wo"][1:]]
    prompts = {
        name: answered_prompt(
            name,
            text=text,
            doc={"segments": [{"role": role, "text": part} for role, part in parts[name]]},
        )
        for name, text in (("wo", plain), ("mless", filled))
    }
    problem = Problem(id="p", subject="", level=0, prompts=prompts)
    tokenized = tokenize(problem, toy_tokenizer, conditions=["wo", "mless"])
    assert_exact(tokenized)
    assert np.diff(tokenized["mless"].filler_span)[0] == 3


def test_the_completion_follows_as_the_model_wrote_it(toy_tokenizer):
    """The tokens counted when they were generated, less the end of text, are those that are read back."""
    source = read_source(GREEDY_RUN)
    same = 0
    for problem in source.problems[:40]:
        tokenized = tokenize(problem, toy_tokenizer, conditions=source.conditions, completion=True)
        without = tokenize(problem, toy_tokenizer, conditions=source.conditions)
        for name, prompt in tokenized.items():
            size = len(without[name])
            assert (prompt.token_ids[:size] == without[name].token_ids).all()
            assert (
                prompt.has_role("completion")[size:].all()
                and (prompt.original_pos[size:] == ABSENT).all()
            )
            assert "".join(prompt.tokens[size:]) == problem.prompts[name].completions[0]
            assert (
                toy_tokenizer.decode(prompt.token_ids[size:].tolist())
                == problem.prompts[name].completions[0]
            )
            assert prompt.filler_span == without[name].filler_span
            same += (
                toy_tokenizer.encode(problem.prompts[name].completions[0])
                == prompt.token_ids[size:].tolist()
            )
        assert all(mask.sum() == len(without["wo"]) for mask in common_tokens(tokenized).values())
    assert same > 0


def test_a_completion_that_would_be_glued_to_the_prompt_is_read_by_itself():
    tokenizer = build_tokenizer("qwen2", bos=True)
    problem = problem_of("Find $x$.", tokenizer, "raw", [])
    for completion in ("\nWe have $x = 2$.", " So it is"):
        samples = answered_prompt("wo", ("correct",), completions=(completion,)).graded_samples
        answered = structs.replace(problem.prompts["wo"], graded_samples=samples)
        prompt = tokenize(
            replace(problem, prompts={"wo": answered}),
            tokenizer,
            conditions=["wo"],
            completion=True,
        )["wo"]
        alone, _ = encode(problem.prompts["wo"].prompt, tokenizer)
        assert tuple(prompt.token_ids[: len(alone)].tolist()) == alone
        assert "".join(prompt.tokens[len(alone) :]) == completion
        assert tokenizer.bos_token_id not in prompt.token_ids[len(alone) :]
    glued = encode(problem.prompts["wo"].prompt + "\nWe", tokenizer)[0]
    assert glued[: len(alone)] != alone, "or this test shows nothing"


@pytest.mark.parametrize(
    ("changes", "options", "error", "message"),
    [
        ({}, {"completion": True}, RunError, "Problem p, condition 'wo': no completion"),
        ({}, {"conditions": ["mless"]}, RunError, "Problem p has no prompt under 'mless'"),
        (
            {"prompt_token_sha256": "0" * 64},
            {},
            PromptMismatchError,
            "Problem p, condition 'wo': this tokenizer",
        ),
        (
            {"doc": {"segments": [{"role": "problem", "text": "Find $y$."}]}},
            {},
            PromptMismatchError,
            r"'Find \$y\$\.'",
        ),
    ],
)
def test_a_prompt_that_is_not_the_runs_is_refused(toy_tokenizer, changes, options, error, message):
    problem = problem_of("Find $x$.", toy_tokenizer, "raw", [])
    prompt = problem.prompts["wo"]
    changes = {**changes, "doc": prompt.doc | {"system": ""} | changes.get("doc", {})}
    changed = replace(problem, prompts={"wo": structs.replace(prompt, **changes)})
    with pytest.raises(error, match=message):
        tokenize(changed, toy_tokenizer, **{"conditions": ["wo"], **options})


@pytest.mark.parametrize("layout", ["raw", "chat"])
def test_a_filler_in_the_answer_is_refused(toy_tokenizer, layout):
    filled, begun = {"unit": ".", "count": 50}, {"answer_prefix": "The final answer is $\\boxed{"}
    asked = [
        "wo",
        {"name": "at-once", **begun},
        {"name": "dots", **filled, **begun, "placement": "answer"},
        {"name": "bare", **filled, "placement": "answer"},
        {"name": "last", **filled, **begun, "placement": "end"},
    ]
    few, conditions = (
        Dataset(name="demo", source="here", problems=TOY_PROBLEMS[:2]),
        [*map(as_condition, asked)],
    )
    built = build_source(few, conditions, toy_tokenizer, layout)
    prompts = [prompt for problem in built.problems for prompt in problem.prompts.values()]
    facts = {"source": "run"}
    run = Run(
        name="RUN",
        about=facts,
        model="toy",
        receipt={"config": {"conditions": asked}},
        read=pytest.fail,
        read_prompts=lambda: prompts,
    )
    assert built.filled_answers == source_of(run).filled_answers == ("dots", "bare")
    for chosen in ((), ("last", "dots")):
        with pytest.raises(ConfigError) as caught:
            ProbeSettings(conditions=chosen).complete_from(source_of(run))
        assert "does not record where in the answer the filler of dots" in str(caught.value)
    kept = ProbeSettings(conditions=("at-once", "last")).complete_from(source_of(run)).conditions
    tokenized = tokenize(built.problems[0], toy_tokenizer, conditions=kept)
    assert [prompt.has_role("filler").sum() for prompt in tokenized.values()] == [0, 0, 50]


def test_a_condition_that_is_called_like_a_gap_is_none(toy_tokenizer):
    few = Dataset(name="demo", source="here", problems=TOY_PROBLEMS[:1])
    own = [
        as_condition({"name": name, "unit": ".", "count": 9})
        for name in ("mless-gap", "x-gap", "x")
    ]
    built = build_source(few, [*map(as_condition, ("wo", "mless")), *own], toy_tokenizer, "raw")
    recorded = ProbeSettings().complete_from(built).conditions
    assert recorded == ("wo", "mless", "mless-gap", "x-gap", "x", "mless+gap")
    tokenized = tokenize(built.problems[0], toy_tokenizer, conditions=(*recorded, "x+gap"))
    sizes = {name: int(prompt.has_role("filler").sum()) for name, prompt in tokenized.items()}
    assert sizes == {
        "wo": 0,
        "mless": 55,
        "mless-gap": 9,
        "x-gap": 9,
        "x": 9,
        "mless+gap": 0,
        "x+gap": 0,
    }
    assert tokenized["mless+gap"].positions[-1] - tokenized["wo"].positions[-1] > 55
