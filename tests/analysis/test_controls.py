import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import compare
from harness.analysis.controls import MEDIATORS, find_broken, mediator_table
from harness.analysis.leaderboard import make_leaderboard
from harness.display.comparison_tables import show_comparison
from harness.experiment.conditions import find_yardsticks
from harness.runs.read import Run
from tests.make import GREEDY_RUN, drawn, evaluation, small_run


def test_a_condition_is_held_against_the_mean_of_wordings_and_of_fillers():
    names = [f"{kind}-{i:02}" for kind in ("edit", "filler") for i in range(1, 5)]
    run = evaluation(drawn(2, 80, 4, {"wo": 0.5, "mless": 0.6, **dict.fromkeys(names, 0.5)})).samples
    table = compare(run, yardsticks=find_yardsticks(run["condition"].unique())).set_index("condition")
    row, accuracy = table.loc["mless"], run.groupby("condition")["correct"].mean() * 100
    edits, fillers = (accuracy[[name for name in names if kind in name]] for kind in ("edit", "filler"))
    spread = np.std([*edits, accuracy["wo"]], ddof=1)
    assert row[["wordings", "fillers"]].tolist() == [5, 4]
    assert row["wording_spread"] == pytest.approx(spread)
    assert row["wording_difference"] == pytest.approx(accuracy["mless"] - np.mean([*edits, accuracy["wo"]]))
    assert row["filler_difference"] == pytest.approx(accuracy["mless"] - fillers.mean())
    assert row["filler_spread"] == pytest.approx(np.std(fillers, ddof=1))
    few = run[~run["condition"].isin(["edit-03", "edit-04", "filler-03", "filler-04"])]
    bare = compare(few, yardsticks=find_yardsticks(few["condition"].unique())).set_index("condition").loc["mless"]
    assert bare[["wordings", "fillers", "wording_spread", "filler_difference"]].isna().all(), "too few to show a spread"


def boxless(frame, name, share):
    """The condition's first samples lose their box; of those some were right."""
    place = frame.index[frame["condition"] == name][: round(share * (frame["condition"] == name).sum())]
    frame = frame.copy()
    frame.loc[place, ["verdict", "correct"]] = ["no_box", False]
    return frame


def test_a_rewording_is_set_apart_for_its_format_and_never_for_its_result():
    names = [f"edit-{i:02}" for i in range(1, 7)]
    same = [["correct"] * 2, ["incorrect"] * 2] * 100
    run = evaluation({name: same for name in ("wo", "mless", *names)}).samples
    wrong = run["condition"] == "edit-02"
    run.loc[wrong, ["verdict", "correct"]] = ["incorrect", False]
    run = boxless(boxless(run, "edit-01", 0.1), "edit-03", 0.01)
    assert find_broken(run, names, baseline="wo") == {("m", "raw", "edit-01"): 0.1}
    yardsticks = find_yardsticks(names)
    table = compare(run, yardsticks=yardsticks).set_index("condition")
    assert table.loc["edit-01", ["verdict", "family"]].tolist() == ["set apart"] * 2
    assert (table.loc[names[1:], "verdict"] == "rewording").all(), "however far it is"
    assert table.loc["mless", "wordings"] == 6 and table.loc["mless", "wording_spread"] == pytest.approx(
        table.loc[["wo", *names[1:]], "accuracy"].std()
    )
    bare = compare(run.drop(columns="verdict"), yardsticks=yardsticks).set_index("condition")
    assert bare.loc["mless", "wordings"] == 7, "nothing is known of formats"


def test_a_rewording_that_is_set_apart_is_always_named():
    same = [["correct"] * 2, ["incorrect"] * 2] * 100
    run = evaluation({name: same for name in ("wo", "mless", "edit-01", "edit-02")})
    broken = boxless(run.samples, "edit-01", 0.1)
    object.__setattr__(run, "samples", broken)
    notes = show_comparison(make_leaderboard([run])).notes
    assert "edit-01 (m)." in next(note for note in notes if note.startswith("Set apart"))


def test_what_a_user_calls_control_is_no_yardstick(tmp_path):
    run = small_run(tmp_path / "run")
    logs = {name: next(GREEDY_RUN.glob(f"samples_demo_{name}_*")) for name in ("wo", "mless")}
    board = make_leaderboard([Run.load({"wo": logs["wo"], "control": logs["mless"]})])
    assert board.yardsticks == {} and board.comparison["condition"].tolist() == ["wo", "control"]
    assert Run.load(run).about["yardsticks"] == {}


def table(verdicts, **options):
    return mediator_table(evaluation(verdicts).samples, **options).set_index("condition")


def test_shares_and_the_split_by_hand():
    found = table(
        {
            "wo": [["correct"], ["incorrect"], ["no_box"], ["truncated"], ["correct"]],
            "mless": [["correct"], ["correct"], ["correct"], ["truncated"], ["timeout"]],
        }
    )
    assert list(found.columns) == ["model", "layout", *MEDIATORS]
    assert found.loc["wo", ["samples", "no_box", "truncated", "timed_out", "looping"]].tolist() == [5, 20, 20, 0, 20]
    assert found.loc["mless", "timed_out"] == 20
    # p2 gains a box and is right, p4 loses its verdict and was right; p1 answers otherwise; p3 stays truncated
    split = found.loc["mless", ["format_changed", "format_difference", "answer_difference"]].tolist()
    assert split == pytest.approx([40, 0, 20])
    assert found.loc["wo", ["format_changed", "format_difference", "answer_difference"]].isna().all()


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 4), chances=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_the_two_parts_are_the_difference(seed, k, chances):
    one = evaluation(drawn(seed, 12, k, {"wo": chances[0], "mless": chances[1]}))
    parts = mediator_table(one.samples).set_index("condition").loc["mless"]
    difference = compare(one.samples).set_index("condition").loc["mless", "difference"]
    assert parts["format_difference"] + parts["answer_difference"] == pytest.approx(difference, abs=1e-9)


def test_replicates_are_left_out_and_splits_have_their_own_rows():
    verdicts = drawn(1, 20, 2, {"wo": 0.5, "mless": 0.5})
    assert table(verdicts).equals(table({**verdicts, "wo again": verdicts["mless"]}))
    by = mediator_table(evaluation(verdicts).samples, by=["subject"])
    assert by["samples"].tolist() == [20, 20, 20, 20] and set(by["subject"]) == {"Algebra", "Geometry"}


def test_without_the_baseline_there_is_no_split():
    assert table({"mless": [["correct"], ["no_box"]]})["format_changed"].isna().all()
