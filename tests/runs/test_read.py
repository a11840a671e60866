import json
import shutil
from pathlib import Path

import pytest

from harness.errors import ComparisonError, ConfigError, RunError
from harness.experiment.prompt import hash_problem
from harness.runs.find_lm_eval_files import find_logs
from harness.runs.join_runs import group_by_table, join
from harness.runs.read_runs import Run, locate, locate_one
from harness.runs.run_folder import read_prompts
from tests.commands.test_cli import here, refused
from tests.make import (
    DATE,
    GREEDY_RUN,
    TOY_DATA,
    add_stop,
    evaluation,
    log_line,
    right,
    table_page,
    write_log,
    write_run,
)


def both(tmp_path, lines=None, **results):
    plain = [log_line(i) for i in range(20)]
    return {
        "wo": write_log(tmp_path, plain),
        "mless": write_log(tmp_path, plain if lines is None else lines, number=2, **results),
    }


def test_logs_of_the_same_problems_are_one_run(tmp_path):
    run = Run.load(both(tmp_path))
    assert len(run.samples) == 40 and len(run.problems) == 20
    assert run.about["sampling"] == {"do_sample": False} and run.about["greedy"]
    assert run.about["task_version"] == 3
    assert run.about["settings"] == {
        "backend": "hf",
        "model": "some/model",
        "model_args": {"dtype": "float32"},
        "system_instruction": "",
        "num_fewshot": 0,
    }


def test_a_run_and_its_logs_have_the_same_problems():
    run = Run.load(GREEDY_RUN)
    (log,) = GREEDY_RUN.glob("samples_demo_random_*")
    assert Run.load(log).problems == run.problems and len(run.problems) == 500
    docs = {
        row.condition: row.doc
        for row in read_prompts(GREEDY_RUN)
        if row.doc["id"].endswith("/7.json")
    }
    hashes = {name: hash_problem(doc, doc["answer"]) for name, doc in docs.items()}
    assert len(hashes) == 4 and len({*hashes.values()}) == 1, (
        "the condition is no part of the problem"
    )
    changed = {**docs["wo"], "problem": "Another?"}
    assert hash_problem(changed, changed["answer"]) != hashes["wo"] != hash_problem(docs["wo"], "0")
    assert hash_problem({"user": "a"}, "0") != hash_problem({"user": "b"}, "0"), (
        "another task's own field"
    )


def test_a_log_of_ours_is_of_the_layout_that_was_run(tmp_path):
    layouts = {"raw", "chat", "as_published"}
    run = write_run(tmp_path / "run", right, conditions=["mless"], layouts=sorted(layouts), limit=2)
    assert {prompt.layout for log in find_logs(run) for prompt in Run.load(log).prompts} == layouts


OTHER = [
    (
        {"lines": [log_line(i, f"Another, {i}?") for i in range(20)]},
        "has different problems with the same ids: 0, 1, 2 and 17",
    ),
    (
        {"lines": [log_line(i, target="0") for i in range(20)]},
        "has different problems with the same ids: 1, 2, 3",
    ),
    (
        {"configs": {"task": {"generation_kwargs": {"do_sample": True}}}},
        "generation_kwargs.do_sample: false -> true",
    ),
    ({"configs": {"task": {"num_fewshot": 8}}}, "num_fewshot: 0 -> 8"),
    ({"system_instruction": "Be brief."}, 'system_instruction: "" -> "Be brief."'),
    (
        {"config": {"model": "vllm", "model_args": "pretrained=some/model,dtype=float32"}},
        'backend: "hf" -> "vllm"',
    ),
    (
        {
            "config": {
                "model": "hf",
                "model_args": {"pretrained": "some/model", "dtype": "bfloat16"},
            }
        },
        'model_args.dtype: "float32" -> "bfloat16"',
    ),
    (
        {"config": {"model": "hf", "model_args": "pretrained=other/model,dtype=float32"}},
        'model: "some/model" -> "other/model"',
    ),
    ({"versions": {"task": 4}}, "task_version: 3.0 -> 4.0"),
]


@pytest.mark.parametrize(("changes", "message"), OTHER)
def test_logs_of_other_problems_settings_or_versions_are_refused(tmp_path, changes, message):
    with pytest.raises(ComparisonError, match=f"2026-01-02.*{message}"):
        Run.load(both(tmp_path, **changes))


def test_settings_that_change_nothing_may_differ(tmp_path):
    arguments = {"pretrained": "some/model", "dtype": "float32", "gpu_memory_utilization": 0.5}
    assert Run.load(
        both(tmp_path, config={"model": "hf", "model_args": arguments, "random_seed": 0})
    )
    logs = both(tmp_path, configs={"task": {"num_fewshot": 8}})
    logs["mless"] = logs["mless"].rename(tmp_path / "renamed.jsonl")
    assert Run.load(logs), "what is not known is not compared"
    logs = both(tmp_path, versions={"other": 4})
    logs["mless"] = logs["mless"].rename(
        tmp_path / logs["mless"].name.replace("samples_task", "samples_other")
    )
    assert Run.load(logs).about["task_version"] is None, "another task has versions of its own"


def test_our_tasks_have_one_version(tmp_path):
    for file in (*GREEDY_RUN.glob("samples_*"), *GREEDY_RUN.glob("results_*")):
        shutil.copy(file, tmp_path)
    (file,) = tmp_path.glob("results_*")
    results = json.loads(file.read_text())
    file.write_text(json.dumps({**results, "versions": {**results["versions"], "demo_mless": 1.0}}))
    with pytest.raises(ComparisonError, match=r"task_version: (6.0 -> 1.0|1.0 -> 6.0)"):
        Run.load(tmp_path)


def test_a_log_is_whole(tmp_path):
    with pytest.raises(RunError, match="samples are missing: expected 20, got 19"):
        Run.load(both(tmp_path, [log_line(i) for i in range(19)]))
    with pytest.raises(RunError, match="line 2: problem 0 occurs twice"):
        Run.load({"wo": write_log(tmp_path, [log_line(0), log_line(0)])})


BAD_LINES = [
    (json.dumps(log_line(1, **changes)), message)
    for changes, message in (
        ({"doc": None}, r"\$.doc"),
        ({"arguments": {}}, "no prompt text in its `arguments`"),
        ({"exact_match": [1]}, "'exact_match' is \\[1\\]: expected 0 or 1"),
        ({"exact_match": float("nan")}, "'exact_match' is nan: expected 0 or 1"),
    )
] + [
    ("{", "not a line of lm_eval"),
    ("\udcff", "not a line of lm_eval"),
    ("3", "got `int`"),
    ('{"doc_id": 0}', "`doc`"),
]


@pytest.mark.parametrize(("text", "message"), BAD_LINES)
def test_a_line_that_is_no_sample_is_named(tmp_path, text, message):
    path = write_log(tmp_path, [log_line(0)])
    path.write_text(path.read_text() + text + "\n", errors="surrogateescape")
    with pytest.raises(RunError, match=f"line 2: .*{message}"):
        Run.load({"wo": path})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no results file"),
        ("[]", "got `array`"),
        ('{"config": "x"}', r"\$.config"),
        ('{"config": {"model_args": 3}}', r"\$.config.model_args"),
        ('{"configs": {"a": 3}}', r"\$.configs"),
    ],
)
def test_a_results_file_that_is_none_is_named(tmp_path, text, message):
    logs = both(tmp_path)
    (tmp_path / f"results_{DATE.format(2)}.json").write_text(text)
    with pytest.raises(
        RunError, match=rf"results_2026-01-02\S+ .*{message}|results_2026-01-02\S+: .*{message}"
    ):
        Run.load(logs)


@pytest.mark.parametrize(
    "changes", [{"verdict": "Correct"}, {"verdict": ["correct"]}, {"math_verify": "maybe"}]
)
def test_a_grade_that_no_grader_gives_is_refused(tmp_path, changes):
    (log,) = GREEDY_RUN.glob("samples_demo_wo_*")
    lines = [json.loads(text) for text in log.read_text().splitlines()[:3]]
    grade = json.loads(lines[1]["filtered_resps"][0][0])
    lines[1]["filtered_resps"] = [[json.dumps({**grade, **changes})]]
    path = tmp_path / "ours.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(RunError, match=rf"line 2: its grade: .*\$.{next(iter(changes))}"):
        Run.load(path)


def test_a_model_of_another_task_cannot_grade_itself(tmp_path):
    boast = json.dumps({"verdict": "correct", "answer": "x"})
    path = write_log(
        tmp_path, [log_line(i, filtered_resps=[boast], exact_match=0.0) for i in range(20)]
    )
    assert Run.load({"wo": path}).samples["correct"].sum() == 0
    changed = write_log(
        tmp_path, [log_line(i, doc={"segments": 3, "condition": 3}) for i in range(20)]
    )
    assert len(Run.load({"wo": changed}).samples) == 20, "another task's fields of the same names"


def test_runs_of_one_label_agree_in_their_settings(tmp_path):
    ours = Run.load(GREEDY_RUN)
    assert ours.about["settings"] == {
        "backend": "vllm",
        "model_args": {"dtype": "float32", "max_model_len": "4096", "enforce_eager": "True"},
        "instruction": None,
        "seed": 1234,
        "limit": None,
    }
    shutil.copytree(GREEDY_RUN, tmp_path / "second")
    path = tmp_path / "second" / "run.json"
    receipt = json.loads(path.read_text())

    def second(config=None, model=None, **changes):
        changed = {
            **receipt["config"],
            **(config or {}),
            "model": {**receipt["config"]["model"], **(model or {})},
        }
        path.write_text(json.dumps({**receipt, "config": changed, **changes}))
        return Run.load(path.parent)

    for change, message in (
        ({"config": {"instruction": "In French."}}, 'instruction: null -> "In French."'),
        (
            {"model": {"model_args": {"dtype": "bfloat16"}}},
            'model_args.dtype: "float32" -> "bfloat16"',
        ),
        ({"seed": 2}, "seed: 1234 -> 2"),
        ({"limit": 500}, "limit: null -> 500"),
        ({"task_version": 1.0}, "task_version: 6.0 -> 1.0"),
        ({"grader_version": 1}, "grader_version: 6 -> 1"),
        ({"prompt_version": 9}, "prompt_version: 1 -> 9"),
    ):
        with pytest.raises(ComparisonError, match=f"second cannot be compared with .*{message}"):
            join([ours, second(**change)])
    with pytest.raises(ComparisonError, match="is given twice"):
        join([ours, ours])
    with pytest.raises(ComparisonError, match=r"sampling.until: "):
        add_stop(path.parent)
        join([ours, second()])
    assert len(join([ours, second(model={"label": "another"}, seed=2)])) == 4000, (
        "another label, another model"
    )


def test_one_dataset_is_the_same_problems():
    def of(name, problems=None, dataset=None):
        run = evaluation({"wo": [["correct"]]}, model=name, dataset=dataset)
        object.__setattr__(run, "problems", problems or {})
        return run

    first, same, other_dataset = (
        of("a", dataset="1" * 64),
        of("b", dataset="1" * 64),
        of("c", dataset="2" * 64),
    )
    assert group_by_table([first, other_dataset, same]) == [[first, same], [other_dataset]]
    log, subset, stranger = (
        of("d", {"1": "x", "2": "y"}),
        of("e", {"1": "x"}),
        of("f", {"1": "z", "2": "y"}),
    )
    elsewhere, unknown = of("g", {"9": "x"}), of("h")
    assert group_by_table([log, stranger, subset, elsewhere, unknown]) == [
        [log, subset, unknown],
        [stranger],
        [elsewhere],
    ]
    for pair, message in (
        ([first, other_dataset], "another dataset: 1111"),
        ([other_dataset, first], "another dataset: 2222"),
        ([log, stranger], "different problems have the ids 1"),
        ([log, elsewhere], "they have no problem in common"),
    ):
        with pytest.raises(ComparisonError, match=message):
            join(pair)


@pytest.mark.parametrize("command", ["table", "plot", "report", "show"])
def test_every_command_refuses_in_one_line(tmp_path, command, capsys, monkeypatch):
    folder = tmp_path / "run"
    shutil.copytree(GREEDY_RUN, folder)
    options = ["-o", str(tmp_path / "out")] if command in ("plot", "report") else []
    refused(here(capsys, monkeypatch, command, str(folder), "--metric", "acc"), "--metric acc")
    (folder / "run.json").write_bytes(b'{"tasks":\xff}')
    refused(
        here(capsys, monkeypatch, command, str(folder), *options),
        "run.json is incomplete or damaged",
    )
    shutil.copy(GREEDY_RUN / "run.json", folder)
    journal = folder / "journal.jsonl"
    journal.write_text(
        "".join(line for line in journal.read_text().splitlines(True) if "/7.json" not in line)
    )
    refused(here(capsys, monkeypatch, command, str(folder), *options), "expected 2000, got 1996")
    logs = both(tmp_path / "logs", [log_line(i, f"Other {i}") for i in range(20)])
    named = [f"{name}={path}" for name, path in logs.items()]
    if command != "show":  # which takes one
        refused(here(capsys, monkeypatch, command, *named, *options), "with the same ids")
    assert Run.load(GREEDY_RUN, metric="verdict").metric == "verdict"


LOGS = sorted([*GREEDY_RUN.glob("samples_*"), *GREEDY_RUN.glob("results_*")])


@pytest.fixture
def results(tmp_path):
    """A user's results folder: a run, a begun one, what lm-eval wrote for two models, and other things."""
    folder = tmp_path / "results"
    shutil.copytree(GREEDY_RUN, folder / "demo")
    (folder / "begun").mkdir()
    shutil.copy(GREEDY_RUN / "journal.jsonl", folder / "begun")
    for model in ("a", "b"):
        (folder / "stock" / model).mkdir(parents=True)
        for file in LOGS:
            shutil.copy(file, folder / "stock" / model)
    (folder / "reference").mkdir()
    (folder / "reference" / "x.yaml").write_text("x")
    return folder


def test_a_folder_stands_for_the_finished_runs_in_it(results):
    stock = results / "stock"
    assert locate([str(results)]) == [results / "demo", stock / "a", stock / "b"]
    assert locate([str(stock)]) == [stock / "a", stock / "b"]
    for path in (
        results / "demo",
        results / "begun",
        stock / "a",
        LOGS[0],
        results / "reference",
        results / "nowhere",
    ):
        assert locate([str(path)]) == [path], (
            "its reader says what is wrong with it, if anything is"
        )
    for file in LOGS:
        shutil.copy(file, results / "begun")
    assert results / "begun" not in locate([str(results)]), (
        "logs of a run that did not end are none"
    )


def test_a_link_beside_its_run_is_no_second_run(results):
    there = locate([str(results)])
    (results / "a-latest").symlink_to(results / "demo")
    (results / "latest-logs").symlink_to(results / "stock")
    assert locate([str(results)]) == there
    elsewhere = results.rename(results.with_name("moved"))
    results.mkdir()
    (results / "link").symlink_to(elsewhere / "demo")
    assert locate([str(results)]) == [results / "link"]
    with pytest.raises(ComparisonError, match=r"demo is given twice"):
        table_page(results, elsewhere / "demo")


def test_logs_named_by_condition_are_one_run(results):
    assert locate(["wo=a", str(results / "demo"), "mless=b"]) == [
        results / "demo",
        {"wo": Path("a"), "mless": Path("b")},
    ]
    odd = results / "x=y"
    odd.mkdir()
    assert locate([str(odd)]) == [odd], "what exists is a path"
    with pytest.raises(ConfigError, match=r"the condition 'wo' already has the log a"):
        locate(["wo=a", "wo=b"])
    with pytest.raises(ConfigError, match="xxx: expected a run's path: File name too long"):
        locate(["x" * 5000])


def test_one_run_is_one(results):
    assert locate_one([str(results / "demo")]) == results / "demo"
    shutil.rmtree(results / "stock")
    assert locate_one([str(results)]) == results / "demo"
    with pytest.raises(ConfigError, match=r"Expected one run, got 2: .*demo, .*begun"):
        locate_one([str(results / "demo"), str(results / "begun")])


def test_a_folder_holding_one_log_is_that_log(results):
    folder = results / "one"
    for condition in ("wo", "mless"):
        (folder / condition / "model").mkdir(parents=True)
        for file in GREEDY_RUN.glob(f"samples_demo_{condition}_*"):
            shutil.copy(file, folder / condition / "model")
    rows = json.loads(table_page(f"wo={folder / 'wo'}", f"mless={folder / 'mless'}", form="json"))[
        "rows"
    ]
    assert [(row["condition"], round(row["accuracy"], 1)) for row in rows] == [
        ("wo", 86.8),
        ("mless", 87.0),
    ]
    with pytest.raises(Exception, match=r"one is a folder with 2 sample logs: expected one"):
        table_page(f"wo={folder}", f"mless={folder / 'mless'}")
    with pytest.raises(RunError, match=r"reference is a folder with 0 sample logs: expected one"):
        table_page(f"wo={results / 'reference'}")


@pytest.fixture
def two_datasets(tmp_path):
    (tmp_path / "runs").mkdir()
    data = tmp_path / "own.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"{i}?", "answer": str(i)}) + "\n" for i in range(4))
    )
    for name, dataset in (("first", TOY_DATA), ("second", {"path": str(data)})):
        write_run(tmp_path / "runs" / name, right, dataset=dataset, limit=4)
    return tmp_path / "runs"


def test_a_leaderboard_has_a_table_for_each_dataset(two_datasets):
    page = table_page(two_datasets, models=True)
    text = " ".join(page.split())  # a long path folds its title
    for name, folder in (("demo", "first"), ("own", "second")):
        assert f"{name}, {two_datasets / folder}: made, raw, 4 problems, 1 sample each" in text
    assert page.count("receipt: ") == 2
    boards = json.loads(table_page(two_datasets, models=True, form="json"))
    assert [board["receipt"][0]["dataset_name"] for board in boards] == ["demo", "own"]
    with pytest.raises(
        ConfigError,
        match=r"CSV has one table: expected runs that form one table, got tables of demo, .*first; own, .*second",
    ):
        table_page(two_datasets, models=True, form="csv")
    board = json.loads(table_page(two_datasets / "first", models=True, form="json"))
    assert board["schema"] == boards[0]["schema"] and "demo, " not in table_page(
        two_datasets / "first", models=True
    )


def test_a_leaderboard_has_a_table_for_each_of_runs_that_repeat_or_contradict_another(results):
    shutil.rmtree(results / "stock")
    shutil.copytree(GREEDY_RUN, results / "again")
    shutil.copytree(GREEDY_RUN, results / "sampled")
    add_stop(results / "sampled")
    page = table_page(results, models=True)
    blocks = [
        " ".join(block.split()) for block in page.split("\n\n")
    ]  # a long path folds its title
    titles = [block.removeprefix("demo, ") for block in blocks if block.startswith("demo, ")]
    heading = "mless-demo, raw, 500 problems, 1 sample each"
    assert titles == [f"{results / name}: {heading}" for name in ("again", "demo", "sampled")]
