"""Other fillers of the same length, and the positive control: their prompts, in every tokenizer."""

from __future__ import annotations

import pytest

from harness.errors import ConfigError
from harness.experiment.conditions import (
    CONTROL,
    SENTENCES,
    find_yardsticks,
    named_condition,
    other_fillers,
    parse_condition,
)
from harness.experiment.config import load_config
from harness.experiment.plan import make_plan
from harness.experiment.token_checks import PromptBuilder
from tests.experiment.test_config import MINIMAL, write
from tests.experiment.test_token_checks import PROBLEMS, layouts

MLESS = named_condition("mless")


def test_other_fillers_are_sentences_and_random_tokens_and_more_of_them_begin_with_the_same():
    fillers = other_fillers(12, MLESS)
    assert list(find_yardsticks([one.name for one in fillers]).values()) == ["other filler"] * 12
    assert other_fillers(5, MLESS) == fillers[:5]
    numbers = [one.sentence for one in fillers if one.sentence]
    assert len(numbers) == len(set(numbers)) == len(SENTENCES) - 1, "all but the study's own"
    assert named_condition("random").sentence not in numbers
    assert {one.tokens for one in fillers} == {55} and {one.placement for one in fillers} == {MLESS.placement}
    own = [one.sentence for one in other_fillers(12, MLESS, numbers[:2]) if one.sentence]
    assert own == numbers[2:], "nor any of the run's own"
    long = other_fillers(4, load_condition(count=400))
    assert all(one.random_ids == 400 for one in long), "no sentence is so long"


def load_condition(**values):
    return parse_condition({"name": "x", "unit": "/", **values})


def test_other_fillers_and_the_control_keep_every_guarantee_in_every_tokenizer(any_tokenizer):
    for layout in layouts(any_tokenizer):
        builder = PromptBuilder(PROBLEMS, layout, any_tokenizer)
        plain = builder.build(named_condition("wo")).prompts
        texts = set()
        for condition in other_fillers(8, MLESS):
            built = builder.build(condition)
            assert built.violations == () and {one.filler_tokens for one in built.prompts} == {55}
            texts.add(built.prompts[0].text)
        assert len(texts) == 8, "no two alike"
        built = builder.build(CONTROL)
        assert built.violations == () and built.same_problem_ids == len(PROBLEMS)
        for one, without in zip(built.prompts, plain, strict=True):
            assert one.text == without.text + one.answer_prefix and one.answer_prefix.endswith(CONTROL.answer_prefix)


def test_random_tokens_need_a_vocabulary():
    with pytest.raises(ConfigError, match=r"no draw of these has 55 tokens. Name the model's tokenizer"):
        load_condition(unit=None, random_ids=55).filler_text()
    drawn = load_condition(unit=None, random_ids=7, seed=2).filler_text(lambda text: len(text.split()) + 1, ["a", "b"])
    assert len(drawn.split()) == 6, "the first word is two tokens, as it follows no blank"


def test_a_plan_has_the_yardsticks_and_its_prompts_say_what_they_begin(tmp_path):
    config = load_config(write(tmp_path, {**MINIMAL, "prompt_null": 2, "filler_null": 3, "positive_control": True}))
    plan = make_plan(config, limit=2)
    names = list(dict.fromkeys(row["condition"] for row in plan.prompts))
    assert names == ["wo", "mless", "edit-01", "edit-02", "filler-01", "filler-02", "filler-03", "control"]
    assert set(plan.lines.values()) == {"demo_wo", "demo_mless", "rewordings", "other fillers", "positive control"}
    for row in plan.prompts:
        prefix = row.get("answer_prefix", "")
        assert bool(prefix) == (row["condition"] == "control") and row["prompt"].endswith(prefix)
    off = load_config(write(tmp_path, MINIMAL)).identity()
    assert not {"filler_null", "positive_control"} & off.keys(), "older runs can be continued"
    assert config.identity().items() >= {"filler_null": 3, "positive_control": True}.items()
    about = load_config(
        write(
            tmp_path,
            {
                **MINIMAL,
                "conditions": ["wo", "mless", {"name": "dots", "unit": ".", "count": 9, "placement": "end"}],
                "primary": "dots - wo",
                "filler_null": 1,
            },
        )
    )
    (filler,) = about.yardsticks
    assert (filler.tokens, str(filler.placement)) == (9, "end"), "of the primary contrast's length and place"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"filler_null": 3, "conditions": ["wo"]},
            "filler_null has the length of a condition's filler, and",
        ),
        ({"filler_null": 100}, "filler_null: .* got 100"),
        (
            {"positive_control": True, "model": {"backend": "local-chat-completions", "arguments": {"model": "m"}}},
            "positive_control begins the answer, which a chat API does not allow",
        ),
        ({"conditions": ["wo", {"name": "control", "unit": "/"}]}, "the study's own condition's or a yardstick's"),
        ({"conditions": ["wo", {"name": "filler-07", "unit": "/"}]}, "the study's own condition's or a yardstick's"),
    ],
)
def test_what_no_yardstick_can_be_is_refused(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        load_config(write(tmp_path, {**MINIMAL, **change}))
