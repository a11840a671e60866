import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from harness.analysis.sweeps import group_lengths
from harness.constants import SEPARATOR
from harness.display.dry_run import describe_plan
from harness.errors import ConfigError, PromptMismatchError
from harness.execution.run import execute
from harness.experiment.conditions import (
    CONTROL,
    SENTENCES,
    Condition,
    all_edits,
    as_condition,
    find_yardsticks,
    named_conditions,
    other_fillers,
    yardstick,
)
from harness.experiment.config import RunConfig
from harness.experiment.plan import make_plan
from harness.experiment.prompt import INSTRUCTION, Layout, build_prompt
from harness.experiment.token_checks import build_checked_prompts
from harness.runs.read import Run
from tests.experiment.test_token_checks import PROBLEMS, build, layouts, problems
from tests.make import TOY_DATA, TOY_MODEL

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "conditions.md").read_text()
RECIPES = re.findall(r"```yaml\n(name: .*?)```", PAGE, re.DOTALL)
BEGUN = "The final answer is $\\boxed{"
EXACT = [
    {"unit": "/", "count": 30},
    {"unit": "/", "count": 30, "label": "Filler:"},
    {"unit": "/", "count": 30, "placement": "end", "cue": "Answer:"},
    {"unit": "/", "count": 30, "placement": "answer", "answer_prefix": BEGUN},
    {"unit": "/", "count": 30, "placement": "answer"},
    {"unit": "/", "count": 30, "instruction": "Think, then put the answer within \\boxed{}."},
    {"text": "Once upon a time,\nthere were three of them.", "count": 30},
]
REPORTED = [
    {"unit": " ", "count": 20},
    {"unit": "\n", "count": 20},
    {"text": "Once upon a time, there were three of them."},
    {"count_to": 30, "label": "Filler:"},
    {"repeat_problem": 3},
]
OTHERS = [{"cue": "Answer:"}, {"answer_prefix": BEGUN}, {"instruction": "Answer within \\boxed{}."}]
MLESS, WO = named_conditions()["mless"], named_conditions()["wo"]
FRESH = {"random_ids": 9, "fresh": True}


def condition(values):
    return as_condition({"name": "x", **values})


def config(**changes):
    model = {"backend": "dummy", "arguments": {"pretrained": TOY_MODEL}}
    return RunConfig.model_validate(
        {"name": "t", "model": model, "dataset": TOY_DATA, "layouts": ["raw"], "conditions": ["wo"], **changes}
    )


def planned(limit=2, **changes):
    return make_plan(config(**changes), limit=limit)


def test_named_conditions_are_the_studys():
    assert list(named_conditions()) == ["wo", "mless", "mful", "random"]
    assert WO.filler is None and MLESS.filler_text() == " ".join("/" * 55)
    assert as_condition("mful").filler_text().split() == ["he"] * 55
    with pytest.raises(ValidationError):
        MLESS.name = "y"


def test_sentences_are_unrelated_to_mathematics_and_about_as_long_as_the_filler_without_a_tokenizer():
    from tests.conftest import load_vocabulary

    assert len(set(SENTENCES)) == len(SENTENCES) >= 5
    for number, sentence in enumerate(SENTENCES, start=1):
        assert not any(character.isdigit() for character in sentence)
        assert len(set(sentence.split())) > 0.6 * len(sentence.split())
        text = Condition(name="x", sentence=number).filler_text()
        assert text.endswith(".") and 50 <= len(text.split()) + text.count(",") + 1 <= 60
        assert 50 <= len(load_vocabulary("tekken").encode(text, add_special_tokens=False)) <= 60


@pytest.mark.parametrize("values", [*EXACT, *REPORTED, *OTHERS], ids=str)
def test_every_kind_keeps_the_problem_in_every_tokenizer(any_tokenizer, values):
    (built,) = build(any_tokenizer, condition(values), of=PROBLEMS[:6])
    for problem, prompt in zip(PROBLEMS, built.prompts, strict=False):
        assert prompt.text.count(problem.problem) == values.get("repeat_problem", 1)
        assert prompt.text.endswith(values.get("answer_prefix") or values.get("cue") or "")
        if values in EXACT:
            assert (prompt.filler_tokens, prompt.straddling) == (30, 0)
        if values in REPORTED:
            assert prompt.filler_tokens + prompt.straddling > 0
        assert ("Filler:" + SEPARATOR in prompt.text) == ("label" in values)


def test_blanks_that_a_tokenizer_merges_are_reported_and_refused_where_they_vanish():
    from tests.conftest import build_tokenizer

    (built,) = build(build_tokenizer("qwen2", bos=False), condition(REPORTED[1]))
    assert built.notes and not built.violations
    with pytest.raises(PromptMismatchError, match="the filler is not in the prompt"):
        build(build_tokenizer("llama3", bos=True), condition(REPORTED[0]), layout=Layout.CHAT)


@pytest.mark.parametrize("layout", [Layout.RAW, Layout.CHAT])
def test_a_filler_in_the_answer_stands_where_the_model_continues(toy_tokenizer, layout):
    conditions = (WO, condition(EXACT[3]), condition(EXACT[4]), condition(OTHERS[1]))
    plain, *built = (one.prompts[0] for one in build(toy_tokenizer, *conditions, layout=layout))
    gap = "" if layout is Layout.CHAT else SEPARATOR
    filler = " ".join(["/"] * 30)
    begun = [filler + SEPARATOR + BEGUN, filler, BEGUN]
    assert [one.text for one in built] == [plain.text + gap + text for text in begun]
    assert [one.answer_prefix for one in built] == [gap + text for text in begun]
    low, high = built[0].filler_span
    assert high - low == 30 and low >= len(plain.token_ids)


def test_what_a_config_says_comes_back():
    for values in [*EXACT, *REPORTED, *OTHERS, FRESH, {"sentence": 2, "count": 12}]:
        one = condition(values)
        assert as_condition(one.recorded()) == one


def test_a_run_keeps_every_prompt_as_it_was_asked(tmp_path):
    """Chats with one question differ by how the answer begins."""
    conditions = ["wo", *({"name": f"b{n}", **EXACT[n]} for n in (3, 4))]
    more = {"layouts": ["raw", "chat"], "samples_per_problem": 3, "sampling": {"temperature": 1.0}}
    plan = planned(conditions=conditions, **more)
    folder = execute(plan, output=tmp_path / "run", quiet=True)
    run = Run.load(folder)
    frame = run.read(texts=True)
    assert len(frame) == plan.size == 2 * 2 * 3 * 3
    asked = frame.groupby(["layout", "condition", "problem_id"], observed=True)["prompt_sha256"].nunique()
    assert (asked == 1).all()
    shown = {(one.layout, one.condition, one.problem_id): one for one in run.prompts}
    assert len(shown) == len(run.prompts) == 12 and all(len(one.completions) == 3 for one in shown.values())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda text: text.split()[1])
def test_the_recipes_of_the_page_are_short_and_can_be_run(recipe):
    assert len(recipe.splitlines()) <= 10
    recipe_config = RunConfig.model_validate(yaml.safe_load(recipe))
    assert make_plan(recipe_config, limit=3).size == 3 * len(recipe_config.conditions)


def test_a_fresh_draw_is_each_problems_own(toy_tokenizer):
    same = problems(a="What is $2+2$?", b="What is $2+2$?")
    for fresh in (True, False):
        (built,) = build(toy_tokenizer, condition({"random_ids": 9, "fresh": fresh}), of=same)
        one, other = built.prompts
        assert (one.text != other.text) is fresh and one.filler_tokens == other.filler_tokens == 9


def test_a_sweep_is_a_condition_for_each_combination():
    loaded = config(sweep={"unit": ["/", "he"], "count": [0, 10, 25], "placement": ["between", "end"]})
    names = [one.name for one in loaded.conditions]
    assert names[:4] == ["wo", "slash-10-between", "slash-10-end", "slash-25-between"] and len(names) == 9
    assert loaded.conditions[8] == as_condition({"name": "he-25-end", "unit": "he", "count": 25, "placement": "end"})
    assert RunConfig.model_validate(loaded.as_written()) == loaded
    assert len(loaded.tested) == 8
    alone = {"name": "t", "model": {"arguments": {"pretrained": TOY_MODEL}}, "sweep": {"unit": "/", "count": [10]}}
    assert [one.name for one in RunConfig.model_validate(alone).conditions] == ["wo", "slash-10"]
    many = planned(limit=5, sweep={"unit": ["/", "he"], "count": list(range(1, 65))})
    assert len(many.arms) == 129  # how long it takes with 500 problems stands in benchmarks/SWEEPS.md


@pytest.mark.parametrize(
    ("sweep", "names"),
    [
        ({"unit": "/", "count": [0, 5]}, "mless wo slash-5"),
        ({"unit": ["/", "he"], "count": [0, 5], "cue": "A"}, "mless A slash-5-A he-5-A"),
        ({"unit": "/", "count": [0, 5], "cue": ["", "A"]}, "mless wo A slash-5 slash-5-A"),
        ({"cue": ["", "A"]}, "mless wo A"),
        ({"count_to": [10, 20]}, "mless count-to-10 count-to-20"),
        ({"sentence": [1, 2], "count": 9}, "mless sentence-1-9 sentence-2-9"),
    ],
    ids=str,
)
def test_a_count_of_0_leaves_the_filler_out_and_no_more(sweep, names):
    """The words around it stay, for else their effect would look like the filler's."""
    assert [one.name for one in config(sweep=sweep, conditions=["mless"]).conditions] == names.split()


@pytest.mark.parametrize(
    ("sweep", "lines"),
    [
        ({"unit": "/", "label": ["", "F:"]}, ["/", "/, label 'F:'"]),
        ({"unit": "/", "separator": [" ", ""]}, ["/", "/, separator ''"]),
        ({"sentence": [1, 2]}, ["sentence 1", "sentence 2"]),
        ({"token_ids": [[13], [14, 15]]}, ["token ids 13", "token ids 14 15"]),
        ({"unit": "/", "cue": ["", "A:"]}, ["/", "/"]),
    ],
    ids=str,
)
def test_all_that_is_swept_beside_the_length_is_a_line_of_its_own(sweep, lines):
    conditions = config(sweep={**sweep, "count": [0, 5, 9]}).conditions
    groups = group_lengths({one.name: one.factors() for one in conditions})
    assert [filler for filler, _, _ in groups] == lines
    assert sorted(name for of in groups.values() for name in of.values() if name != "wo") == sorted(
        one.name for one in conditions if one.name != "wo"
    )
    assert [sorted(of) for of in groups.values()] == [[0, 5, 9]] * 2


def test_names_of_yardsticks_are_known():
    edits = all_edits()
    assert len(edits) >= 20 and len({edit.instruction for edit in edits} | {INSTRUCTION}) == len(edits) + 1
    names = ["edit-01", "filler-07", "control", "mless"]
    assert [*map(yardstick, names)] == ["rewording", "other filler", "positive control", None]
    wrong = ["edit-mine", "edit-00", "edit-1", "filler-00", "filler-1", "controls", f"edit-{len(edits) + 1:02}"]
    assert not any(map(yardstick, wrong)), "names of conditions"


@pytest.mark.parametrize("edit", all_edits(), ids=lambda edit: edit.name)
def test_an_edit_still_asks_for_the_same(edit):
    words = re.findall(r"\w+", edit.instruction.lower())
    assert {"step", "by", "final", "answer", "boxed"} <= set(words) and {"mathematician", "mathematics"} & set(words)
    assert edit.instruction.count("\\boxed{}") == 1 and edit.filler is None
    separator = edit.gap or SEPARATOR
    assert separator.startswith(" ") and separator.endswith("\n") and not separator.strip()
    assert build_prompt("What?", edit, filler_text="").text == edit.instruction + separator + "What?"


def test_other_fillers_are_sentences_and_random_tokens_and_more_of_them_begin_with_the_same():
    fillers = other_fillers(14, [MLESS])
    assert list(find_yardsticks([one.name for one in fillers]).values()) == ["other filler"] * 14
    assert other_fillers(5, [MLESS]) == fillers[:5]
    numbers = [one.sentence for one in fillers if one.sentence]
    assert len(numbers) == len(set(numbers)) == len(SENTENCES) - 1, "all but the study's own"
    assert as_condition("random").sentence not in numbers
    assert {one.tokens for one in fillers} == {55} and {one.placement for one in fillers} == {MLESS.placement}
    run = [MLESS, *(condition({"sentence": number}) for number in numbers[:2])]
    assert [one.sentence for one in other_fillers(12, run) if one.sentence] == numbers[2:], "nor any of the run's own"
    long = other_fillers(4, [condition({"unit": "/", "count": 400})])
    assert all(one.random_ids == 400 for one in long), "no sentence is so long"


def test_yardsticks_keep_every_guarantee_in_every_tokenizer_and_no_template_undoes_one(any_tokenizer):
    yardsticks = [*other_fillers(8, [MLESS]), *all_edits()]
    for layout in layouts(any_tokenizer):
        plain, control, *built = build(any_tokenizer, WO, CONTROL, *yardsticks, layout=layout)
        assert len({tuple(prompt.token_ids for prompt in one.prompts) for one in (plain, *built)}) == 33
        assert {prompt.filler_tokens for one in built[:8] for prompt in one.prompts} == {55}
        for one, without in zip(control.prompts, plain.prompts, strict=True):
            assert one.text == without.text + one.answer_prefix and one.answer_prefix.endswith(CONTROL.answer_prefix)


def test_random_tokens_are_drawn_to_their_count():
    random = condition({"random_ids": 7, "seed": 2})
    drawn = random.filler_text(lambda text: len(text.split()) + 1, ["a", "b"])
    assert len(drawn.split()) == 6, "the first word is two tokens, as it follows no blank"
    for needs in (random, Condition(name="x", token_ids=(5, 6))):
        with pytest.raises(ConfigError, match="the model's tokenizer"):
            build_checked_prompts(problems(p="?"), [needs], Layout.RAW, None)


def test_a_plan_has_the_yardsticks_and_its_prompts_say_what_they_begin():
    off = config(conditions=["wo", "mless"])
    own = {"prompt_null": 2, "filler_null": 3, "positive_control": True}
    plan = planned(conditions=["wo", "mless"], replicates=2, **own)
    names = list(dict.fromkeys(row["condition"] for row in plan.prompts))
    assert names == ["wo", "mless", "edit-01", "edit-02", "filler-01", "filler-02", "filler-03", "control"]
    assert set(plan.lines.values()) == {"demo_wo", "demo_mless", "rewordings", "other fillers", "positive control"}
    assert plan.size == 2 * (2 + 2 + 6)
    assert "requests 20: mless 2 times, wo 2 times, 2 rewordings, 3 other fillers, 1 positive control" in " ".join(
        describe_plan(plan).split()
    )
    for row in plan.prompts:
        prefix = row.get("answer_prefix", "")
        assert bool(prefix) == (row["condition"] == "control") and row["prompt"].endswith(prefix)
    assert not {"filler_null", "positive_control"} & off.identity().keys(), "older runs can be continued"
    assert plan.config.identity().items() >= own.items()
    dots = {"name": "dots", "unit": ".", "count": 9, "placement": "end"}
    (filler,) = config(conditions=["wo", "mless", dots], primary="dots - wo", filler_null=1).yardsticks
    assert (filler.tokens, str(filler.placement)) == (9, "end"), "of the primary contrast's length and place"
