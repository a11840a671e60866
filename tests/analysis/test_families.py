import json

import pytest

from harness.analysis import holm
from harness.analysis.leaderboard import as_json, make_leaderboard
from harness.display.table_pages import make_table
from harness.errors import RunError
from harness.runs.read import Run
from tests.make import GREEDY_RUN, REGISTERED, drawn, evaluation, right, write_run

CHANCES = {"wo": 0.4, "mless": 0.7, "mful": 0.4, "random": 0.15}


def of_models(*facts):
    return [evaluation(drawn(i, 30, 1, CHANCES), model=f"m{i}", **one) for i, one in enumerate(facts)]


def test_the_registered_tests_of_all_models_are_one_family():
    board = make_leaderboard(of_models(REGISTERED, REGISTERED))
    tested = board.comparison[board.comparison["condition"] != "wo"]
    assert (board.primary, board.contrasts) == ("mless - wo", ("mless - wo", "mful - wo", "random - wo"))
    assert tested["tests"].tolist() == [2, 4, 4] * 2, "the primary contrast of each model, and the others behind it"
    other = make_leaderboard(of_models(REGISTERED, {**REGISTERED, "primary": "mful - wo"}))
    tested = other.comparison[other.comparison["condition"] != "wo"]
    assert other.primary is None, "they contradict each other"
    assert tested["p_adjusted"].tolist() == holm(tested["p"]).tolist() and set(tested["tests"]) == {6}


def test_a_contrast_of_two_fillers_is_tested_like_any_other():
    named = {"contrasts": ["mless - random", "mless - wo"], "primary": "mless - random"}
    board = make_leaderboard(of_models(named))
    table = board.comparison.set_index("condition")
    assert table.index.tolist() == ["wo", "mless", "mful", "random", "mless - random"]
    assert table["family"].tolist()[1:] == ["registered", "exploratory", "exploratory", "registered"]
    assert table.loc["mless - random", ["baseline", "primary", "tests"]].tolist() == ["random", True, 1]
    other = make_leaderboard(of_models({}), baseline="random").comparison.set_index("condition").loc["mless"]
    shown = table.loc["mless - random"]
    for name in ("accuracy", "difference", "p", "wrong_to_right", "equivalence_low", "problems_up"):
        assert shown[name] == other[name], name
    assert shown["p_adjusted"] == shown["p"] <= table.loc["mless", "p_adjusted"] and table.loc["mless", "tests"] == 1
    assert shown["verdict"] == "better"
    fewer = evaluation(drawn(5, 30, 1, {"wo": 0.4, "mless": 0.5}), model="few", **named)
    pair = make_leaderboard([*of_models(named), fewer])
    assert pair.comparison["primary"].sum() == 1, "one of the two models has no random sentence to compare with"


@pytest.mark.parametrize(
    ("facts", "arguments"),
    [
        ([{}], {}),
        ([{"primary": None, "contrasts": None}], {}),
        ([REGISTERED], {"by": ["level"]}),
        ([REGISTERED], {"baseline": "mless"}),
    ],
    ids=["nothing", "older run", "split", "another baseline"],
)
def test_where_nothing_was_registered_all_tests_are_one_family(facts, arguments):
    board = make_leaderboard(of_models(*facts), **arguments)
    assert board.primary is None and board.contrasts is None and json.loads(as_json(board))["contrasts"] is None
    tested = board.comparison[board.comparison["condition"] != board.baseline]
    assert set(tested["family"]) == {"all"} and set(tested["tests"]) == {len(tested)}
    assert tested["p_adjusted"].tolist() == holm(tested["p"]).tolist()


@pytest.mark.parametrize(
    ("named", "tests"),
    [({}, [1, 2, 2]), ({"primary": "mless - wo", "contrasts": ["mless - wo"]}, [2, 4, 4, 2])],
    ids=["a log", "fewer contrasts"],
)
def test_what_one_model_did_not_register_is_exploratory_there_and_leaves_the_others_registered(named, tests):
    board = make_leaderboard(of_models(REGISTERED, named))
    assert (board.primary, board.contrasts) == ("mless - wo", ("mless - wo", "mful - wo", "random - wo"))
    table = board.comparison[board.comparison["condition"] != "wo"]
    assert table["tests"].dropna().tolist() == tests
    family = ["registered"] * len(tests) + ["exploratory"] * (6 - len(tests))
    assert table["family"].tolist() == family and (table["verdict"] == "exploratory").tolist() == [
        name == "exploratory" for name in family
    ]
    assert table["primary"].sum() == len({*table["model"][table["family"] == "registered"]})
    alone = make_leaderboard(of_models(REGISTERED)).comparison.set_index("condition")
    if not named:
        shown = table[table["model"] == "m0"].set_index("condition")
        assert shown.loc["mless", ["p_adjusted", "low"]].tolist() == alone.loc["mless", ["p_adjusted", "low"]].tolist()


def test_runs_with_other_conditions_each_bring_their_own_tests_to_the_family():
    parts = of_models(REGISTERED, {})
    fewer = evaluation(
        drawn(5, 30, 1, {"wo": 0.4, "mless": 0.5}), model="few", primary="mless - wo", contrasts=["mless - wo"]
    )
    board = make_leaderboard([parts[0], fewer])
    assert board.comparison["tests"].dropna().tolist() == [2, 4, 4, 2] and board.primary == "mless - wo"
    alone = [
        evaluation(drawn(5, 30, 1, {name: 0.5}), contrasts=[] if name == "wo" else [f"{name} - wo"]) for name in CHANCES
    ]
    for number, part in enumerate(alone):
        object.__setattr__(part, "name", f"results/{number}")
    assert make_leaderboard(alone).contrasts == tuple(REGISTERED["contrasts"]), "a run each of one model"


def test_against_another_baseline_there_is_no_prompt_null():
    chances = {"wo": 0.5, "mless": 0.6, "edit-01": 0.5, "edit-02": 0.5}
    whole = evaluation(drawn(7, 60, 1, chances), **{**REGISTERED, "contrasts": ["mless - wo"]})
    board = make_leaderboard([whole], baseline="mless")
    assert board.comparison["condition"].tolist() == ["wo", "mless"] and board.yardsticks == {}
    edit = make_leaderboard([whole], baseline="edit-01")
    assert edit.comparison["condition"].tolist() == ["wo", "mless", "edit-01"]
    assert "difference [95 %]: from w/ Mless in points" in make_table([str(GREEDY_RUN)], baseline="mless")


def test_a_run_is_registered_by_its_journal_not_by_its_receipt(tmp_path):
    run = write_run(tmp_path / "made", right, contrasts=["mless - wo"], limit=2, audit=False)
    assert [Run.load(run).about[name] for name in ("primary", "contrasts")] == ["mless - wo", ["mless - wo"]]
    receipt = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**receipt, "config": {**receipt["config"], "contrasts": ["mful - wo"]}}))
    assert Run.load(run).about["contrasts"] == ["mless - wo"]
    first, *rest = (run / "journal.jsonl").read_text().splitlines()
    header = {**json.loads(first), "contrasts": [["mless", 7]]}
    (run / "journal.jsonl").write_text("\n".join([json.dumps(header), *rest, ""]))
    with pytest.raises(RunError, match=r"journal.jsonl: .*\$.contrasts\[0\]\[1\]"):
        Run.load(run)
