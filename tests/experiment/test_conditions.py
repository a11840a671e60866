import re
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from harness.analysis.sweeps import group_lengths
from harness.constants import SEPARATOR
from harness.display.dry_run import describe_plan
from harness.errors import ConfigError, PromptMismatchError
from harness.execution.execute_plan import execute
from harness.experiment.conditions import SENTENCES, Condition, as_condition, named_conditions
from harness.experiment.expand_conditions import ANSWER_AT_ONCE, CELLS, read_conditions
from harness.experiment.plan import make_plan
from harness.experiment.prompt import INSTRUCTION, Layout, PromptSettings
from harness.experiment.run_config import RunConfig
from harness.experiment.token_checks import build_checked_prompts
from harness.runs.read_runs import Run
from harness.runs.records import stored_prompts
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


def make_condition(values):
    return as_condition({"name": "x", **values})


def config(**changes):
    model = {"backend": "dummy", "model_args": {"pretrained": TOY_MODEL}}
    return RunConfig.model_validate(
        {
            "name": "t",
            "model": model,
            "dataset": TOY_DATA,
            "layouts": ["raw"],
            "conditions": ["wo"],
            **changes,
        }
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
    (built,) = build(any_tokenizer, make_condition(values), of=PROBLEMS[:6])
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

    (built,) = build(build_tokenizer("qwen2", bos=False), make_condition(REPORTED[1]))
    assert built.notes and not built.violations
    with pytest.raises(PromptMismatchError, match="the filler is not in the prompt"):
        build(build_tokenizer("llama3", bos=True), make_condition(REPORTED[0]), layout=Layout.CHAT)


@pytest.mark.parametrize("layout", [Layout.RAW, Layout.CHAT])
def test_a_filler_in_the_answer_stands_where_the_model_continues(toy_tokenizer, layout):
    conditions = (WO, make_condition(EXACT[3]), make_condition(EXACT[4]), make_condition(OTHERS[1]))
    plain, *built = (arm.prompts[0] for arm in build(toy_tokenizer, *conditions, layout=layout))
    gap = "" if layout is Layout.CHAT else SEPARATOR
    filler = " ".join(["/"] * 30)
    beginnings = [filler + SEPARATOR + BEGUN, filler, BEGUN]
    assert [prompt.text for prompt in built] == [plain.text + gap + text for text in beginnings]
    assert [prompt.answer_prefix for prompt in built] == [gap + text for text in beginnings]
    low, high = built[0].filler_span
    assert high - low == 30 and low >= len(plain.token_ids)


def test_what_a_config_says_comes_back():
    for values in [*EXACT, *REPORTED, *OTHERS, FRESH, {"sentence": 2, "count": 12}]:
        original = make_condition(values)
        assert as_condition(original.recorded()) == original


def test_a_run_keeps_every_prompt_as_it_was_asked(tmp_path):
    """Chats with one question differ by how the answer begins."""
    conditions = ["wo", *({"name": f"b{n}", **EXACT[n]} for n in (3, 4))]
    more = {"layouts": ["raw", "chat"], "repeats": 3, "gen_kwargs": {"temperature": 1.0}}
    plan = planned(conditions=conditions, **more)
    folder = execute(plan, output=tmp_path / "run", quiet=True)
    run = Run.load(folder)
    frame = run.read(texts=True)
    assert len(frame) == plan.size == 2 * 2 * 3 * 3
    counts = frame.groupby(["layout", "condition", "problem_id"], observed=True)[
        "prompt_sha256"
    ].nunique()
    assert (counts == 1).all()
    prompts = {
        (prompt.layout, prompt.condition, prompt.problem_id): prompt for prompt in run.prompts
    }
    assert len(prompts) == len(run.prompts) == 12 and all(
        len(prompt.completions) == 3 for prompt in prompts.values()
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda text: text.split()[1])
def test_the_recipes_of_the_page_are_short_and_can_be_run(recipe):
    assert len(recipe.splitlines()) <= 10
    recipe_config = RunConfig.model_validate(yaml.safe_load(recipe))
    assert make_plan(recipe_config, limit=3).size == 3 * len(recipe_config.conditions)


def test_a_fresh_draw_is_each_problems_own(toy_tokenizer):
    same = problems(a="What is $2+2$?", b="What is $2+2$?")
    for fresh in (True, False):
        (built,) = build(toy_tokenizer, make_condition({"random_ids": 9, "fresh": fresh}), of=same)
        first, second = built.prompts
        assert (
            first.text != second.text
        ) is fresh and first.filler_tokens == second.filler_tokens == 9


def test_a_sweep_is_a_condition_for_each_combination():
    loaded = config(
        sweep={"unit": ["/", "he"], "count": [0, 10, 25], "placement": ["between", "end"]}
    )
    names = [condition.name for condition in loaded.conditions]
    assert (
        names[:4] == ["wo", "slash-10-between", "slash-10-end", "slash-25-between"]
        and len(names) == 9
    )
    assert loaded.conditions[8] == as_condition(
        {"name": "he-25-end", "unit": "he", "count": 25, "placement": "end"}
    )
    assert RunConfig.model_validate(loaded.as_written()) == loaded
    assert len(loaded.tested) == 8
    alone = {
        "name": "t",
        "model": {"model_args": {"pretrained": TOY_MODEL}},
        "sweep": {"unit": "/", "count": [10]},
    }
    assert [condition.name for condition in RunConfig.model_validate(alone).conditions] == [
        "wo",
        "slash-10",
    ]
    many = planned(limit=5, sweep={"unit": ["/", "he"], "count": list(range(1, 65))})
    assert (
        len(many.arms) == 129
    )  # how long it takes with 500 problems stands in benchmarks/SWEEPS.md


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
    assert [
        condition.name for condition in config(sweep=sweep, conditions=["mless"]).conditions
    ] == names.split()


@pytest.mark.parametrize(
    ("sweep", "lines"),
    [
        ({"unit": "/", "label": ["", "F:"]}, ["/", "/, label 'F:'"]),
        ({"unit": "/", "separator": [" ", ""]}, ["/", "/, separator ''"]),
        ({"sentence": [1, 2]}, ["sentence 1", "sentence 2"]),
        ({"token_ids": [[13], [14, 15]]}, ["token ids 13", "token ids 14 15"]),
        ({"unit": "/", "cue": ["", "A:"]}, ["/", "/"]),
        ({"text": ["one two", "three four"]}, ["own text", "own text"]),
    ],
    ids=str,
)
def test_all_that_is_swept_beside_the_length_is_a_line_of_its_own(sweep, lines):
    conditions = config(sweep={**sweep, "count": [0, 5, 9]}).conditions
    groups = group_lengths({condition.name: condition for condition in conditions})
    assert [filler.filler for filler in groups] == lines
    assert sorted(name for of in groups.values() for name in of.values() if name != "wo") == sorted(
        condition.name for condition in conditions if condition.name != "wo"
    )
    assert [sorted(of) for of in groups.values()] == [[0, 5, 9]] * 2


def test_the_positive_control_keeps_every_guarantee_in_every_tokenizer(any_tokenizer):
    for layout in layouts(any_tokenizer):
        plain, control = build(any_tokenizer, WO, ANSWER_AT_ONCE, layout=layout)
        for at_once, without in zip(control.prompts, plain.prompts, strict=True):
            assert at_once.text == without.text + at_once.answer_prefix
            assert at_once.answer_prefix.endswith(ANSWER_AT_ONCE.answer_prefix)


def test_random_tokens_are_drawn_to_their_count():
    random = make_condition({"random_ids": 7, "seed": 2})
    text = random.filler_text(lambda text: len(text.split()) + 1, ["a", "b"])
    assert len(text.split()) == 6, "the first word is two tokens, as it follows no blank"
    for needs in (random, Condition(name="x", token_ids=(5, 6))):
        with pytest.raises(ConfigError, match="the model's tokenizer"):
            build_checked_prompts(problems(p="?"), [needs], PromptSettings(), None)


def test_an_empty_instruction_is_another_instruction():
    baseline = named_conditions()["wo"]
    assert baseline.is_plain
    assert not baseline.model_copy(update={"instruction": ""}).is_plain


def test_a_plan_has_reference_conditions_and_its_prompts_say_what_they_begin():
    off = config(conditions=["wo", "mless"])
    settings = {"across": {"instructions": ["One.", "Two."]}, "positive_control": True}
    plan = planned(conditions=["wo", "mless"], replicates=2, **settings)
    names = list(dict.fromkeys(prompt.condition for prompt in stored_prompts(plan)))
    conditions = ["wo", "mless", "answer-at-once"]
    assert names == [
        *conditions,
        *(f"{name}-w0{number}" for number in (1, 2) for name in conditions),
    ]
    assert set(plan.lines.values()) == {
        "demo_wo",
        "demo_mless",
        "other instructions",
        "positive control",
    }
    assert plan.size == 2 * (9 + 6), "both sides are run again under each instruction"
    counts = "requests 30: mless 2 times, wo 2 times, 1 positive control, 6 other instructions"
    assert counts in " ".join(describe_plan(plan).split())
    for prompt in stored_prompts(plan):
        assert bool(prompt.answer_prefix) == prompt.condition.startswith("answer-at-once")
        assert prompt.prompt.endswith(prompt.answer_prefix)
    assert not settings.keys() & off.identity().keys()
    assert read_conditions(plan.config.as_written()) == {
        condition.name: condition for condition in plan.config.all_conditions
    }


NAMES = (
    "my-w01 mless-w01 wo-w02 mless-w01-w01 control answer-at-once no-examples edit-01 filler-01 x-gap mless-gap r-003 "
    "mless_draw-1 demo_wo baseline w01"
).split()
"""Names that look like those that a run gives to its own conditions, tasks and position gaps."""


def test_a_name_says_nothing_of_what_a_condition_is():
    conditions = ["wo", "mless", *({"name": name, "unit": ".", "count": 9} for name in NAMES)]
    loaded = config(
        conditions=conditions, across={"instructions": ["One.", "Two."]}, positive_control=True
    )
    every = {condition.name: condition for condition in loaded.all_conditions}
    assert len(every) == len(loaded.all_conditions) == 3 * (len(conditions) + 1)
    for name in ("wo", "mless", *NAMES):
        assert (every[name].kind, every[name].of, every[name].number) == (None, None, 0)
    control, *variants = [condition for condition in every.values() if condition.kind]
    assert control.kind == "positive control" and {variant.kind for variant in variants} == {
        "other instruction"
    }
    conditions, texts = ("wo", "mless", *NAMES, control.name), {1: "One.", 2: "Two."}
    assert [(variant.of, variant.number, variant.instruction) for variant in variants] == [
        (name, number, text) for number, text in texts.items() for name in conditions
    ]
    assert read_conditions(loaded.as_written()) == every
    prompts = {prompt.condition: prompt for prompt in stored_prompts(make_plan(loaded, limit=1))}
    for name in NAMES:
        assert prompts[name].prompt.startswith(INSTRUCTION) and ". . . ." in prompts[name].prompt
        assert "kind" not in prompts[name].doc
    for variant in variants:
        assert prompts[variant.name].prompt == prompts[variant.of].prompt.replace(
            INSTRUCTION, variant.instruction
        )
        fields = {key: prompts[variant.name].doc[key] for key in ("kind", "of", "number")}
        assert fields == {"kind": "other instruction", "of": variant.of, "number": variant.number}
    at_once = prompts[control.name]
    assert at_once.prompt == prompts["wo"].prompt + at_once.answer_prefix


def test_the_parts_of_a_filler_have_names_of_their_own():
    file_conditions = [{"name": f"mless-{cell}", "unit": "."} for cell in CELLS]
    causes = [
        {"causes": "mless", "layer": 1},
        {"causes": "mless", "layers": "4-10"},
        {"causes": "mless", "layer": 4},
    ]
    loaded = config(conditions=["wo", "mless", *file_conditions, *causes])
    assert [
        condition.unit
        for condition in loaded.conditions
        if condition.name in {entry["name"] for entry in file_conditions}
    ] == ["."] * len(CELLS)
    cells = [
        (condition.cell["layers"], tuple(condition.cell["on"]))
        for condition in loaded.conditions
        if condition.cell
    ]
    later = [on for name, on in CELLS.items() if on[0]]
    assert cells == [
        *(("1", on) for on in CELLS.values()),
        *(("4-10", on) for on in later),
        *(("4", on) for on in later),
    ]
    assert all(condition.unit == "/" for condition in loaded.conditions if condition.cell)
