"""Every kind of condition that docs/conditions.md lists: its prompts, what is checked, and how a run keeps them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from harness.analysis.sweeps import group_lengths
from harness.constants import SEPARATOR
from harness.errors import ConfigError, PromptMismatchError
from harness.execution.run import execute
from harness.experiment.conditions import as_condition
from harness.experiment.config import RunConfig, load_config
from harness.experiment.plan import make_plan
from harness.experiment.problems import load_demo
from harness.experiment.prompt import AS_PRINTED_INSTRUCTION, INSTRUCTION, Layout
from harness.experiment.token_checks import PromptBuilder
from harness.runs.read_run import read_run

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "conditions.md").read_text()
RECIPES = re.findall(r"```yaml\n(name: .*?)```", PAGE, re.DOTALL)
BEGUN = "The final answer is $\\boxed{"
EXACT = [
    {"unit": "/", "count": 30},
    {"unit": "/", "count": 30, "label": "Filler:"},
    {"unit": "/", "count": 30, "placement": "end", "cue": "Answer:"},
    {"unit": "/", "count": 30, "placement": "answer", "answer_prefix": BEGUN},
    {"unit": "/", "count": 30, "placement": "answer"},
    {"unit": "/", "count": 30, "instruction": "Think, then put the answer within \\boxed{}."},
]
REPORTED = [
    {"unit": " ", "count": 20},
    {"unit": "\n", "count": 20},
    {"text": "Once upon a time, there were three of them."},
    {"count_to": 30, "label": "Filler:"},
    {"repeat_problem": 3},
]
OTHERS = [{"cue": "Answer:"}, {"answer_prefix": BEGUN}, {"instruction": "Answer within \\boxed{}."}]
PROBLEMS = {problem.id: problem.problem for problem in load_demo().problems[:6]}


def condition(values):
    return as_condition({"name": "x", **values})


@pytest.mark.parametrize("values", [*EXACT, *REPORTED, *OTHERS], ids=str)
def test_every_kind_keeps_the_problem_in_every_tokenizer(any_tokenizer, values):
    builder = PromptBuilder(PROBLEMS, Layout.RAW, any_tokenizer)
    built = builder.build(condition(values))
    assert not built.violations and built.same_problem_ids == len(PROBLEMS)
    for problem, prompt in zip(PROBLEMS.values(), built.prompts, strict=True):
        assert prompt.text.count(problem) == values.get("repeat_problem", 1)
        assert prompt.text.endswith(values.get("answer_prefix") or values.get("cue") or "")
        if values in EXACT:
            assert (prompt.filler_tokens, prompt.straddling) == (30, 0)
        if values in REPORTED:
            assert prompt.filler_tokens + prompt.straddling > 0
        assert ("Filler:" + SEPARATOR in prompt.text) == ("label" in values)


def test_blanks_that_a_tokenizer_merges_are_reported_and_refused_where_they_vanish(demo_tokenizer):
    from tests.conftest import build_tokenizer

    built = PromptBuilder(PROBLEMS, Layout.RAW, build_tokenizer("qwen2", bos=False)).build(condition(REPORTED[1]))
    assert built.notes and not built.violations
    assert "20 filler tokens, got" in " ".join(built.notes) or "cover filler and neighbouring" in built.notes[0]
    trimmed = PromptBuilder(PROBLEMS, Layout.CHAT, build_tokenizer("llama3", bos=True)).build(condition(REPORTED[0]))
    with pytest.raises(PromptMismatchError, match="the filler is not in the prompt"):
        trimmed.refuse("x")


@pytest.mark.parametrize("layout", [Layout.RAW, Layout.CHAT])
def test_a_filler_in_the_answer_stands_where_the_model_continues(demo_tokenizer, layout):
    plain, *built = (
        PromptBuilder(PROBLEMS, layout, demo_tokenizer).build(one).prompts[0]
        for one in (as_condition("wo"), condition(EXACT[3]), condition(EXACT[4]), condition(OTHERS[1]))
    )
    gap = "" if layout is Layout.CHAT else SEPARATOR
    filler = " ".join(["/"] * 30)
    begun = [filler + SEPARATOR + BEGUN, filler, BEGUN]
    assert [one.text for one in built] == [plain.text + gap + text for text in begun]
    assert [one.answer_prefix for one in built] == [gap + text for text in begun]
    low, high = built[0].filler_span
    assert high - low == 30 and low >= len(plain.prompt_token_ids)


def test_what_a_config_says_comes_back(tmp_path):
    for values in [*EXACT, *REPORTED, *OTHERS, {"random_ids": 9, "fresh": True}, {"sentence": 2, "count": 12}]:
        one = condition(values)
        assert as_condition(one.recorded()) == one
    (tmp_path / "own.txt").write_text("Two lines\nof text.\n")
    one = condition({"file": str(tmp_path / "own.txt")})
    assert one == condition({"text": "Two lines\nof text."}), "a run is known by the text, wherever its file lies"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "condition 'x' changes nothing: expected one of unit, token_ids, "),
        ({"unit": "/", "text": "a"}, "expected one filler, got unit and text."),
        ({"text": "a", "count": 3}, "count goes with unit, token_ids, sentence, got text."),
        ({"count_to": 5, "separator": ","}, "separator goes with unit, token_ids, got text."),
        ({"cue": "A:", "label": "F:"}, "label goes with unit, token_ids, "),
        ({"unit": "/", "fresh": True}, "fresh goes with random_ids, got unit."),
        ({"count_to": 0}, "condition 'x': count_to: Input should be greater than or equal to 1, got 0."),
        ({"repeat_problem": 1}, "repeat_problem: Input should be greater than or equal to 2, got 1."),
        ({"text": ""}, "text: String should have at least 1 character, got ''."),
        (
            {"text": "\ud800"},
            "unable to parse raw data as a unicode string, got '\\ud800'.",
        ),
        ({"unit": "/", "instruction": ""}, "instruction: String should have at least 1 character, got ''."),
        ({"random_ids": -3}, "random_ids: Input should be greater than or equal to 1, got -3."),
        ({"unit": "/", "count": 10**9}, "count: Input should be less than or equal to 100000, got 1000000000."),
        ({"file": "~nobody-at-all/x"}, "cannot be read: "),
        ({"file": "none.txt"}, "condition 'x': file none.txt cannot be read: No such file or directory"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused(values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        condition(values)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layouts": ["as_printed"], "instruction": "Go."}, "cannot be changed in the layout as_printed"),
        ({"layouts": ["as_published"], "conditions": ["wo", {"name": "x", **OTHERS[2]}]}, "in the layout as_published"),
        (
            {"conditions": ["wo", {"name": "x", "text": "a"}], "filler_null": 3},
            "filler_null: expected a filler with a count",
        ),
        (
            {
                "conditions": ["wo", {"name": "x", **EXACT[4]}],
                "model": {"backend": "local-chat-completions", "arguments": {"model": "m", "base_url": "http://x"}},
            },
            "x begins the answer, which a chat API does not allow",
        ),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_what_does_not_go_together_is_refused(config, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_plan(load_config(Path(config(**changes))), limit=1)


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        values = {"name": "t", "model": {"arguments": {"pretrained": "demo"}}, "dataset": "demo", "conditions": ["wo"]}
        (tmp_path / "t.yaml").write_text(yaml.safe_dump(values | changes, sort_keys=False))
        return str(tmp_path / "t.yaml")

    return write


def test_the_printed_layout_has_the_papers_instruction(config):
    sound, printed = (
        make_plan(load_config(Path(config(layouts=[layout]))), limit=1).arms[0].built.prompts[0].text
        for layout in ("raw", "as_printed")
    )
    assert printed == sound.replace(INSTRUCTION, AS_PRINTED_INSTRUCTION) != sound


def test_a_run_keeps_every_prompt_as_it_was_asked(config, tmp_path):
    """Fresh fillers differ from sample to sample, and chats with one question by how the answer begins."""
    conditions = [
        "wo",
        {"name": "anew", "random_ids": 9, "fresh": True},
        *({"name": f"b{n}", **EXACT[n]} for n in (3, 4)),
    ]
    path = Path(
        config(
            conditions=conditions,
            layouts=["raw", "chat"],
            samples_per_problem=3,
            sampling={"temperature": 1.0},
            model={"backend": "dummy", "arguments": {"pretrained": "demo"}, "label": "dummy"},
        )
    )
    plan = make_plan(load_config(path), limit=2)
    assert [arm.task for arm in plan.arms if arm.by_sample] == ["demo_anew", "demo_anew_chat"]
    assert plan.size == 2 * 2 * 4 * 3
    folder = execute(plan, output=tmp_path / "run", quiet=True)
    run = read_run(folder)
    frame = run.read_texts()
    assert len(frame) == plan.size
    asked = frame.groupby(["layout", "condition", "problem_id"], observed=True)["prompt_sha256"].nunique()
    assert (asked.xs("anew", level="condition") == 3).all() and (asked.drop("anew", level="condition") == 1).all()
    shown = {(one.layout, one.condition, one.problem_id): one for one in run.read_prompts()}
    assert len(shown) == len(run.read_prompts()) == 16 and all(len(one.completions) == 3 for one in shown.values())
    for log in folder.glob("samples_demo_*.jsonl"):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        prompts = [line["arguments"]["gen_args_0"]["arg_0"] for line in lines]
        drawn, chat = "anew" in log.name, "_chat_" in log.name
        assert len(lines) == (6 if drawn else 2) and len(set(prompts)) == len(lines)
        if chat and not drawn:
            name = re.match(r"samples_demo_(\w+?)_chat_", log.name)[1]
            assert prompts == [shown["chat", name, line["doc"]["id"]].text for line in lines]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda text: text.split()[1])
def test_the_recipes_of_the_page_are_short_and_can_be_run(recipe, tmp_path):
    assert len(recipe.splitlines()) <= 10
    (tmp_path / "run.yaml").write_text(recipe)
    plan = make_plan(load_config(tmp_path / "run.yaml"), limit=3)
    assert plan.size == 3 * len(RunConfig.model_validate(yaml.safe_load(recipe)).conditions)


@pytest.mark.slow
@pytest.mark.engine
def test_a_recipe_runs_on_the_bundled_model(mless, tmp_path):
    for number, recipe in enumerate(RECIPES):
        (tmp_path / "run.yaml").write_text(recipe)
        done = mless("run", str(tmp_path / "run.yaml"), "--limit", "4", "-o", str(tmp_path / str(number)), "--quiet")
        assert done.returncode == 0, done.stderr[-2000:]


def test_a_sample_has_the_draw_of_its_number():
    one = condition({"random_ids": 9, "fresh": True})
    first, second = one.for_samples(2)
    assert first == one and first != second
    assert condition({"random_ids": 9}).for_samples(2) == []


def test_a_fresh_draw_is_each_problems_own_too(demo_tokenizer):
    builder = PromptBuilder({"a": "What is $2+2$?", "b": "What is $2+2$?"}, Layout.RAW, demo_tokenizer)
    for fresh in (True, False):
        built = builder.build(condition({"random_ids": 9, "fresh": fresh}))
        one, other = (prompt.text for prompt in built.prompts)
        assert (one != other) is fresh and not built.violations
        assert [prompt.filler_tokens for prompt in built.prompts] == [9, 9]


def test_a_sweep_is_a_condition_for_each_combination(config):
    sweep = {"unit": ["/", "he"], "count": [0, 10, 25], "placement": ["between", "end"]}
    loaded = load_config(Path(config(sweep=sweep)))
    names = [one.name for one in loaded.conditions]
    assert names[:4] == ["wo", "slash-10-between", "slash-10-end", "slash-25-between"] and len(names) == 9
    assert loaded.conditions[8] == as_condition({"name": "he-25-end", "unit": "he", "count": 25, "placement": "end"}), (
        "the last combination"
    )
    assert RunConfig.model_validate(loaded.as_written()) == loaded
    assert len(loaded.tested) == 8
    alone = {"name": "t", "model": {"arguments": {"pretrained": "demo"}}, "sweep": {"unit": "/", "count": [10]}}
    assert [one.name for one in RunConfig.model_validate(alone).conditions] == ["wo", "slash-10"]


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
def test_a_count_of_0_leaves_the_filler_out_and_no_more(config, sweep, names):
    """The words around it stay, for else their effect would look like the filler's."""
    loaded = load_config(Path(config(sweep=sweep, conditions=["mless"])))
    assert [one.name for one in loaded.conditions] == names.split()


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
def test_all_that_is_swept_beside_the_length_is_a_line_of_its_own(config, sweep, lines):
    loaded = load_config(Path(config(sweep={**sweep, "count": [0, 5, 9]})))
    groups = group_lengths({one.name: one.factors() for one in loaded.conditions})
    assert [filler for filler, _, _ in groups] == lines
    assert sorted(name for of in groups.values() for name in of.values() if name != "wo") == sorted(
        one.name for one in loaded.conditions if one.name != "wo"
    )
    assert [sorted(of) for of in groups.values()] == [[0, 5, 9]] * 2


def test_a_filler_that_states_no_tokens_has_no_length():
    for values in ({"unit": "\n", "count": 9}, {"count_to": 9}, {"repeat_problem": 2}, {"text": "a"}):
        assert condition(values).factors()["filler_tokens"] is None


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ([1], "got [1]"),
        ({"lenght": [1]}, "got {'lenght': [1]}"),
        ({"unit": ["/"], "count": []}, "sweep: count has no value"),
        ({"unit": ["/", "/"], "count": 5}, "two conditions would be called 'slash-5'"),
        ({"count": [10]}, "condition '10': count goes with unit, token_ids, sentence, got none"),
    ],
    ids=str,
)
def test_a_sweep_that_cannot_be_is_refused(config, sweep, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(Path(config(sweep=sweep)))


def test_a_sweep_of_128_combinations_is_planned(config):
    """How long it takes with 500 problems stands in benchmarks/SWEEPS.md."""
    loaded = load_config(Path(config(sweep={"unit": ["/", "he"], "count": list(range(1, 65))})))
    assert len(make_plan(loaded, limit=5).arms) == 129


def test_a_runs_samples_have_what_was_swept_and_its_figure_shows_it(config, tmp_path):
    from harness.constants import Kind
    from harness.display.plots import make_plots
    from harness.display.table_pages import make_table
    from harness.errors import ComparisonError

    model = {"backend": "dummy", "arguments": {"pretrained": "demo"}}
    swept = config(
        sweep={"unit": ["/", "he"], "count": [2, 5, 9], "placement": ["between"]}, model=model, prompt_null=2
    )
    folder = execute(make_plan(load_config(Path(swept)), limit=3), output=tmp_path / "run", quiet=True)
    frame = read_run(folder).read_texts()
    found = frame[["condition", "filler", "filler_tokens", "placement"]].drop_duplicates().set_index("condition")
    assert found.loc["he-5-between"].tolist() == ["he", 5, "between"]
    assert found.loc["wo", "filler_tokens"] == 0 and found.loc["wo", ["filler", "placement"]].isna().all()
    assert found.loc["edit-01"].isna().all()
    files = make_plots([str(folder)], tmp_path / "figures", kinds=[Kind.DOSE])
    assert [file.name for file in files] == ["dose.png", "dose.svg", "dose.pdf", "dose.csv"]
    drawn = (tmp_path / "figures/dose.svg").read_text()
    page = make_table([str(folder)])
    assert "Lengths of a filler" in page and "2, 5, 9  " in page
    (row, _) = json.loads(make_table([str(folder)], form="json"))["sweeps"]
    assert (row["filler"], row["lengths"], row["n"], row["shape"]) == ("/", "2 5 9", 3, "none")
    assert "Tokens of filler" in drawn and "rewordings" in drawn
    other = execute(make_plan(load_config(Path(config(model=model))), limit=3), output=tmp_path / "other", quiet=True)
    with pytest.raises(ComparisonError, match="there is nothing to compare with wo"):
        make_plots([str(other)], tmp_path / "figures", kinds=[Kind.DOSE])
