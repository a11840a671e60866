import json

import pytest

from harness.analysis import compare
from harness.analysis.pair import Side, compare_pair
from harness.errors import ComparisonError, RunError
from harness.runs.frame import load_run
from tests.commands.test_cli import here, refused
from tests.make import GREEDY_RUN, right, write_run

LOGS = {name: str(next(GREEDY_RUN.glob(f"samples_demo_{name}_2*"))) for name in ("wo", "mless")}


def numbers(board):
    columns = ["accuracy", "difference", "low", "high", "p", "wrong_to_right", "right_to_wrong", "answer_difference"]
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
        (LOGS["wo"], f"{GREEDY_RUN}:mless", [f"{LOGS['wo'].rpartition('/')[2]}:wo", "greedy_run:mless"]),
    ],
    ids=["two conditions", "the baseline unless told", "a log and a run"],
)
def test_two_sides_are_paired_by_problem(old, new, names, expected):
    board = compare_pair(Side.read(old), Side.read(new))
    assert board.comparison["condition"].tolist() == names and board.baseline == names[0]
    assert numbers(board) == pytest.approx(numbers(type("", (), {"comparison": expected})))
    assert [entry["name"] for entry in board.receipt] == [*dict.fromkeys(side.partition(":")[0] for side in (old, new))]


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
    ("scores", "options", "code", "said"),
    [
        (HALF, ("--fail-if", "worse"), 0, "new.jsonl is equivalent"),
        ([0] * 40 + HALF[40:], ("--fail-if", "worse"), 1, "new.jsonl is worse"),
        ([0] * 40 + HALF[40:], ("--fail-if", "worse", "--filter", "loose"), 0, "new.jsonl is better"),
        (HALF, ("--fail-if", "not-equivalent", "--margin", "2"), 0, "is equivalent within a margin of 2"),
        ([0] * 40 + HALF[40:], ("--fail-if", "not-equivalent"), 1, "is not equivalent within a margin of 1"),
        (HALF, ("--fail-if", "not-equivalent", "--margin", "0.5"), 3, "400 problems, and equivalence needs 598"),
        ([0] * 40 + HALF[40:], (), 0, ""),
    ],
)
def test_the_gate_says_by_its_exit_code_whether_it_holds(scores, options, code, said, tmp_path, capsys, monkeypatch):
    old, new = log(tmp_path / "old.jsonl", HALF), log(tmp_path / "new.jsonl", scores)
    done = here(capsys, monkeypatch, "compare", old, new, *options)
    assert done.returncode == code and said in done.stderr
    assert "old.jsonl" in done.stdout and "+ / -" in done.stdout


def test_nothing_answered_cannot_be_judged(tmp_path, capsys, monkeypatch):
    old, new = log(tmp_path / "old.jsonl", [0] * 400), log(tmp_path / "new - er.jsonl", [0] * 400)
    for gate in ("worse", "not-equivalent"):
        done = here(capsys, monkeypatch, "compare", old, new, "--fail-if", gate)
        assert done.returncode == 3 and "both accuracies are at the end of the scale" in done.stderr


def test_what_cannot_be_paired_is_refused(tmp_path, capsys, monkeypatch):
    run = write_run(tmp_path / "made", right, limit=2, audit=False)
    for old, new, error, said in (
        (f"{GREEDY_RUN}:wo", f"{GREEDY_RUN}:wo", ComparisonError, "is given twice"),
        (f"{GREEDY_RUN}:wo", f"{GREEDY_RUN}:nope", RunError, "has no condition 'nope': expected one of wo, mless"),
        (str(GREEDY_RUN), str(tmp_path / "none"), RunError, "none"),
        (f"{GREEDY_RUN}:wo", f"{run}:wo", ComparisonError, "its problems are not those of the baseline"),
    ):
        with pytest.raises(error, match=said):
            compare_pair(Side.read(old), Side.read(new))
    part = log(tmp_path / "part.jsonl", [0.5] * 9)
    refused(here(capsys, monkeypatch, "compare", part, part), "is 0.5, neither 0 nor 1")
