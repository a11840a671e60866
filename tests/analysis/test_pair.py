import json
import re
from dataclasses import replace

import pytest

from harness.analysis import compare, holm
from harness.analysis.pair_comparison import Side, check_not_worse, compare_pair
from harness.analysis.result_tables import make_leaderboard
from harness.commands.compare import EXIT_CODE_BY_RESULT
from harness.display.table_page import table_json
from harness.errors import ComparisonError, RunError
from harness.runs.run_reader import Run
from harness.runs.samples_frame import load_run
from tests.make import (
    CONTROL,
    GREEDY_RUN,
    REGISTERED,
    by_condition,
    drawn,
    evaluation,
    find_log,
    log_line,
    make_board,
    right,
    table_page,
    with_cases,
    write_records,
    write_run,
)

WO, MLESS, LOG = (
    f"{GREEDY_RUN}:wo",
    f"{GREEDY_RUN}:mless",
    find_log("wo"),
)
COLUMNS = "accuracy difference low high p wrong_to_right right_to_wrong answered_difference".split()


@with_cases
def test_two_sides_are_paired_by_problem(old, name):
    old, name = (text.format(run=GREEDY_RUN, log=LOG) for text in (old, name))
    frame = load_run(GREEDY_RUN)
    expected = compare(frame[frame["condition"].isin(["wo", "mless"])])
    board = compare_pair(Side.read(old), Side.read(MLESS))
    assert board.comparison["condition"].tolist() == [name, "greedy_run:mless"]
    assert board.baseline == name
    row, expected_row = (table.iloc[-1][COLUMNS].tolist() for table in (board.comparison, expected))
    assert row == pytest.approx(expected_row)
    names = dict.fromkeys([old.partition(":")[0], str(GREEDY_RUN)])
    assert [entry["name"] for entry in board.receipts] == [*names]


def log(path, scores, **facts):
    """A sample log of another task, whose filter `loose` reverses every score."""
    lines = [log_line(number, exact_match=float(score)) for number, score in enumerate(scores)]
    reverse = [{**line, "exact_match": 1 - line["exact_match"]} for line in lines]
    lines = [{**line, "filter": "strict", **facts} for line in lines]
    lines += [{**line, "filter": "loose", **facts} for line in reverse]
    write_records(path, lines)
    return str(path)


HALF = [1, 0] * 200


@pytest.fixture
def compare_logs(tmp_path, command):
    """`mless compare` of two logs with these scores."""

    def run(old_scores, new_scores, *options):
        old, new = log(tmp_path / "old.jsonl", old_scores), log(tmp_path / "a - b", new_scores)
        return command("compare", old, new, *options)

    return run


@with_cases
def test_the_exit_code_tells_whether_accuracy_fell(lost, options, code, message, compare_logs):
    process = compare_logs(HALF, [0] * lost + HALF[lost:], *options.split())
    assert process.returncode == code and message in process.stderr
    has_table = "old.jsonl" in process.stdout and "+/-" in process.stdout
    assert has_table == (code != 2)  # points out of range are refused before the table


def test_accuracies_of_0_cannot_be_judged(compare_logs):
    process = compare_logs([0] * 400, [0] * 400, "--not-worse-by", "5")
    assert process.returncode == 3
    assert "both accuracies are 0 %" in process.stderr


@with_cases
def test_the_gate_heeds_the_positive_control_and_looks(accuracy, mless, facts, code, message):
    verdicts = drawn(3, 200, 1, {"wo": 0.5, "mless": mless, "control": accuracy})
    run = evaluation(verdicts, reference_conditions=CONTROL, problems=200, **facts)
    samples = run.samples
    sides = [
        Side(name=name, samples=samples[samples["condition"] == name], run=run)
        for name in ("wo", "mless")
    ]
    result, text = check_not_worse(compare_pair(*sides), 60)
    assert (EXIT_CODE_BY_RESULT[result], text) == (code, message)


def test_the_number_of_problems_for_a_power_of_80_percent_is_suggested():
    """Of two conditions with an accuracy of 50 percent, at a margin of 3 points."""
    result, message = check_not_worse(make_board(drawn(4, 200, 1, {"wo": 0.5, "mless": 0.5})), 3)
    suggested = int(re.search(r"about ([\d,]+) problems", message)[1].replace(",", ""))
    assert result == "not shown" and suggested == pytest.approx(4400, rel=0.2)  # (2.8 x 70.7 / 3)^2


def test_sides_with_other_problems_are_refused(tmp_path):
    run = write_run(tmp_path / "run", right, limit=2)
    with pytest.raises(ComparisonError, match="its problems are not those of the baseline"):
        compare_pair(Side.read(WO), Side.read(f"{run}:wo"))


CHANCES = {"wo": 0.4, "mless": 0.7, "mful": 0.4, "random": 0.15}
FEWER = {"primary": "mless - wo", "contrasts": ["mless - wo"]}


def draw_runs(*facts):
    """A run of each of several models, with what it registered."""
    return [
        evaluation(drawn(seed, 30, 1, CHANCES), model=f"m{seed}", **registered)
        for seed, registered in enumerate(facts)
    ]


def draw_smaller_run(**registered):
    return evaluation(drawn(5, 30, 1, {"wo": 0.4, "mless": 0.5}), model="few", **registered)


def without_baseline(board):
    return board.comparison[board.comparison["condition"] != board.baseline]


@with_cases
def test_a_contrast_of_two_fillers_is_tested_like_any_other(registered, roles):
    board = make_leaderboard(draw_runs(registered))
    table = by_condition(board)
    assert table["role"].to_dict() == roles
    row = table.loc["mless - random"]
    assert row["baseline primary tests verdict".split()].tolist() == [
        "random",
        True,
        1,
        "better",
    ]
    assert row["p_adjusted"] == row["p"] <= table.loc["mless", "p_adjusted"]
    assert table.loc["mless", "tests"] == 1
    against_random = make_leaderboard(draw_runs({}), baseline="random")
    expected = by_condition(against_random).loc["mless"]
    columns = "accuracy difference p wrong_to_right equivalence_low".split()
    assert row[columns].tolist() == expected[columns].tolist()
    both = make_leaderboard([*draw_runs(registered), draw_smaller_run(**registered)])
    assert both.comparison["primary"].sum() == 1  # the smaller run has no random sentence


@with_cases
def test_without_one_registered_family_all_tests_are_one(models, contrasts, arguments):
    board = make_leaderboard(draw_runs(*models), **arguments)
    assert board.primary is None
    assert json.loads(table_json(board))["contrasts"] == contrasts
    tested = without_baseline(board)
    assert set(tested["role"]) == {"tested"} and set(tested["tests"]) == {len(tested)}
    assert tested["p_adjusted"].tolist() == holm(tested["p"]).tolist()


@with_cases
def test_only_what_a_model_registered_is_tested_and_counted(facts, is_smaller, tests):
    run = draw_smaller_run(**facts) if is_smaller else draw_runs({}, facts)[1]
    registered = draw_runs(REGISTERED)
    board, alone = make_leaderboard([*registered, run]), make_leaderboard(registered)
    assert (board.primary, list(board.contrasts)) == ("mless - wo", REGISTERED["contrasts"])
    table = without_baseline(board)
    roles = ["tested"] * len(tests) + ["exploratory"] * (len(table) - len(tests))
    assert table["tests"].dropna().tolist() == tests and table["role"].tolist() == roles
    assert table["primary"].sum() == table["model"][table["role"] == "tested"].nunique()
    # a model with contrasts of its own shares alpha, which changes p but no interval
    columns = ["low", "p_adjusted"] if len(tests) == 3 else ["low"]
    assert table[columns].iloc[0].tolist() == without_baseline(alone)[columns].iloc[0].tolist()


def test_runs_of_one_model_that_have_one_condition_each_are_one_family():
    runs = []
    for name in CHANCES:
        contrasts = [] if name == "wo" else [f"{name} - wo"]
        run = evaluation(drawn(5, 30, 1, {name: 0.5}), contrasts=contrasts)
        runs.append(replace(run, name=f"results/{name}"))
    assert list(make_leaderboard(runs).contrasts) == REGISTERED["contrasts"]


def test_compared_with_another_baseline_there_is_no_positive_control():
    chances = {"wo": 0.5, "mless": 0.6, "control": 0.1}
    run = evaluation(drawn(7, 60, 1, chances), **FEWER, reference_conditions=CONTROL)
    board = make_leaderboard([run], baseline="mless")
    assert board.comparison["condition"].tolist() == ["wo", "mless"]
    assert board.reference_conditions == {}
    board = make_leaderboard([run], baseline="control")
    assert board.comparison["condition"].tolist() == ["wo", "mless", "control"]
    assert "difference [95 %]: compared with w/ Mless, in points" in table_page(
        GREEDY_RUN, baseline="mless"
    )


def test_the_journal_says_what_a_run_registered_and_not_the_receipt(tmp_path):
    run = write_run(tmp_path / "run", right, contrasts=["mless - wo"], limit=2)
    receipt = (run / "run.json").read_text()
    assert '"mless - wo"' in receipt
    (run / "run.json").write_text(receipt.replace('"mless - wo"', '"mful - wo"'))
    about = Run.load(run).about
    assert (about["primary"], about["contrasts"]) == ("mless - wo", ["mless - wo"])
    journal = (run / "journal.jsonl").read_text()
    damaged = journal.replace('"contrasts":[["mless","wo"]]', '"contrasts":[["mless",7]]', 1)
    (run / "journal.jsonl").write_text(damaged)
    with pytest.raises(RunError, match=r"journal.jsonl: .*\$.contrasts\[0\]\[1\]"):
        Run.load(run)
