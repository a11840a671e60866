"""What is read for tables, and what of it may stand in one: the same problems, versions and settings, nothing lost."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from harness.analysis.leaderboard import make_leaderboard
from harness.display.table_pages import make_table
from harness.errors import ComparisonError, RunError
from harness.experiment.prompt import hash_problem
from harness.runs.comparable import by_table, join
from harness.runs.folder import read_prompts
from harness.runs.lm_eval_logs.sample_log import find_logs, read_log
from harness.runs.read_run import read_run
from tests.make import DATE, GREEDY_RUN, add_stop, evaluation, log_line, right, write_log, write_run


def both(tmp_path, lines=None, **results):
    """Logs under two conditions; the second has other lines or results."""
    plain = [log_line(i) for i in range(20)]
    return {
        "wo": write_log(tmp_path, plain),
        "mless": write_log(tmp_path, plain if lines is None else lines, number=2, **results),
    }


def test_logs_of_the_same_problems_are_one_evaluation(tmp_path):
    found = read_run(both(tmp_path))
    assert len(found.frame) == 40 and len(found.problems) == 20
    assert (
        found.facts["sampling"] == {"do_sample": False} and found.facts["greedy"] and found.facts["task_version"] == 3
    )
    assert found.facts["settings"] == {
        "backend": "hf",
        "model": "some/model",
        "model_args": {"dtype": "float32"},
        "system_instruction": "",
        "num_fewshot": 0,
    }


@pytest.mark.parametrize(
    "lines",
    [
        [log_line(i, f"Another question, {i}?") for i in range(20)],
        [log_line(i, target="0") for i in range(20)],
        [*[log_line(i) for i in range(17)], *[log_line(i, doc={"question": f"What is {i} ?"}) for i in range(17, 20)]],
    ],
    ids=["questions", "answers", "some"],
)
def test_other_problems_under_the_same_numbers_are_refused(tmp_path, lines):
    logs = both(tmp_path, lines)
    message = (
        r"2026-01-02\S+ asks other problems than \S+2026-01-01\S+: expected the same document and target under the"
    )
    with pytest.raises(ComparisonError, match=message + r" same id, got others for \d+, \d+, \d+"):
        read_run(logs)
    for results in tmp_path.glob("results_*"):
        results.unlink()
    with pytest.raises(ComparisonError, match=message):
        make_table([f"{name}={path}" for name, path in logs.items()])


def test_a_run_and_its_logs_have_the_same_problems():
    run = read_run(GREEDY_RUN)
    (log,) = GREEDY_RUN.glob("samples_demo_random_*")
    assert read_run(log).problems == run.problems and len(run.problems) == 500
    docs = {row["condition"]: row["doc"] for row in read_prompts(GREEDY_RUN) if row["doc"]["id"].endswith("/7.json")}
    hashes = {name: hash_problem(doc, doc["answer"]) for name, doc in docs.items()}
    assert len(hashes) == 4 and len({*hashes.values()}) == 1, "the condition is no part of the problem"
    other = {**docs["wo"], "problem": "Another?"}
    assert hash_problem(other, other["answer"]) != hashes["wo"] != hash_problem(docs["wo"], "0")
    assert hash_problem({"user": "a"}, "0") != hash_problem({"user": "b"}, "0"), "another task's own field"


def test_a_log_of_ours_is_of_the_layout_that_was_run(tmp_path):
    layouts = {"raw", "chat", "as_published"}
    run = write_run(tmp_path / "run", right, conditions=["mless"], layouts=sorted(layouts), audit=False, limit=2)
    found = {layout for log in find_logs(run) for _, layout in read_log(log).arms}
    assert found == layouts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"configs": {"task": {"generation_kwargs": {"do_sample": True}}}},
            "generation_kwargs.do_sample: false -> true",
        ),
        ({"configs": {"task": {"num_fewshot": 8}}}, r"num_fewshot: 0 -> 8\. Run one of them again with the other's"),
        ({"system_instruction": "Be brief."}, 'system_instruction: "" -> "Be brief."'),
        ({"config": {"model": "vllm", "model_args": "pretrained=some/model,dtype=float32"}}, 'backend: "hf" -> "vllm"'),
        (
            {"config": {"model": "hf", "model_args": {"pretrained": "some/model", "dtype": "bfloat16"}}},
            'model_args.dtype: "float32" -> "bfloat16"',
        ),
        (
            {"config": {"model": "hf", "model_args": "pretrained=other/model,dtype=float32"}},
            'model: "some/model" -> "other/model"',
        ),
    ],
)
def test_logs_of_other_settings_are_refused(tmp_path, changes, message):
    with pytest.raises(ComparisonError, match=rf"2026-01-02\S+ was made with other settings than \S+01\S+: {message}"):
        read_run(both(tmp_path, **changes))


def test_settings_that_change_nothing_may_differ(tmp_path):
    arguments = {"pretrained": "some/model", "dtype": "float32", "gpu_memory_utilization": 0.5}
    assert read_run(both(tmp_path, config={"model": "hf", "model_args": arguments, "random_seed": 0}))
    logs = both(tmp_path, configs={"task": {"num_fewshot": 8}})
    logs["mless"] = logs["mless"].rename(tmp_path / "renamed.jsonl")
    assert read_run(logs), "what is not known is not compared"


def test_versions_are_compared_between_logs_of_one_task(tmp_path):
    with pytest.raises(
        ComparisonError, match=r"logs of several task versions: expected one, got 3.0, 4.0. Run the older"
    ):
        read_run(both(tmp_path, versions={"task": 4}))
    logs = both(tmp_path, versions={"other": 4})
    logs["mless"] = logs["mless"].rename(tmp_path / logs["mless"].name.replace("samples_task", "samples_other"))
    assert read_run(logs).facts["task_version"] is None, "another task has versions of its own"
    (tmp_path / "ours").mkdir()
    for file in (*GREEDY_RUN.glob("samples_*"), *GREEDY_RUN.glob("results_*")):
        shutil.copy(file, tmp_path / "ours")
    (file,) = (tmp_path / "ours").glob("results_*")
    results = json.loads(file.read_text())
    file.write_text(json.dumps({**results, "versions": {**results["versions"], "demo_mless": 1.0}}))
    with pytest.raises(ComparisonError, match=r"expected one, got 1\.0, 4\.0"):
        read_run(tmp_path / "ours")


def test_a_log_is_given_once_and_is_whole(tmp_path):
    logs = both(tmp_path)
    with pytest.raises(ComparisonError, match="is given twice: expected one log a condition"):
        read_run({**logs, "mless": logs["wo"]})
    with pytest.raises(RunError, match=r"samples are missing: expected 20, as its results file says, got 19. Restore"):
        read_run(both(tmp_path, [log_line(i) for i in range(19)]))


DEEP = "[" * 100_000
BAD_LINES = [
    ({"doc": None}, r"line 2: doc: expected `object`, got None. Restore the file from a copy, or run"),
    ({"doc_id": [1]}, r"line 2: doc_id"),
    ({"generations": [3]}, r"line 2: generations.0: expected `object`, got 3"),
    ({"filter": 3}, r"line 2: filter: expected `str`, got 3"),
    ({"metrics": 3}, r"line 2: metrics: expected `array | null`, got 3"),
    ({"arguments": 3}, r"line 2: no prompt text in its `arguments`"),
    ({"exact_match": [1]}, r"line 2: no metric 'exact_match' that says right or wrong"),
    ({"exact_match": float("nan")}, r"line 2: exact_match is nan, neither 0 nor 1"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_LINES)
def test_a_line_that_is_no_sample_is_named(tmp_path, changes, message):
    path = write_log(tmp_path, [log_line(0), log_line(1, **changes)])
    with pytest.raises(RunError, match=message):
        read_run({"wo": path})


@pytest.mark.parametrize("text", [DEEP, '{"doc_id": 0, "doc": ' + DEEP, "{", "3", '{"doc_id": 0}', "\udcff"])
def test_a_line_that_is_none_is_named(tmp_path, text):
    path = write_log(tmp_path, [log_line(0)])
    path.write_text(path.read_text() + text + "\n", errors="surrogateescape")
    with pytest.raises(RunError, match=r"line 2: (damaged, expected one JSON object|not a line of a sample log)"):
        read_run({"wo": path})


def test_nesting_that_python_reads_and_cannot_follow_is_refused(tmp_path):
    nested = []
    # json stops at about 1,000 levels, as Python's own calls do; from 3.12 it reads deeper than they reach
    for _ in range(700 if sys.version_info < (3, 12) else 1200):
        nested = [nested]
    path = write_log(tmp_path, [log_line(0), log_line(1, resps=nested)])
    with pytest.raises(RunError, match=r"line 2: (nested too deeply for a sample|damaged)"):
        read_run({"wo": path})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config": "x"}, r"json: config: expected `object`, got 'x'"),
        ({"config": {"model_args": 3}}, r"json: config.model_args"),
        ({"versions": [1]}, r"json: versions: expected `object`, got \[1\]"),
        ({"n-samples": [1]}, r"json: n-samples"),
        ({"configs": {"a": 3}}, r"json: configs\.\.\.\.: expected `object`, got \{'a': 3\}"),
        (
            {"configs": {"a": {"generation_kwargs": {"temperature": float("nan")}}}},
            r"json: configs.*: out of range float values are not JSON",
        ),
        ({"model_name": "a\ud800"}, r"json: model_name: expected `str` without half a surrogate pair"),
        ({"date": 1e30}, r"json: date: expected `float` <= 253402300799(\.0)?, got 1e"),
    ],
)
def test_a_results_file_that_is_none_is_named(tmp_path, changes, message):
    with pytest.raises(RunError, match=message):
        read_run(both(tmp_path, **changes))


@pytest.mark.parametrize("text", ["{", DEEP, "[]"])
def test_a_damaged_results_file_is_named(tmp_path, text):
    logs = both(tmp_path)
    (tmp_path / f"results_{DATE.format(2)}.json").write_text(text)
    with pytest.raises(
        RunError, match=r"results_2026-01-02\S+: the whole: expected|results_2026-01-02\S+ is torn or dam"
    ):
        read_run(logs)


def our_log(tmp_path, change):
    """A log of our task, one line of which is changed."""
    (log,) = GREEDY_RUN.glob("samples_demo_wo_*")
    lines = [json.loads(text) for text in log.read_text().splitlines()[:3]]
    change(lines[1])
    path = tmp_path / "ours.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verdict": "Correct"}, r"line 2: its grade: verdict: expected one of correct, .* got 'Correct'"),
        ({"verdict": ["correct"]}, r"line 2: its grade: verdict: .* got \['correct'\]"),
        ({"answer": ["x"]}, r"line 2: its grade: answer: expected `str . null`, got \['x'\]"),
        ({"math_verify": "maybe"}, r"line 2: its grade: math_verify: expected `bool . null`, got 'maybe'"),
    ],
)
def test_a_grade_that_no_grader_gives_is_refused(tmp_path, changes, message):
    def change(sample):
        grade = json.loads(sample["filtered_resps"][0][0])
        sample["filtered_resps"] = [[json.dumps({**grade, **changes})]]

    with pytest.raises(RunError, match=message):
        read_run(our_log(tmp_path, change))


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (3, "segments: expected `array`, got 3"),
        ([3], "segments.0: expected `object`, got 3"),
        ([{"role": "problem"}], "segments.0.text: it is missing"),
        ([], "system is not what the first segments say"),
        ([{"role": "problem", "text": "short"}], "system is not what the first segments say"),
    ],
)
def test_a_document_of_ours_without_its_segments_is_refused(tmp_path, segments, message):
    path = our_log(tmp_path, lambda sample: sample["doc"].update(segments=segments, system="You are an expert."))
    with pytest.raises(RunError, match=rf"line 2: its document: .*{message}"):
        read_run(path)
    other = write_log(tmp_path, [log_line(0, doc={"segments": segments, "condition": 3})])
    (tmp_path / f"results_{DATE.format(1)}.json").unlink()
    assert len(read_run({"wo": other}).frame) == 1, "another task's fields of the same names"


def test_a_model_of_another_task_cannot_grade_itself(tmp_path):
    boast = json.dumps({"verdict": "correct", "answer": "x"})
    path = write_log(tmp_path, [log_line(i, filtered_resps=[boast], exact_match=0.0) for i in range(20)])
    assert read_run({"wo": path}).frame["correct"].sum() == 0


def test_half_a_pair_in_words_is_spelt_out(tmp_path):
    doc = {"question": "?", "id": "i\ud800", "subject": "s\ud800", "level": "9" * 5000}
    path = write_log(
        tmp_path, [log_line(0, doc=doc, target="t\ud800", resps=[["c\ud800"]], filtered_resps=["a\ud800"])]
    )
    (tmp_path / f"results_{DATE.format(1)}.json").unlink()
    row = read_run({"wo": path}).frame.iloc[0]
    assert [row[n] for n in ("problem_id", "subject", "target", "answer")] == [rf"{c}\ud800" for c in "ista"]
    assert row["level"] == 999_999_999


def test_runs_of_one_label_agree_in_their_settings(tmp_path):
    ours = read_run(GREEDY_RUN)
    assert ours.facts["settings"] == {
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
        changed = {**receipt["config"], **(config or {}), "model": {**receipt["config"]["model"], **(model or {})}}
        path.write_text(json.dumps({**receipt, "config": changed, **changes}))
        return read_run(path.parent)

    for change, message in (
        ({"config": {"instruction": "In French."}}, 'instruction: null -> "In French."'),
        ({"model": {"arguments": {"dtype": "bfloat16"}}}, 'model_args.dtype: "float32" -> "bfloat16"; model_args.enf'),
        ({"seed": 2}, "seed: 1234 -> 2"),
        ({"limit": 500}, "limit: null -> 500"),
    ):
        with pytest.raises(
            ComparisonError, match=f"second has the same model's label, but other settings, .*{message}"
        ):
            join([ours, second(**change)])
    with pytest.raises(ComparisonError, match=r"other sampling, .*\. Leave one out, or give them to separate commands"):
        add_stop(path.parent)
        join([ours, second()])
    shutil.copy(GREEDY_RUN / "journal.jsonl", path.parent)
    with pytest.raises(ComparisonError, match="occurs more than once"):
        make_leaderboard(
            [ours, second(model={"arguments": {**receipt["config"]["model"]["arguments"], "device": "x"}})]
        )
    assert len(join([ours, second(model={"label": "another"}, seed=2)])) == 4000, "another label, another model"


def test_one_dataset_is_the_same_problems():
    def of(name, problems=None, dataset=None):
        one = evaluation({"wo": [["correct"]]}, model=name, dataset=dataset)
        object.__setattr__(one, "problems", problems or {})
        return one

    known, same, other = of("a", dataset="1" * 64), of("b", dataset="1" * 64), of("c", dataset="2" * 64)
    assert by_table([known, other, same]) == [[known, same], [other]]
    log, part, stranger = of("d", {"1": "x", "2": "y"}), of("e", {"1": "x"}), of("f", {"1": "z", "2": "y"})
    elsewhere, unknown = of("g", {"9": "x"}), of("h")
    assert by_table([log, stranger, part, elsewhere, unknown]) == [[log, part, unknown], [stranger], [elsewhere]]
    with pytest.raises(
        ComparisonError, match=r"f has another dataset than .*d: expected the same text and .* for 1\. Comp"
    ):
        join([log, stranger])
    with pytest.raises(
        ComparisonError, match=r"g has another dataset than .*d: expected the same problems, got none that"
    ):
        join([log, elsewhere])


@pytest.mark.parametrize("command", ["table", "leaderboard", "plot", "report", "show"])
def test_a_metric_for_a_run_of_ours_is_refused(command, capsys, monkeypatch):
    from tests.commands.test_cli import here, refused

    said = "is a run of mless, whose verdicts are its own grader's: expected no --metric, which reads logs"
    refused(here(capsys, monkeypatch, command, str(GREEDY_RUN), "--metric", "acc"), said)
    assert read_run(GREEDY_RUN, metric="verdict").metric == "verdict"


@pytest.mark.parametrize("command", ["table", "leaderboard", "plot", "report", "show"])
def test_every_command_refuses_what_is_damaged_in_one_line(tmp_path, command, capsys, monkeypatch):
    from tests.commands.test_cli import here, refused

    folder = tmp_path / "run"
    shutil.copytree(GREEDY_RUN, folder)
    options = ["-o", str(tmp_path / "out")] if command in ("plot", "report") else []
    (folder / "run.json").write_bytes(b'{"tasks":\xff}')
    refused(here(capsys, monkeypatch, command, str(folder), *options), "run.json is torn or damaged")
    (folder / "run.json").write_text('{"format": 1, "tasks": [1], "model": {}}')
    refused(here(capsys, monkeypatch, command, str(folder), *options), "run.json: tasks.0: expected `object`, got 1")
    shutil.copy(GREEDY_RUN / "run.json", folder)
    journal = folder / "journal.jsonl"
    journal.write_text("".join(one for one in journal.read_text().splitlines(True) if "/7.json" not in one))
    missing = "samples are missing: expected 2000, got 1996"
    refused(here(capsys, monkeypatch, command, str(folder), *options), missing)
    logs = both(tmp_path / "logs", [log_line(i, f"Other {i}") for i in range(20)])
    named = [f"{name}={path}" for name, path in logs.items()]
    done = here(capsys, monkeypatch, command, *named, *options)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    for path in logs.values():
        path.write_text(DEEP)
    refused(here(capsys, monkeypatch, command, *named, *options), "line 1: damaged, expected one JSON object")
