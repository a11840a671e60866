"""The prompt null: its edits keep the meaning of the instruction and the problem's tokens, and no two are alike."""

from __future__ import annotations

import re

import pytest

from harness.constants import SEPARATOR
from harness.display.dry_run import describe_plan
from harness.errors import ConfigError
from harness.experiment.conditions import all_edits, first_edits, named_condition, yardstick
from harness.experiment.config import load_config
from harness.experiment.plan import make_plan
from harness.experiment.prompt import INSTRUCTION, build_prompt
from harness.experiment.token_checks import PromptBuilder
from tests.experiment.test_token_checks import PROBLEMS, layouts

EDITS = all_edits()


def test_there_are_enough_and_no_two_are_alike():
    assert len(EDITS) >= 20
    assert len({edit.instruction for edit in EDITS} | {INSTRUCTION}) == len(EDITS) + 1
    assert [edit.name for edit in first_edits(3)] == ["edit-01", "edit-02", "edit-03"]
    assert all(yardstick(edit.name) == "rewording" for edit in EDITS) and not yardstick("mless")
    names = (
        "edit-mine",
        "edit-00",
        "edit-1",
        f"edit-{len(EDITS) + 1:02}",
        "filler-00",
        "filler-1",
        "filler-x",
        "controls",
    )
    assert not any(map(yardstick, names)), "names of conditions"
    with pytest.raises(ConfigError, match=f"prompt_null: expected 0 to {len(EDITS)} edits .* got 99"):
        first_edits(99)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_still_asks_for_the_same(edit):
    words = re.findall(r"\w+", edit.instruction.lower())
    assert {"step", "by", "final", "answer", "boxed"} <= set(words) and {"mathematician", "mathematics"} & set(words)
    assert edit.instruction.count("\\boxed{}") == 1 and edit.filler is None
    separator = edit.gap or SEPARATOR
    assert separator.startswith(" ") and separator.endswith("\n") and not separator.strip()
    prompt = build_prompt("What?", edit, filler_text="")
    assert prompt.text == edit.instruction + separator + "What?"
    assert [segment.role for segment in prompt.segments] == ["instruction", "separator", "problem"]


def token_ids(built):
    return tuple(one.token_ids for one in built.prompts)


def test_an_edit_keeps_the_problems_token_ids_in_every_tokenizer(any_tokenizer):
    for layout in layouts(any_tokenizer):
        builder = PromptBuilder(PROBLEMS, layout, any_tokenizer)
        seen = {token_ids(builder.build(named_condition("wo")))}
        for edit in EDITS:
            built = builder.build(edit)
            assert built.violations == () and built.same_problem_ids == len(PROBLEMS)
            seen.add(token_ids(built))
        assert len(seen) == len(EDITS) + 1, "no template undoes an edit"


def plan_with(tmp_path, text, limit=3):
    file = tmp_path / "r.yaml"
    file.write_text(text)
    return make_plan(load_config(file), limit=limit)


CONFIG = "{name: n, model: {arguments: {pretrained: %s}}, dataset: demo, conditions: [wo, mless], max_gen_toks: 9, %s}"


def test_the_plan_says_what_can_be_found_and_what_comes_on_top(tmp_path):
    plan = plan_with(tmp_path, CONFIG % ("demo", "prompt_null: 4, replicates: 2"))
    assert plan.size == 3 * (2 + 1 + 4)
    said = describe_plan(plan)
    assert "requests  21: wo 2 times, 4 rewordings" in said and said.count("rewordings") == 2
