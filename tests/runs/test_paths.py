import json
import shutil
from pathlib import Path

import pytest

from harness.display.table_pages import make_leaderboard_page, make_table
from harness.errors import ComparisonError, ConfigError, RunError
from harness.runs.paths import locate, locate_one
from tests.make import GREEDY_RUN, TOY_DATA, add_stop, right, write_run

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
    for one in (results / "demo", results / "begun", stock / "a", LOGS[0], results / "reference", results / "nowhere"):
        assert locate([str(one)]) == [one], "its reader says what is wrong with it, if anything is"
    for file in LOGS:
        shutil.copy(file, results / "begun")
    assert results / "begun" not in locate([str(results)]), "logs of a run that did not end are none"


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
        make_table([str(results), str(elsewhere / "demo")])


def test_logs_named_by_condition_are_one_run(results):
    assert locate(["wo=a", str(results / "demo"), "mless=b"]) == [
        results / "demo",
        {"wo": Path("a"), "mless": Path("b")},
    ]
    odd = results / "x=y"
    odd.mkdir()
    assert locate([str(odd)]) == [odd], "what exists is a path"
    with pytest.raises(ConfigError, match=r"the condition 'wo' has a log already, a"):
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
    one = results / "one"
    for condition in ("wo", "mless"):
        (one / condition / "model").mkdir(parents=True)
        for file in GREEDY_RUN.glob(f"samples_demo_{condition}_*"):
            shutil.copy(file, one / condition / "model")
    rows = json.loads(make_table([f"wo={one / 'wo'}", f"mless={one / 'mless'}"], form="json"))["rows"]
    assert [(row["condition"], round(row["accuracy"], 1)) for row in rows] == [("wo", 86.8), ("mless", 87.0)]
    with pytest.raises(Exception, match=r"one is a folder with 2 sample logs: expected one"):
        make_table([f"wo={one}", f"mless={one / 'mless'}"])
    with pytest.raises(RunError, match=r"reference is a folder with 0 sample logs: expected one"):
        make_table([f"wo={results / 'reference'}"])


@pytest.fixture
def two_datasets(tmp_path):
    (tmp_path / "runs").mkdir()
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps({"question": f"{i}?", "answer": str(i)}) + "\n" for i in range(4)))
    for name, dataset in (("first", TOY_DATA), ("second", {"path": str(data)})):
        write_run(tmp_path / "runs" / name, right, dataset=dataset, limit=4, audit=False)
    return tmp_path / "runs"


def test_a_leaderboard_has_a_table_for_each_dataset(two_datasets):
    page = make_leaderboard_page([str(two_datasets)])
    said = " ".join(page.split())  # a long path folds its title
    for name, folder in (("demo", "first"), ("own", "second")):
        assert f"{name}, {two_datasets / folder}: made, raw, 4 problems, 1 sample each" in said
    assert page.count("receipt: ") == 2
    boards = json.loads(make_leaderboard_page([str(two_datasets)], form="json"))
    assert [board["receipt"][0]["dataset_name"] for board in boards] == ["demo", "own"]
    with pytest.raises(
        ConfigError, match=r"CSV holds one table: expected the runs of one, got tables of demo, .*first; own, .*second"
    ):
        make_leaderboard_page([str(two_datasets)], form="csv")
    one = json.loads(make_leaderboard_page([str(two_datasets / "first")], form="json"))
    assert one["schema"] == boards[0]["schema"] and "demo, " not in make_leaderboard_page([str(two_datasets / "first")])


def test_a_leaderboard_has_a_table_for_each_of_runs_that_repeat_or_contradict_another(results):
    shutil.rmtree(results / "stock")
    shutil.copytree(GREEDY_RUN, results / "again")
    shutil.copytree(GREEDY_RUN, results / "sampled")
    add_stop(results / "sampled")
    page = make_leaderboard_page([str(results)])
    blocks = [" ".join(block.split()) for block in page.split("\n\n")]  # a long path folds its title
    titles = [block.removeprefix("demo, ") for block in blocks if block.startswith("demo, ")]
    said = "mless-demo, raw, 500 problems, 1 sample each"
    assert titles == [f"{results / name}: {said}" for name in ("again", "demo", "sampled")]
