import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import compare
from harness.analysis.mediators_and_audit import MEDIATOR_COLUMNS, mediator_table
from harness.analysis.result_tables import make_leaderboard
from harness.display.comparison_tables import show_comparison
from harness.display.report.report_page import make_card
from harness.runs.read_runs import Run
from tests.make import CONTROL, GREEDY_RUN, drawn, evaluation, small_run


def test_what_a_user_calls_control_is_no_reference_condition(tmp_path):
    run = small_run(tmp_path / "run")
    logs = {name: next(GREEDY_RUN.glob(f"samples_demo_{name}_*")) for name in ("wo", "mless")}
    board = make_leaderboard([Run.load({"wo": logs["wo"], "control": logs["mless"]})])
    assert board.reference_conditions == {} and board.comparison["condition"].tolist() == [
        "wo",
        "control",
    ]
    assert Run.load(run).reference_conditions == {}


def table(verdicts, **options):
    return mediator_table(evaluation(verdicts).samples, **options).set_index("condition")


def test_shares_by_hand():
    found = table(
        {
            "wo": [["correct"], ["incorrect"], ["no_box"], ["truncated"], ["correct"]],
            "mless": [["correct"], ["correct"], ["correct"], ["truncated"], ["timeout"]],
        }
    )
    assert list(found.columns) == ["model", "layout", *MEDIATOR_COLUMNS]
    assert found.loc["wo", ["samples", "no_box", "truncated", "timed_out", "looping"]].tolist() == [
        5,
        20,
        20,
        0,
        20,
    ]
    assert found.loc["mless", "timed_out"] == 20


def test_replicates_are_left_out_and_splits_have_their_own_rows():
    verdicts = drawn(1, 20, 2, {"wo": 0.5, "mless": 0.5})
    assert table(verdicts).equals(table({**verdicts, "wo again": verdicts["mless"]}))
    by = mediator_table(evaluation(verdicts).samples, by=["subject"])
    assert by["samples"].tolist() == [20, 20, 20, 20] and set(by["subject"]) == {
        "Algebra",
        "Geometry",
    }


def pair(verdicts, **options):
    return compare(evaluation(verdicts).samples, **options).set_index("condition").loc["mless"]


def test_the_part_by_answer_is_of_pairs_of_samples_that_both_have_one():
    row = pair(
        {
            "wo": [["correct"], ["incorrect"], ["no_box"], ["truncated"], ["correct"]],
            "mless": [["correct"], ["correct"], ["correct"], ["truncated"], ["timeout"]],
        }
    )
    # p2 gains a box and is right, p4 loses its verdict and was right; p1 answers otherwise; p3 stays truncated
    assert (
        row[["difference", "answered_difference"]].tolist() == pytest.approx([20, 20])
        and row["graded"] == 60
    )


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 4),
    chances=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_it_is_the_mean_over_all_pairs_of_a_problems_samples(seed, k, chances):
    verdicts = drawn(seed, 12, k, {"wo": chances[0], "mless": chances[1]})
    pairs = [
        (one == "correct") - (other == "correct")
        for new, old in zip(verdicts["mless"], verdicts["wo"], strict=True)
        for one in new
        for other in old
        if {one, other} <= {"correct", "incorrect"}
    ]
    assert pair(verdicts)["answered_difference"] == pytest.approx(
        100 * sum(pairs) / (12 * k * k), abs=1e-9
    )


CUT, WRONG, RIGHT = ["truncated"] * 2, ["incorrect"] * 2, ["correct"] * 2


@pytest.mark.parametrize(
    ("verdicts", "word", "why"),
    [
        ({"wo": [CUT] * 400, "mless": [CUT] * 400}, "unmeasured", "fewer than half"),
        ({"wo": [WRONG] * 400, "mless": [WRONG] * 400}, "unmeasured", "0 or 100 %"),
        ({"wo": [RIGHT] * 400, "mless": [RIGHT] * 400}, "unmeasured", "0 or 100 %"),
        ({"wo": [RIGHT, WRONG] * 200, "mless": [RIGHT, WRONG] * 200}, "equivalent", None),
        (
            {"wo": [CUT] * 250 + [WRONG] * 150, "mless": [RIGHT] * 50 + [CUT] * 350},
            "better",
            "fewer than half",
        ),
    ],
    ids=["all cut off", "all wrong", "all right", "half right", "better all the same"],
)
def test_no_verdict_on_what_was_not_answered(verdicts, word, why):
    row = pair(verdicts)
    assert row["verdict"] == word and (
        row["unmeasured"] is None if why is None else why in row["unmeasured"]
    )
    text = " ".join(show_comparison(make_leaderboard([evaluation(verdicts)])).notes)
    assert (f"unmeasured (w/ Mless): {row['unmeasured']}." in text) == (word == "unmeasured")
    assert ("raise max_gen_toks" in text) == ("truncated" in str(verdicts))


@pytest.mark.parametrize("seen", [True, False])
def test_a_positive_control_that_is_not_seen_leaves_nothing_measured(seen):
    same = [RIGHT, WRONG] * 200
    run = evaluation({"wo": same, "mless": same, "control": [WRONG] * 400 if seen else same})
    rows = compare(run.samples, reference_conditions=CONTROL).set_index("condition")
    assert rows.loc["mless", "verdict"] == ("equivalent" if seen else "unmeasured")


def test_a_gain_of_fewer_cut_offs_alone_is_called_format():
    half, whole = [["correct"] * 2, CUT] * 100, [["correct"] * 2] * 200
    board = make_leaderboard(
        [evaluation({"wo": [*half, *half], "mless": [*whole, *whole], "mful": [*half, *half]})]
    )
    row = board.comparison.set_index("condition").loc["mless"]
    assert row[["verdict", "by_format"]].tolist() == ["better", True]
    assert row["answered_low"] <= 0 == row["answered_difference"] <= row["answered_high"]
    shown = show_comparison(board)
    cells = {
        one.heading: cell.text for one, cell in zip(shown.columns, shown.cells[1], strict=True)
    }
    assert cells["verdict"] == "better (format)" and cells["answered [95 %]"].startswith("0.0 [")
    assert "better (format)" in str(make_card(board)["answers"])
    assert "Ungraded: w/o truncated 50.0 %" in make_card(board)["facts"]["Ungraded"]
