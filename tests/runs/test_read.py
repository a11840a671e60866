import json
import shutil
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness import load_run
from harness.analysis.result_tables import make_leaderboard
from harness.display.report.report_page import write_report
from harness.errors import ComparisonError, ConfigError, DataError, RunError
from harness.experiment.conditions import as_condition
from harness.experiment.problems import Problem
from harness.experiment.prompts.prompt import (
    Layout,
    PromptSettings,
    build_prompt,
    hash_problem,
    hash_text,
    make_document,
)
from harness.runs.joined_runs import join_samples
from harness.runs.run_files import JOURNAL, PROMPTS, RECEIPT, SCORES, RunFiles
from harness.runs.run_paths import locate_run, locate_runs
from harness.runs.run_reader import HASH_KEY, Run, source_of
from tests.commands.test_cli import refused
from tests.make import (
    DATE,
    GREEDY_RUN,
    LM_EVAL_LOGS,
    RESULTS,
    add_stop,
    evaluation,
    find_log,
    log_line,
    read_lines,
    small_run,
    table_data,
    table_page,
    with_cases,
    write_log,
    write_records,
)

LOGS = sorted(LM_EVAL_LOGS.glob("*s_*"))
"""The samples and results of lm-eval."""
LINES = [log_line(number) for number in range(20)]


def write_logs(folder, lines=LINES, **results):
    """Logs of two conditions; lines and results can differ in the second."""
    return {
        "wo": write_log(folder, LINES),
        "mless": write_log(folder, lines, number=2, **results),
    }


@with_cases
def test_logs_of_the_same_problems_are_one_run(tmp_path, settings):
    run = Run.load(write_logs(tmp_path))
    assert len(run.samples) == 40 and len(run.problems[HASH_KEY]) == 20
    assert run.about["sampling"] == {"do_sample": False} and run.about["greedy"]
    assert run.about["task_version"] == 3
    assert run.about["settings"] == settings


@with_cases
def test_copies_in_a_log_are_one_cluster_and_have_one_gold_answer(num_fewshot, tmp_path):
    config = {"configs": {"task": {"num_fewshot": num_fewshot}}}
    lines = []
    for number in range(20):
        question = f"What is {number % 5}?"
        shown = f"{number} examples. {question}" if num_fewshot else f"{question}\r\n"
        arguments = {"gen_args_0": {"arg_0": shown, "arg_1": {}}}
        doc = {"question": question, "question_id": number}
        fields = {"doc": doc, "target": str(number % 5), "arguments": arguments}
        lines.append(log_line(number, prompt_hash=hash_text(shown), **fields))
    logs = {
        "wo": write_log(tmp_path, lines, **config),
        "mless": write_log(tmp_path, lines, number=2, **config),
    }
    board = make_leaderboard([Run.load(logs)])
    assert (board.cluster_count, board.copy_count) == (5, 15)
    lines[7]["target"] = "3"
    write_log(tmp_path, lines, **config)
    message = r"line 8: problem 7: the question is that of .*, line 3: problem 2, with another gold"
    with pytest.raises(DataError, match=message):
        Run.load(logs)


def test_a_run_and_its_logs_have_the_same_problems():
    problems = Run.load(GREEDY_RUN).problems[HASH_KEY]
    assert Run.load(find_log("random")).problems[HASH_KEY] == problems and len(problems) == 500
    docs = [row.doc for row in RunFiles(GREEDY_RUN).prompts if row.doc["id"].endswith("/7.json")]
    digest = problems[docs[0]["id"]]
    assert {hash_problem(doc, doc["answer"]) for doc in docs} == {digest}  # of four conditions
    changed = {**docs[0], "problem": "Another?"}
    assert hash_problem(changed, changed["answer"]) != digest != hash_problem(docs[0], "0")
    # a field of another task
    assert hash_problem({"user": "a"}, "0") != hash_problem({"user": "b"}, "0")


@with_cases
def test_logs_of_other_problems_settings_or_versions_are_refused(
    tmp_path, line, config, changes, message
):
    lines = []
    for number in range(20):
        fields = {key: value.format(number) for key, value in line.items()}
        lines.append(log_line(number, **fields))
    refused = pytest.raises(ComparisonError, match=f"2026-01-02.*{message}")
    with refused if message else nullcontext():
        Run.load(write_logs(tmp_path, lines, config={**RESULTS["config"], **config}, **changes))


def test_unknown_settings_and_versions_of_another_task_are_not_compared(tmp_path):
    logs = write_logs(tmp_path, configs={"task": {"num_fewshot": 8}})
    assert Run.load({**logs, "mless": logs["mless"].rename(tmp_path / "renamed.jsonl")})
    logs = write_logs(tmp_path, versions={"other": 4}, configs={"other": {}})
    name = logs["mless"].name.replace("samples_task", "samples_other")
    run = Run.load({**logs, "mless": logs["mless"].rename(tmp_path / name)})
    assert run.about["task_version"] is None


def write_stock_log(folder, form, name, change=()):
    """A log of a stock lm_eval command, raw, chat, messages or wrapped, with one changed prompt."""
    has_filler = name == "filled"
    condition = as_condition({"name": name, "unit": "/", "count": 4} if has_filler else name)
    lines = []
    for number in range(20):
        problem = Problem(id=f"p{number}", problem=f"What is {number}?", answer=str(number))
        prompt = build_prompt(problem, condition, filler_text="/ / / /", settings=PromptSettings())
        doc = make_document(problem, prompt, condition, Layout.RAW)
        if form == "wrapped":
            doc = {"question": problem.problem}
        text = {
            "raw": prompt.text,
            "chat": f"<s>{prompt.system.strip()}</s>\n<u>{prompt.user}</u>",
            "messages": json.dumps(prompt.messages),
            "wrapped": f"<u>{prompt.text}</u>",
        }[form]
        if number == 1 and change:
            text = text.replace(*change)
        sent = [text] if form == "messages" else text
        request = {"gen_args_0": {"arg_0": sent, "arg_1": {}}}
        grade = json.dumps({"verdict": "correct", "answer": "1"})
        lines.append(log_line(number, doc=doc, arguments=request, filtered_resps=[grade]))
    metadata = {"filler_condition": name, "filler": "/ / / / \n\n" if has_filler else ""}
    configs = {"task": {"metadata": metadata} if form == "wrapped" else {}}
    template = "x" if form in ("chat", "wrapped") else None
    return write_log(
        folder, lines, number=2 - (name == "wo"), configs=configs, chat_template=template
    )


@pytest.mark.parametrize("form", "raw chat messages wrapped".split())
@with_cases
def test_logs_whose_prompts_are_not_those_of_their_documents_are_refused(
    name, old, new, message, form, tmp_path
):
    change = (old, new)
    if form == "messages":
        change = [json.dumps(text)[1:-1] for text in change]
    logs = {
        each: write_stock_log(tmp_path, form, each, change if each == name else ())
        for each in ("wo", "filled")
    }
    if form == "wrapped" and message.startswith("lacks its document's") and "/" not in message:
        # which text of another task's document belongs to the prompt is unknown
        message = "has other text around|the question is that of .* another gold answer"
    if not message:
        assert len(Run.load(logs).samples) == 40
        return
    with pytest.raises((RunError, ComparisonError, DataError), match=message) as refusal:
        Run.load(logs)
    assert "samples_task" in str(refusal.value) and "problem " in str(refusal.value)


@with_cases
def test_the_problem_of_a_wrapped_task_is_found_after_its_filler_or_before(tmp_path, text, pieces):
    line = log_line(0, arguments={"gen_args_0": {"arg_0": text, "arg_1": {}}})
    configs = {"task": {"metadata": {"filler_condition": "filled", "filler": "/ / \n\n"}}}
    path = write_log(tmp_path, [line], configs=configs, **{"n-samples": {}})
    (prompt,) = Run.load(path).prompts
    segments = [f"{segment['role']} {segment['text']}" for segment in prompt.doc["segments"]]
    assert segments == pieces


def test_our_tasks_have_one_version(tmp_path):
    for file in LOGS:
        shutil.copy(file, tmp_path)
    (file,) = tmp_path.glob("results_*")
    results = json.loads(file.read_text())
    results["versions"]["demo_mless"] = 1.0
    file.write_text(json.dumps(results))
    with pytest.raises(ComparisonError, match=r"task_version: (6.0 -> 1.0|1.0 -> 6.0)"):
        Run.load(tmp_path)


def test_a_log_with_missing_or_repeated_samples_is_refused(tmp_path):
    with pytest.raises(RunError, match="samples are missing: expected 20, got 19"):
        Run.load(write_logs(tmp_path, LINES[:19]))
    with pytest.raises(RunError, match="line 2: problem 0 occurs twice"):
        Run.load({"wo": write_log(tmp_path, [LINES[0], LINES[0]])})


@with_cases
def test_a_line_that_is_not_a_sample_is_named(tmp_path, line, message):
    text = json.dumps(log_line(1, **line)) if isinstance(line, dict) else line
    path = write_log(tmp_path, LINES[:1])
    path.write_text(path.read_text() + text + "\n", errors="surrogateescape")
    with pytest.raises(RunError, match=f"line 2: .*{message}"):
        Run.load({"wo": path})


@with_cases
def test_a_damaged_results_file_is_named(tmp_path, text, message):
    logs = write_logs(tmp_path)
    (tmp_path / f"results_{DATE.format(2)}.json").write_text(text)
    with pytest.raises(RunError, match=rf"results_2026-01-02\S+:? .*{message}"):
        Run.load(logs)


@with_cases
def test_a_grade_that_no_grader_gives_is_refused(tmp_path, changes):
    first, line, *_ = read_lines(find_log("wo"))
    grade = json.loads(line["filtered_resps"][0][0])
    line["filtered_resps"] = [[json.dumps({**grade, **changes})]]
    path = tmp_path / "ours.jsonl"
    write_records(path, [first, line])
    with pytest.raises(RunError, match=rf"line 2: its grade: .*\$.{next(iter(changes))}"):
        Run.load(path)


def test_a_model_cannot_grade_its_answers_to_another_task(tmp_path):
    grade = json.dumps({"verdict": "correct", "answer": "x"})
    # its documents may have fields with the names of ours
    facts = {"doc": {"segments": 3, "condition": 3}, "filtered_resps": [grade]}
    lines = [log_line(n, exact_match=0.0, **facts) for n in range(20)]
    assert not Run.load({"wo": write_log(tmp_path, lines)}).samples["correct"].any()


@pytest.fixture
def load_second(tmp_path):
    """Loads a copy of GREEDY_RUN with changes of its receipt, its config and its model."""
    shutil.copytree(GREEDY_RUN, tmp_path / "second")
    receipt = json.loads((GREEDY_RUN / RECEIPT).read_text())

    def load(config=(), model=(), **changes):
        changed = {**receipt["config"], **dict(config)}
        changed["model"] = {**changed["model"], **dict(model)}
        text = json.dumps({**receipt, "config": changed, **changes})
        (tmp_path / "second" / RECEIPT).write_text(text)
        return Run.load(tmp_path / "second")

    return load


@with_cases
def test_runs_of_one_label_agree_in_their_settings(load_second, changes, message):
    with pytest.raises(ComparisonError, match=f"second cannot be compared with .*{message}"):
        join_samples([Run.load(GREEDY_RUN), load_second(**changes)])


@with_cases
def test_runs_of_one_label_agree_in_their_sampling_and_another_label_is_another_model(
    load_second, tmp_path, settings
):
    run = Run.load(GREEDY_RUN)
    assert run.about["settings"] == settings
    assert len(join_samples([run, load_second({"seed": 2}, model={"label": "another"})])) == 4000
    with pytest.raises(ComparisonError, match="is given twice"):
        join_samples([run, run])
    add_stop(tmp_path / "second")
    with pytest.raises(ComparisonError, match=r"sampling.until: "):
        join_samples([run, load_second()])


def make_run(name, problems=(), dataset=None):
    run = evaluation({"wo": [["correct"]]}, model=name, dataset=dataset)
    return replace(run, problems={HASH_KEY: dict(problems)})


def test_runs_of_the_same_problems_are_of_one_dataset():
    runs = [make_run(name, dataset="1" * 64) for name in "ab"]
    assert len(join_samples(runs)["model"].unique()) == 2
    log, subset = make_run("c", {"1": "x", "2": "y"}), make_run("d", {"1": "x"})
    assert len(join_samples([log, subset, make_run("unknown")])["model"].unique()) == 3


@with_cases
def test_runs_of_other_problems_are_refused(old, new, message):
    with pytest.raises(ComparisonError, match=message):
        join_samples([make_run("a", **old), make_run("b", **new)])


@with_cases
def test_every_command_refuses_damaged_runs_in_one_line(tmp_path, name, command):
    folder = tmp_path / "run"
    shutil.copytree(GREEDY_RUN, folder)
    output = ["demo/prealgebra/7.json"] if name == "show" else []
    if name in ("plot", "report"):
        output = ["-o", tmp_path / "out"]

    def refuse(message, *arguments):
        refused(command(name, *arguments), message)

    refuse("--metric acc", folder, *output, "--metric", "acc")
    (folder / RECEIPT).write_bytes(b'{"tasks":\xff}')
    refuse("run.json is incomplete or damaged", folder, *output)
    shutil.copy(GREEDY_RUN / RECEIPT, folder)
    lines = (folder / JOURNAL).read_text().splitlines(keepends=True)
    (folder / JOURNAL).write_text("".join(line for line in lines if "/7.json" not in line))
    refuse("expected 2000, got 1996", folder, *output)
    if name != "show":  # which reads one log
        logs = write_logs(tmp_path, [log_line(number, f"Other {number}") for number in range(20)])
        named_logs = [f"{condition}={path}" for condition, path in logs.items()]
        refuse("with the same ids", *named_logs, *output)


def test_every_command_opens_the_files_of_a_run_once(tmp_path, command):
    opened_files = []

    def note_opening(event, arguments):
        if event == "open":
            opened_files.append(Path(str(arguments[0])).name)

    sys.addaudithook(note_opening)
    run = small_run(tmp_path / "run")
    readers = [
        load_run,
        lambda run: table_page(run, requested_keys=("mediators", "audit")),
        lambda run: write_report([run], tmp_path / "report.html"),
        lambda run: source_of(Run.load(run)),
    ]
    for read in readers:
        opened_files.clear()
        read(run)
        assert [opened_files.count(name) for name in (JOURNAL, PROMPTS, SCORES)] == [1, 1, 1]
    opened_files.clear()
    command("regrade", run)  # which opens other files also to write them
    assert opened_files.count(JOURNAL) == 1


def test_the_metric_of_a_run_may_be_named():
    assert Run.load(GREEDY_RUN, metric="verdict").metric == "verdict"


@pytest.fixture
def results(tmp_path):
    """A user's results: a run, an unfinished run, what lm-eval wrote for two models, and a page."""
    folder = tmp_path / "results"
    shutil.copytree(GREEDY_RUN, folder / "demo")
    (folder / "unfinished").mkdir()
    shutil.copy(GREEDY_RUN / JOURNAL, folder / "unfinished")
    for model in ("a", "b"):
        (folder / "stock" / model).mkdir(parents=True)
        for file in LOGS:
            shutil.copy(file, folder / "stock" / model)
    (folder / "reference").mkdir()
    (folder / "reference" / "x.yaml").write_text("x")
    return folder


def test_a_folder_stands_for_the_finished_runs_in_it(results):
    runs = [results / "demo", results / "stock" / "a", results / "stock" / "b"]
    assert locate_runs([str(results)]) == runs and locate_runs([str(results / "stock")]) == runs[1:]
    paths = [results / name for name in ("unfinished", "reference", "nowhere")]
    for path in (*runs, LOGS[0], *paths):
        assert locate_runs([str(path)]) == [path]  # its reader says what is wrong with it
    for file in LOGS:
        shutil.copy(file, results / "unfinished")
    assert locate_runs([str(results)]) == runs  # logs of an unfinished run are not a run


def test_a_link_to_a_run_in_the_same_folder_is_refused_as_the_same_run(results):
    (results / "latest").symlink_to(results / "demo")
    with pytest.raises(ComparisonError, match=r"latest is given twice"):
        table_page(results)


def test_logs_named_by_condition_are_one_run(results):
    logs = {"wo": Path("a"), "mless": Path("b")}
    assert locate_runs(["wo=a", str(results / "demo"), "mless=b"]) == [results / "demo", logs]
    (results / "x=y").mkdir()
    assert locate_runs([str(results / "x=y")]) == [results / "x=y"]  # what exists is a path
    for second in ("wo=b", "mless=a"):
        with pytest.raises(ConfigError, match=f"{second}: its condition or its log is named twice"):
            locate_runs(["wo=a", second])
    with pytest.raises(ConfigError, match="xxx: expected a run's path: File name too long"):
        locate_runs(["x" * 5000])


def test_where_one_run_is_expected_several_are_refused(results):
    assert locate_run([str(results / "demo")]) == results / "demo"
    shutil.rmtree(results / "stock")
    assert locate_run([str(results)]) == results / "demo"
    with pytest.raises(ConfigError, match=r"Expected one run, got 2: .*demo, .*unfinished"):
        locate_run([str(results / "demo"), str(results / "unfinished")])


def test_a_folder_with_one_log_stands_for_the_log(results):
    folder = results / "logs"
    for condition in ("wo", "mless"):
        (folder / condition / "model").mkdir(parents=True)
        shutil.copy(find_log(condition), folder / condition / "model")
    wo, mless = f"wo={folder / 'wo'}", f"mless={folder / 'mless'}"
    rows = table_data(wo, mless)["rows"]
    accuracies = {row["condition"]: row["accuracy"] for row in rows}
    assert accuracies == pytest.approx({"wo": 86.8, "mless": 87.0}, abs=0.05)
    with pytest.raises(RunError, match=r"logs is a folder with 2 sample logs: expected one"):
        table_page(f"wo={folder}", mless)
    with pytest.raises(RunError, match=r"reference is a folder with 0 sample logs: expected one"):
        table_page(f"wo={results / 'reference'}")
