"""Examples before the question: which are drawn, where they stand, and what a run and the probe make of them."""

import json
import re
from collections import Counter

import pandas
import pytest
from msgspec.structs import replace

from attention_probe.prompts.token_roles import ABSENT, FILLER, ROLES, tokenize
from harness import load_run
from harness.display.dry_run import describe_plan
from harness.display.report.report_samples import read_samples
from harness.errors import HarnessError
from harness.experiment.conditions import Condition, Placement
from harness.experiment.fewshot_examples import Draw, FewshotConfig
from harness.experiment.plan import make_plan, make_requests
from harness.experiment.problems import Problem
from harness.experiment.prompt import (
    Layout,
    PromptSettings,
    build_prompt,
    document_prompt,
    make_document,
)
from harness.experiment.run_config import load_config
from harness.runs.read_runs import Run
from harness.runs.records import stored_prompts
from harness.runs.run_files import read_identity
from harness.runs.run_folder import changes
from tests.commands.test_cli import here
from tests.experiment.test_refusals import MINIMAL, write
from tests.experiment.test_token_checks import build, layouts, sizes
from tests.make import TOY_DATA, read_source, right, table_page, write_run

PRODUCTS = [
    Problem(
        id=f"{a}x{b}", problem=f"{a} x {b}?", answer=str(a * b), cluster=f"{min(a, b)}x{max(a, b)}"
    )
    for a in range(2, 9)
    for b in range(2, 9)
]
PLACED = {
    "before_system": ("/ /|Go.|Q: 2 x 2?\nA: 4|Q: Why?\nA:", ["/ /|Go.|", "2 x 2?", "4", "Why?"]),
    "between": ("Go.|/ /|Q: 2 x 2?\nA: 4|Q: Why?\nA:", ["Go.|", "/ /|2 x 2?", "4", "Why?"]),
    "before_question": ("Go.|Q: 2 x 2?\nA: 4|/ /|Q: Why?\nA:", ["Go.|", "2 x 2?", "4", "/ /|Why?"]),
    "each": ("Go.|/ /|Q: 2 x 2?\nA: 4|/ /|Q: Why?\nA:", ["Go.|", "/ /|2 x 2?", "4", "/ /|Why?"]),
    "end": ("Go.|Q: 2 x 2?\nA: 4|Q: Why?|/ /|\nA:", ["Go.|", "2 x 2?", "4", "Why?|/ /"]),
}
"""Where a filler of two slashes stands among one example: in the raw layout, and by turns. `|` is the separator."""


def test_draws_take_their_examples_from_one_pool_that_is_never_asked():
    fewshot = FewshotConfig(num_fewshot=4, draws=6, pool=20, seed=1)
    problems, draws = fewshot.split(PRODUCTS, draws_per_problem=6)
    examples = [example for draw in draws for example in draw.examples]
    pool = {example.cluster for example in examples}
    assert [draw.number for draw in draws] == [1, 2, 3, 4, 5, 6]
    assert all(len({example.cluster for example in draw.examples}) == 4 for draw in draws)
    assert not pool & {problem.cluster for problem in problems}
    assert len(problems) in (28, 29), "49 problems less 20, in whole clusters"
    assert len(pool) < len(examples), "draws may share examples"
    assert all(draw.select(problems) == problems for draw in draws)
    assert (problems, draws) == fewshot.split(PRODUCTS, draws_per_problem=6)
    assert (
        problems
        != FewshotConfig(num_fewshot=4, draws=6, pool=20, seed=2).split(
            PRODUCTS, draws_per_problem=6
        )[0]
    )


def test_each_problem_is_asked_with_so_many_draws_and_each_draw_asks_about_equally_many():
    problems, draws = FewshotConfig(num_fewshot=4, draws=6, pool=20).split(
        PRODUCTS, draws_per_problem=2
    )
    selected = [draw.select(problems) for draw in draws]
    times = Counter(problem.id for chosen in selected for problem in chosen)
    assert times == dict.fromkeys((problem.id for problem in problems), 2)
    clusters = [len({problem.cluster for problem in chosen}) for chosen in selected]
    assert max(clusters) - min(clusters) <= 2
    assert sum(map(len, selected)) == sum(len({*chosen}) for chosen in selected)


@pytest.mark.parametrize("placement", PLACED)
def test_where_a_filler_stands_among_examples(placement):
    condition = Condition(name="x", unit="/", count=2, placement=placement)
    draw = Draw(number=0, examples=(PRODUCTS[0],), frame=("Q: ", "\nA: ", ""))
    raw, chat = (
        build_prompt(
            "Why?",
            condition,
            filler_text="/ /",
            settings=PromptSettings(layout=layout, draw=draw, instruction="Go."),
        )
        for layout in (Layout.RAW, Layout.CHAT)
    )
    turns = [turn["content"].replace(" \n\n", "|") for turn in chat.messages]
    assert (raw.text.replace(" \n\n", "|"), turns) == PLACED[placement]
    assert [turn["role"] for turn in chat.messages] == ["system", "user", "assistant", "user"]
    again = document_prompt(make_document(PRODUCTS[1], chat, condition, Layout.CHAT))
    assert (again.messages, again.text) == (chat.messages, chat.text)


def test_without_examples_three_places_are_one():
    placements = (Placement.BETWEEN, Placement.BEFORE_QUESTION, Placement.EACH)
    fillers = [
        Condition(name="x", unit="/", count=2, placement=placement) for placement in placements
    ]
    settings = PromptSettings()
    prompts = {
        build_prompt("Why?", filler, filler_text="/ /", settings=settings).text
        for filler in fillers
    }
    assert len(prompts) == 1


def test_in_every_tokenizer_the_filler_before_each_is_exact_and_examples_keep_their_ids(
    any_tokenizer,
):
    draw = FewshotConfig(num_fewshot=3, seed=1, format="Q: {problem} \nA: {answer}").split(
        PRODUCTS, draws_per_problem=1
    )[1][0]
    conditions = [Condition(name=str(at), unit="/", count=7, placement=at) for at in Placement]
    for layout in layouts(any_tokenizer):
        if layout is Layout.CHAT and "[INST]" in any_tokenizer.chat_template:
            continue  # a template that drops the assistant's turns, which is refused
        _, *filled = build(
            any_tokenizer, Condition(name="wo"), *conditions, layout=layout, draw=draw
        )
        assert [sizes(arm) for arm in filled] == [
            {28 if arm.condition.placement == "each" else 7} for arm in filled
        ]


@pytest.mark.parametrize(
    ("fewshot", "message"),
    [
        (
            {"num_fewshot": 200, "draws": 3},
            "1000 problems in their pool and one question, got 500 problems in 500",
        ),
        ({"path": "few.jsonl"}, "line 2 (problem): answer: Field required"),
        ({"num_fewshot": 3}, "expected 220 filler tokens, got 656"),
    ],
)
def test_examples_that_cannot_be_are_refused_before_the_model(
    fewshot, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.jsonl").write_text('{"problem": "1+1", "answer": 2}\n{"problem": "1+2"}\n')
    conditions = ["wo", {"name": "x", "unit": "qx", "placement": "each"}]
    config = {**MINIMAL, "dataset": TOY_DATA, "conditions": conditions, "fewshot": fewshot}
    with pytest.raises(HarnessError, match=re.escape(message)):
        make_plan(load_config(write(tmp_path, config)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four samples a problem, two with each draw; with the filler all of the first draw are wrong."""
    settings = {
        "gen_kwargs": {"temperature": 1},
        "repeats": 4,
        "layouts": ["raw", "chat"],
        "limit": 5,
    }
    settings |= {
        "conditions": ["wo", {"name": "x", "unit": "/", "count": 9, "placement": "each"}],
        "primary": "x - wo",
    }

    def answer(request, target):
        return (
            ("so \\boxed{no}", "stop")
            if request.task.endswith("x_draw-1")
            else right(request, target)
        )

    return write_run(
        tmp_path_factory.mktemp("x") / "run",
        answer,
        fewshot={"num_fewshot": 2, "draws": 2},
        **settings,
    )


def test_the_draws_of_a_problem_are_its_samples_and_the_table_shows_each(run, capsys, monkeypatch):
    frame = load_run(run)
    assert [*map(list, frame.groupby("draw")["sample_index"].unique())] == [[0, 1], [2, 3]] and len(
        frame
    ) == 80
    assert frame.groupby("draw")["prompt_sha256"].nunique().tolist() == [20, 20]
    assert len(list(run.glob("samples_demo_x_chat_draw-2_*.jsonl"))) == 1
    page = " ".join(table_page(run).split())
    assert "5 problems, 4 samples each" in page and "x - wo by draw, made, raw: -100.0, 0.0" in page
    assert "for this prompt with these examples" in page and "p are for these examples" in page
    assert json.loads(table_page(run, form="json"))["draws"][0]["differences"] == [-100, 0]
    texts = {
        row["prompt_sha256"]: row["prompt"].prompt_sha256 for row in read_samples([Run.load(run)])
    }
    assert len(texts) == 40 and all(first == second for first, second in texts.items())
    changed = here(
        capsys, monkeypatch, "show", str(run), "--changed", "--condition", "x", "--layout", "raw"
    ).stdout
    assert "listed 5 of 10 problems by draw, changed" in " ".join(changed.split())
    problem = str(frame["problem_id"][0])
    tables = [
        here(capsys, monkeypatch, "show", str(run), name).stdout
        for name in (problem, f"{problem}#2")
    ]
    assert [table.count("w/o, ") for table in tables] == [
        4,
        2,
    ] and f"w/o, raw, {problem}#1" in tables[0]
    plan = make_plan(load_config(run.with_suffix(".yaml")), limit=5)
    assert " in 3 parts " in describe_plan(plan), "before either example and the question"
    assert (
        plan.size
        == len(list(make_requests(plan, plan.config.resolve_sampling(None))))
        == len(frame)
    )
    assert set(plan.lines.values()) == {"demo_wo", "demo_x", "demo_wo_chat", "demo_x_chat"}


def test_each_problem_with_some_of_many_draws(tmp_path):
    """With the filler all answers of two draws are wrong: for new draws nothing is shown."""
    conditions = ["wo", {"name": "x", "unit": "/", "count": 9, "placement": "each"}]
    settings = {
        "conditions": conditions,
        "primary": "x - wo",
        "fewshot": {"num_fewshot": 2, "draws": 5},
    }

    def answer(request, target):
        is_wrong = request.task.endswith(("x_draw-1", "x_draw-2"))
        return ("so \\boxed{no}", "stop") if is_wrong else right(request, target)

    run = write_run(tmp_path / "run", answer, repeats=2, limit=40, **settings)
    frame = load_run(run)
    assert frame.groupby(["condition", "problem_id"], observed=True)["draw"].nunique().eq(2).all()
    assert frame.groupby(["condition", "draw"], observed=True)["problem_id"].nunique().eq(16).all()
    table = json.loads(table_page(run, form="json"))
    row = table["rows"][1]
    assert (
        (row["repeats"], row["draws"], row["difference"]) == (2, 5, -40)
        and row["low"] < -99
        and row["p"] > 0.05
    )
    assert table["draws"][0]["differences"] == [-100, -100, 0, 0, 0]
    assert "for this prompt with new draws of examples" in " ".join(table_page(run).split())
    plan, identity = make_plan(load_config(run.with_suffix(".yaml")), limit=45), read_identity(run)
    assert plan.arms.keys() == identity.arms.keys()
    larger = replace(identity, limit=45, prompts_sha256=plan.prompts_sha256)
    assert changes(run, larger, stored_prompts(plan)) == [], (
        "a run of fewer problems can be continued"
    )


@pytest.mark.parametrize("layout", ["raw", "chat"])
def test_the_probe_knows_the_examples_and_pairs_their_tokens(run, layout, toy_tokenizer):
    problems = read_source(run, layout=layout).problems
    assert (len(problems), len({problem.cluster for problem in problems})) == (10, 5)
    for problem in problems:
        plain, filled = tokenize(problem, toy_tokenizer, conditions=["wo", "x"]).values()
        is_original = filled.original_pos != ABSENT
        assert filled.original_pos[is_original].tolist() == list(range(len(plain)))
        assert (filled.roles[is_original] == plain.roles).all()
        assert set(filled.roles[~is_original]) == {FILLER, ROLES.index("separator")}
        assert filled.has_role("filler").sum() == 27 and filled.has_role("demonstration").any()
        assert filled.has_role("format").any() == (layout == "raw")


def test_traces_are_drawn_by_one_command_and_the_draws_of_a_problem_count_as_one(
    run, tmp_path, capsys, monkeypatch
):
    def call(*words):
        return here(capsys, monkeypatch, *map(str, words))

    traces = tmp_path / "t t.traces"
    assert call("probe", run, "--layout", "raw", "--layers", "1-2", "-o", traces).returncode == 0
    stdout = call("figure", traces, "--heads", "1,4", "-o", tmp_path).stdout
    assert [line.split()[0] for line in stdout.splitlines()] == ["png", "svg", "pdf", "csv"] * 2
    table = pandas.read_csv(tmp_path / "t-t-layer-2.csv")
    assert (
        {*table["layer"]} == {2}
        and {*table["head"]} == {1, 4}
        and {*table["condition"]} == {"wo", "x"}
    )
    assert {*table["prompts"]} == {10} and {*table["clusters"]} == {5}
    for words, message in (
        ((traces, "--layers", 3), "Layer 3 is not in these traces: counted from 1, they hold 1, 2"),
        ((traces, "--heads", 0), "--heads 0: expected .* counted from 1"),
        ((traces, "--set", "name=x"), "--set changes a config"),
        (("flipped-products.yaml", "--heads", 1), "choose from a folder of traces"),
    ):
        assert re.search(message, " ".join(call("figure", *words, "-o", tmp_path).stderr.split()))
