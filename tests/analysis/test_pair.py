import json
import re

import numpy as np
import pytest

from harness.analysis import compare, holm
from harness.analysis.compare_two_conditions import Side, check_not_worse, compare_pair
from harness.analysis.result_tables import as_json, make_leaderboard
from harness.errors import ComparisonError, RunError
from harness.runs.read_runs import Run
from harness.runs.samples_frame import load_run
from tests.commands.test_cli import here, refused
from tests.make import (
    CONTROL,
    GREEDY_RUN,
    REGISTERED,
    drawn,
    evaluation,
    right,
    table_page,
    write_run,
)

LOGS = {name: str(next(GREEDY_RUN.glob(f"samples_demo_{name}_2*"))) for name in ("wo", "mless")}


def numbers(board):
    columns = [
        "accuracy",
        "difference",
        "low",
        "high",
        "p",
        "wrong_to_right",
        "right_to_wrong",
        "answered_difference",
    ]
    return board.comparison.iloc[-1][columns].tolist()


@pytest.fixture(scope="module")
def expected():
    frame = load_run(GREEDY_RUN)
    return compare(frame[frame["condition"].isin(["wo", "mless"])])


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        (f"{GREEDY_RUN}:wo", f"{GREEDY_RUN}:mless", ["greedy_run:wo", "greedy_run:mless"]),
        (str(GREEDY_RUN), f"{GREEDY_RUN}:mless", ["greedy_run:wo", "greedy_run:mless"]),
        (
            LOGS["wo"],
            f"{GREEDY_RUN}:mless",
            [f"{LOGS['wo'].rpartition('/')[2]}:wo", "greedy_run:mless"],
        ),
    ],
    ids=["two conditions", "the baseline unless told", "a log and a run"],
)
def test_two_sides_are_paired_by_problem(old, new, names, expected):
    board = compare_pair(Side.read(old), Side.read(new))
    assert board.comparison["condition"].tolist() == names and board.baseline == names[0]
    assert numbers(board) == pytest.approx(numbers(type("", (), {"comparison": expected})))
    assert [entry["name"] for entry in board.receipt] == [
        *dict.fromkeys(side.partition(":")[0] for side in (old, new))
    ]


def log(path, scores, **more):
    """A sample log of a task that is not ours."""
    lines = [
        {
            "doc_id": number,
            "doc": {"question": f"What is {number}?"},
            "target": "1",
            "arguments": {"gen_args_0": {"arg_0": f"What is {number}?", "arg_1": {}}},
            "resps": [["one"]],
            "filtered_resps": ["one"],
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": float(score),
            "prompt_hash": "h",
            **more,
        }
        for name, flip in (("strict", 0), ("loose", 1))
        for number, score in enumerate(abs(one - flip) for one in scores)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


HALF = [1, 0] * 200


@pytest.mark.parametrize(
    ("scores", "options", "code", "message"),
    [
        (
            HALF,
            ("--not-worse-by", "2"),
            0,
            "new.jsonl loses less than 2 points: the interval's lower end is -0.9.",
        ),
        ([0] * 40 + HALF[40:], ("--not-worse-by", "2"), 1, "new.jsonl is worse: -5.0 points"),
        ([0] * 40 + HALF[40:], ("--not-worse-by", "20"), 0, "new.jsonl loses less than 20 points"),
        (
            [0] * 40 + HALF[40:],
            ("--not-worse-by", "2", "--filter", "loose"),
            0,
            "new.jsonl loses less than 2 points",
        ),
        (
            [0] * 6 + HALF[6:],
            ("--not-worse-by", "1"),
            3,
            "Not shown: the interval's lower end is -2.2. If both are",
        ),
        (
            HALF,
            ("--not-worse-by", "0"),
            2,
            "--not-worse-by: expected points above 0 and below 100, got 0.",
        ),
        ([0] * 40 + HALF[40:], (), 0, ""),
    ],
)
def test_the_gate_is_the_exit_code(scores, options, code, message, tmp_path, capsys, monkeypatch):
    old, new = log(tmp_path / "old.jsonl", HALF), log(tmp_path / "new.jsonl", scores)
    done = here(capsys, monkeypatch, "compare", old, new, *options)
    assert done.returncode == code and message in done.stderr
    assert code == 2 or ("old.jsonl" in done.stdout and "+ / -" in done.stdout)


def test_so_many_problems_as_it_says_pass_the_gate_four_times_in_five():
    draw, points = np.random.default_rng(4), 3

    def board(n):
        right = {name: draw.random(n) for name in ("wo", "mless")}
        verdicts = {
            name: [["correct" if one < 0.5 else "incorrect"] for one in of]
            for name, of in right.items()
        }
        return make_leaderboard([evaluation(verdicts)])

    code, message = check_not_worse(board(200), points)
    needed = int(re.search(r"about ([\d,]+) problems", message)[1].replace(",", ""))
    assert code == 3 and needed == pytest.approx(4400, rel=0.2), "(2.8 x 70.7 / 3)^2"
    passed = sum(check_not_worse(board(needed), points)[0] == 0 for _ in range(20))
    assert passed >= 11


def test_nothing_answered_cannot_be_judged(tmp_path, capsys, monkeypatch):
    old, new = log(tmp_path / "old.jsonl", [0] * 400), log(tmp_path / "new - er.jsonl", [0] * 400)
    done = here(capsys, monkeypatch, "compare", old, new, "--not-worse-by", "5")
    assert done.returncode == 3 and "both accuracies are 0 or 100 %" in done.stderr


def test_what_cannot_be_paired_is_refused(tmp_path, capsys, monkeypatch):
    run = write_run(tmp_path / "made", right, limit=2)
    for old, new, error, said in (
        (f"{GREEDY_RUN}:wo", f"{GREEDY_RUN}:wo", ComparisonError, "is given twice"),
        (
            f"{GREEDY_RUN}:wo",
            f"{GREEDY_RUN}:nope",
            RunError,
            "has no condition 'nope': expected one of wo, mless",
        ),
        (str(GREEDY_RUN), str(tmp_path / "none"), RunError, "none"),
        (
            f"{GREEDY_RUN}:wo",
            f"{run}:wo",
            ComparisonError,
            "its problems are not those of the baseline",
        ),
    ):
        with pytest.raises(error, match=said):
            compare_pair(Side.read(old), Side.read(new))
    part = log(tmp_path / "part.jsonl", [0.5] * 9)
    refused(here(capsys, monkeypatch, "compare", part, part), "is 0.5: expected 0 or 1")


CHANCES = {"wo": 0.4, "mless": 0.7, "mful": 0.4, "random": 0.15}


def of_models(*facts):
    return [
        evaluation(drawn(i, 30, 1, CHANCES), model=f"m{i}", **one) for i, one in enumerate(facts)
    ]


def test_the_registered_tests_of_all_models_are_one_family():
    board = make_leaderboard(of_models(REGISTERED, REGISTERED))
    tested = board.comparison[board.comparison["condition"] != "wo"]
    assert (board.primary, board.contrasts) == (
        "mless - wo",
        ("mless - wo", "mful - wo", "random - wo"),
    )
    assert tested["tests"].tolist() == [2, 4, 4] * 2, (
        "the primary contrast of each model, and the others behind it"
    )
    other = make_leaderboard(of_models(REGISTERED, {**REGISTERED, "primary": "mful - wo"}))
    tested = other.comparison[other.comparison["condition"] != "wo"]
    assert other.primary is None, "they contradict each other"
    assert tested["p_adjusted"].tolist() == holm(tested["p"]).tolist() and set(tested["tests"]) == {
        6
    }


def test_a_contrast_of_two_fillers_is_tested_like_any_other():
    named = {"contrasts": ["mless - random", "mless - wo"], "primary": "mless - random"}
    board = make_leaderboard(of_models(named))
    table = board.comparison.set_index("condition")
    assert table.index.tolist() == ["wo", "mless", "mful", "random", "mless - random"]
    assert table["role"].tolist() == ["baseline", "tested", "exploratory", "exploratory", "tested"]
    assert table.loc["mless - random", ["baseline", "primary", "tests"]].tolist() == [
        "random",
        True,
        1,
    ]
    other = (
        make_leaderboard(of_models({}), baseline="random")
        .comparison.set_index("condition")
        .loc["mless"]
    )
    shown = table.loc["mless - random"]
    for name in ("accuracy", "difference", "p", "wrong_to_right", "equivalence_low"):
        assert shown[name] == other[name], name
    assert (
        shown["p_adjusted"] == shown["p"] <= table.loc["mless", "p_adjusted"]
        and table.loc["mless", "tests"] == 1
    )
    assert shown["verdict"] == "better"
    fewer = evaluation(drawn(5, 30, 1, {"wo": 0.4, "mless": 0.5}), model="few", **named)
    pair = make_leaderboard([*of_models(named), fewer])
    assert pair.comparison["primary"].sum() == 1, (
        "one of the two models has no random sentence to compare with"
    )


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
    assert (
        board.primary is None
        and board.contrasts is None
        and json.loads(as_json(board))["contrasts"] is None
    )
    tested = board.comparison[board.comparison["condition"] != board.baseline]
    assert set(tested["role"]) == {"tested"} and set(tested["tests"]) == {len(tested)}
    assert tested["p_adjusted"].tolist() == holm(tested["p"]).tolist()


@pytest.mark.parametrize(
    ("named", "tests"),
    [({}, [1, 2, 2]), ({"primary": "mless - wo", "contrasts": ["mless - wo"]}, [2, 4, 4, 2])],
    ids=["a log", "fewer contrasts"],
)
def test_what_one_model_did_not_register_is_exploratory_there_and_leaves_the_others_registered(
    named, tests
):
    board = make_leaderboard(of_models(REGISTERED, named))
    assert (board.primary, board.contrasts) == (
        "mless - wo",
        ("mless - wo", "mful - wo", "random - wo"),
    )
    table = board.comparison[board.comparison["condition"] != "wo"]
    assert table["tests"].dropna().tolist() == tests
    assert table["role"].tolist() == ["tested"] * len(tests) + ["exploratory"] * (6 - len(tests))
    assert table["primary"].sum() == len({*table["model"][table["role"] == "tested"]})
    alone = make_leaderboard(of_models(REGISTERED)).comparison.set_index("condition")
    if not named:
        shown = table[table["model"] == "m0"].set_index("condition")
        assert (
            shown.loc["mless", ["p_adjusted", "low"]].tolist()
            == alone.loc["mless", ["p_adjusted", "low"]].tolist()
        )


def test_runs_with_other_conditions_each_bring_their_own_tests_to_the_family():
    parts = of_models(REGISTERED, {})
    fewer = evaluation(
        drawn(5, 30, 1, {"wo": 0.4, "mless": 0.5}),
        model="few",
        primary="mless - wo",
        contrasts=["mless - wo"],
    )
    board = make_leaderboard([parts[0], fewer])
    assert (
        board.comparison["tests"].dropna().tolist() == [2, 4, 4, 2]
        and board.primary == "mless - wo"
    )
    alone = [
        evaluation(drawn(5, 30, 1, {name: 0.5}), contrasts=[] if name == "wo" else [f"{name} - wo"])
        for name in CHANCES
    ]
    for number, part in enumerate(alone):
        object.__setattr__(part, "name", f"results/{number}")
    assert make_leaderboard(alone).contrasts == tuple(REGISTERED["contrasts"]), (
        "a run each of one model"
    )


def test_against_another_baseline_there_is_no_positive_control():
    chances = {"wo": 0.5, "mless": 0.6, "control": 0.1}
    facts = {**REGISTERED, "contrasts": ["mless - wo"], "reference_conditions": CONTROL}
    whole = evaluation(drawn(7, 60, 1, chances), **facts)
    board = make_leaderboard([whole], baseline="mless")
    assert (
        board.comparison["condition"].tolist() == ["wo", "mless"]
        and board.reference_conditions == {}
    )
    control = make_leaderboard([whole], baseline="control")
    assert control.comparison["condition"].tolist() == ["wo", "mless", "control"]
    assert "difference [95 %]: compared with w/ Mless, in points" in table_page(
        GREEDY_RUN, baseline="mless"
    )


def test_a_run_is_registered_by_its_journal_not_by_its_receipt(tmp_path):
    run = write_run(tmp_path / "made", right, contrasts=["mless - wo"], limit=2)
    assert [Run.load(run).about[name] for name in ("primary", "contrasts")] == [
        "mless - wo",
        ["mless - wo"],
    ]
    receipt = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(
        json.dumps({**receipt, "config": {**receipt["config"], "contrasts": ["mful - wo"]}})
    )
    assert Run.load(run).about["contrasts"] == ["mless - wo"]
    first, *rest = (run / "journal.jsonl").read_text().splitlines()
    header = {**json.loads(first), "contrasts": [["mless", 7]]}
    (run / "journal.jsonl").write_text("\n".join([json.dumps(header), *rest, ""]))
    with pytest.raises(RunError, match=r"journal.jsonl: .*\$.contrasts\[0\]\[1\]"):
        Run.load(run)
