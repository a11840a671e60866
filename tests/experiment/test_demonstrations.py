"""Examples before the question: how they are drawn, placed and used by runs and the probe."""

import json
from collections import Counter
from dataclasses import replace

import yaml

from attention_probe.prompts.token_roles import tokenize_prompts_of_problem
from harness import Run, RunConfig, load_config, load_run
from harness.display.dry_run import describe_plan
from harness.display.report.report_samples import read_samples
from harness.execution.run_execution import run_identity
from harness.experiment.conditions import Placement, as_condition
from harness.experiment.fewshot_examples import FewshotConfig
from harness.experiment.plan import make_plan
from harness.experiment.problems import DatasetConfig, Problem, open_dataset
from harness.experiment.prompts.prompt import (
    Layout,
    PromptSettings,
    build_prompt,
    make_document,
    read_document_prompt,
)
from harness.runs.records import stored_prompts
from harness.runs.run_files import RECEIPT
from tests.attention_probe.test_token_roles import assert_aligned
from tests.experiment.test_checked_prompts import WO, build, filler_sizes, layouts
from tests.experiment.test_conditions import make_config
from tests.experiment.test_data_files import write_lines
from tests.make import (
    ROOT,
    list_requests,
    module_fixture,
    one_line,
    read_source,
    right,
    table_data,
    table_page,
    with_cases,
    write_run,
)

PRODUCTS = [
    Problem(
        id=f"{a}x{b}", problem=f"{a} x {b}?", answer=str(a * b), cluster=f"{min(a, b)}x{max(a, b)}"
    )
    for a in range(2, 9)
    for b in range(2, 9)
]
EXACT_TEMPLATES = [
    "{filler} \n\nQ: {problem}\nA: {answer}",
    "Q: {problem} \n\n{filler} \n\nA: {answer}",
    "Problem: {problem} \nFiller: \n{filler} \nAnswer: {answer} \n\n\n",
    "{problem} \n\n{problem} \n\n{filler} \n\nA: {answer}",
]
"""Templates whose text merges with the filler in no tokenizer."""
CONDITIONS = ["wo", {"name": "x", "unit": "/", "count": 9}]


def test_draws_have_examples_from_one_pool_that_is_not_in_the_questions():
    fewshot = FewshotConfig(num_fewshot=4, draws=6, pool=20, seed=1)
    problems, example_sets, ids = fewshot.split(PRODUCTS, draws_per_problem=6)
    clusters = [{example.cluster for example in drawn.examples} for drawn in example_sets]
    pool = set.union(*clusters)
    assert [drawn.draw for drawn in example_sets] == [1, 2, 3, 4, 5, 6]
    assert {len(examples) for examples in clusters} == {4}
    assert not pool & {problem.cluster for problem in problems}
    assert len(problems) in (28, 29)  # 49 problems less 20, in entire clusters
    assert len(pool) < 4 * 6  # draws may share examples
    assert all(drawn.select_problems(problems) == problems for drawn in example_sets)
    assert (problems, example_sets, ids) == fewshot.split(PRODUCTS, draws_per_problem=6)
    other_seed = fewshot.model_copy(update={"seed": 2})
    assert problems != other_seed.split(PRODUCTS, draws_per_problem=6)[0]


def test_a_users_own_examples_are_in_all_prompts(tmp_path):
    rows = [{"problem": "1 + 1?", "answer": 2}, {"problem": "9 + 9?", "answer": 18}]
    path = write_lines(tmp_path, *rows)
    file, listed, reordered = (
        make_plan(make_config(dataset={"make": "products"}, fewshot={"examples": examples}))
        for examples in (str(path), ["3x7", "7x8"], ["7x8", "3x7"])
    )
    for plan, questions, texts in (
        (file, 121, "Q: 1 + 1?\nA: 2 \n\nQ: 9 + 9?\nA: 18"),
        # nor are other problems of their clusters asked: 7x3, 8x7
        (listed, 117, "Q: What is 3 times 7?\nA: 21 \n\nQ: What is 7 times 8?\nA: 56"),
    ):
        assert len(plan.dataset.problems) == questions
        for _, _, problem, prompt in plan.rows:
            assert prompt.text.endswith(f"{texts} \n\nQ: {problem.problem}\nA:")
        assert RunConfig.model_validate(plan.config.values_with_defaults()) == plan.config
        assert "fewshot" not in plan.config.identity()  # a file may be moved
    write_lines(tmp_path, *rows[::-1])
    plans = [file, make_plan(file.config), listed, reordered]
    identities = [run_identity(plan, plan.config.resolve_sampling(None)) for plan in plans]
    assert len({str(identity.examples) for identity in identities}) == len(plans)


def test_each_draw_has_its_own_instruction():
    texts = ["Go", "Solve", "Answer"]
    for count in (0, 2):
        fewshot = {"num_fewshot": count, "instructions": texts}
        config = make_config(fewshot=fewshot, dataset={"make": "products"})
        tasks = make_plan(config).tasks.values()
        assert {(task.draw, task.prompts[0].text.split()[0]) for task in tasks} == {
            *enumerate(texts, start=1)
        }
        assert {task.prompts[0].text.count("Q: ") for task in tasks} == {1 + count}


def test_the_configs_of_the_registered_experiment_differ_in_their_data_only():
    configs = [
        yaml.safe_load(path.read_text()) for path in (ROOT / "configs/runs").glob("sink-*.yaml")
    ]
    differing = [(config.pop("name"), config.pop("dataset")) for config in configs]
    assert len(differing) == 3
    assert configs[0] == configs[1] == configs[2]


@with_cases
def test_no_question_of_a_shipped_task_gives_away_the_answer_of_another(name):
    problems = open_dataset(DatasetConfig(path=ROOT / f"configs/problems/{name}.jsonl")).problems
    words = Counter(
        word.lower()
        for problem in problems
        for word in (problem.id, problem.answer, *problem.alternatives)
    )
    assert len(problems) >= 160
    assert set(words.values()) == {1}


def test_each_problem_has_as_many_draws_and_each_draw_about_as_many_problems():
    fewshot = FewshotConfig(num_fewshot=4, draws=6, pool=20)
    problems, example_sets, _ = fewshot.split(PRODUCTS, draws_per_problem=2)
    selected = [drawn.select_problems(problems) for drawn in example_sets]
    times = Counter(problem.id for chosen in selected for problem in chosen)
    assert times == dict.fromkeys((problem.id for problem in problems), 2)
    clusters = [len({problem.cluster for problem in chosen}) for chosen in selected]
    assert max(clusters) - min(clusters) <= 2
    assert all(len(set(chosen)) == len(chosen) for chosen in selected)


@with_cases
def test_a_template_is_the_form_of_examples_and_question(keys, text, turns):
    """Of one example and a filler of two slashes. `|` is the separator."""
    condition = as_condition({"name": "x", "unit": "/", "count": 2, **keys})
    settings = PromptSettings(asks_in_text=True, examples=(PRODUCTS[0],), instruction="Go.")
    question = Problem(id="q", problem="Why?", answer="1")
    raw, chat = (
        build_prompt(
            question,
            condition,
            filler_text="/ /",
            settings=replace(settings, layout=layout),
        )
        for layout in (Layout.RAW, Layout.CHAT)
    )
    assert raw.text.replace(" \n\n", "|") == text
    assert [turn["content"].replace(" \n\n", "|") for turn in chat.messages] == turns
    assert [turn["role"] for turn in chat.messages] == "system user assistant user".split()
    stored = read_document_prompt(make_document(PRODUCTS[1], chat, condition, Layout.CHAT))
    assert (stored.messages, stored.text) == (chat.messages, chat.text)


@with_cases
def test_without_its_filler_a_prompt_loses_the_gap_too(template, example, question):
    condition = as_condition({"name": "x", "template": template})
    settings = PromptSettings(examples=(PRODUCTS[0],), instruction="Go.")
    problem = Problem(id="q", problem="Why?", answer="1")
    prompt = build_prompt(problem, condition, filler_text="", settings=settings)
    assert prompt.text == f"Go. \n\n{example}{question}"


@with_cases
def test_former_placements_are_written_as_questions(layout, question, sha256):
    """The hashes are those of the placements `before_question` and `end`."""
    condition = {"name": "x", "unit": "/", "count": 9, "question": question}
    fewshot = {"num_fewshot": 3, "seed": 1}
    settings = {"layouts": [layout], "fewshot": fewshot, "conditions": ["wo", condition]}
    rows = make_plan(make_config(**settings), limit=4).rows
    hashes = [prompt.prompt_sha256 for _, task, _, prompt in rows if task.condition.filler_key]
    assert sha256 in [hash[:16] for hash in hashes]


def test_fillers_among_examples_are_exact_in_every_tokenizer(any_tokenizer):
    fewshot = FewshotConfig(num_fewshot=3, seed=1)
    _, (example_set,), _ = fewshot.split(PRODUCTS, draws_per_problem=1)
    places = [{"placement": placement} for placement in Placement]
    places += [{"template": template} for template in EXACT_TEMPLATES]
    conditions = [
        as_condition({"name": f"x{index}", "unit": "/", "count": 7, **keys})
        for index, keys in enumerate(places)
    ]
    for layout in layouts(any_tokenizer):
        if layout is Layout.CHAT and "[INST]" in any_tokenizer.chat_template:
            continue  # a template that drops the assistant's turns, which is refused
        shared = {"layout": layout, "examples": example_set.examples, "asks_in_text": True}
        _, *filled = build(any_tokenizer, WO, *conditions, **shared)
        for task in filled:
            assert filler_sizes(task) == {28 if task.condition.template else 7}


@with_cases
def test_a_column_may_stand_for_the_problem_and_is_not_in_its_hash(tmp_path, row, condition):
    path = write_lines(tmp_path, row)
    data = {"dataset": {"path": str(path)}, "conditions": ["wo", condition]}
    plan = make_plan(make_config(**data))
    filled = plan.rows[1][-1].requested_prompt
    assert filled.text == "Go 1 {?. \n\nN: 1 {? \n7 {x}"
    assert [segment.text for segment in filled.segments if segment.role == "problem"] == ["1 {?"]
    stored = [prompt.doc["problem"] for prompt in stored_prompts(plan)]
    assert stored == ["1?", "1?"]
    without_row = open_dataset(DatasetConfig(path=path))
    assert plan.full_dataset.sha256 == without_row.sha256


def write_run_of_draws(folder, wrong_draws, draws, **settings):
    """A run in which x is wrong with some of the draws of examples."""
    wrong_tasks = tuple(f"x_draw-{draw}" for draw in wrong_draws)

    def answer(request, target):
        is_wrong = request.task.endswith(wrong_tasks)
        return ("so \\boxed{no}", "stop") if is_wrong else right(request, target)

    settings |= {"conditions": CONDITIONS, "primary": "x - wo", "template": EXACT_TEMPLATES[0]}
    return write_run(folder, answer, fewshot={"num_fewshot": 2, "draws": draws}, **settings)


@module_fixture
def run(tmp_path_factory):
    """Four samples a problem, two with each draw; with the filler, the first draw is wrong."""
    return write_run_of_draws(
        tmp_path_factory.mktemp("x") / "run",
        wrong_draws=[1],
        draws=2,
        gen_kwargs={"temperature": 1},
        repeats=4,
        layouts=["raw", "chat"],
        limit=5,
    )


def test_the_draws_of_a_problem_are_its_samples(run):
    frame = load_run(run)
    draws = frame.groupby("draw")
    assert [*map(list, draws["sample_index"].unique())] == [[0, 2], [1, 3]]
    assert draws["prompt_sha256"].nunique().tolist() == [20, 20]
    samples = read_samples([Run.load(run)])
    hashes = {row["prompt_sha256"]: row["prompt"].prompt_sha256 for row in samples}
    assert len(hashes) == 40
    assert all(recorded == computed for recorded, computed in hashes.items())
    plan = make_plan(load_config(run.with_suffix(".yaml")), limit=5)
    assert " in 3 parts " in describe_plan(plan)  # before both examples and the question
    requests = list_requests(plan)
    assert plan.completion_count == len(requests) == len(frame) == 80
    assert set(plan.line_by_task.values()) == {"demo_wo", "demo_x", "demo_wo_chat", "demo_x_chat"}


def test_tables_show_the_draws(run, command):
    page = one_line(table_page(run))
    for text in (
        "5 problems, 4 samples each",
        "for this prompt with these examples",
        "p are for these examples",
    ):
        assert text in page
    problem = load_run(run)["problem_id"][0]
    all_draws, second_draw = (
        command("show", run, name).stdout for name in (problem, f"{problem}#2")
    )
    assert (all_draws.count("w/o, "), second_draw.count("w/o, ")) == (4, 2)
    assert f"w/o, raw, {problem}#1" in all_draws


def test_each_problem_with_some_of_many_draws(tmp_path):
    """With the filler all answers of two draws are wrong, which is not evidence about new draws."""
    run = write_run_of_draws(tmp_path / "run", wrong_draws=[1, 2], draws=5, repeats=2, limit=40)
    frame = load_run(run)
    assert frame.groupby(["condition", "problem_id"], observed=True)["draw"].nunique().eq(2).all()
    assert frame.groupby(["condition", "draw"], observed=True)["problem_id"].nunique().eq(16).all()
    table = table_data(run)
    row = table["rows"][1]
    assert (row["repeats"], row["draws"], row["difference"]) == (2, 5, -40)
    assert row["low"] < -99
    assert row["p"] > 0.05
    assert "for this prompt with new draws of examples. " in one_line(table_page(run))
    receipt = json.loads((run / RECEIPT).read_text())
    receipt["config"]["fewshot"]["instructions"] = ["Go"] * 5
    (run / RECEIPT).write_text(json.dumps(receipt))
    assert "new draws of examples and their instructions. " in one_line(table_page(run))


@with_cases
def test_the_probe_pairs_the_tokens_of_prompts_with_examples(run, layout, toy_tokenizer):
    problems = read_source(run, layout=layout).problems
    assert (len(problems), len({problem.cluster for problem in problems})) == (10, 5)
    for problem in problems:
        tokenized = tokenize_prompts_of_problem(problem, toy_tokenizer, conditions=["wo", "x"])
        assert_aligned(tokenized)
        filled = tokenized["x"]
        assert filled.has_role("filler").sum() == 27
        assert filled.has_role("demonstration").any()
        assert filled.has_role("format").any()
