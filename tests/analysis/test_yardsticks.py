"""What conditions are held against: a mean and a spread, and rewordings that break the format."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis import compare
from harness.analysis.controls import find_broken
from harness.analysis.leaderboard import make_leaderboard
from harness.display.comparison_tables import show_comparison
from harness.experiment.conditions import find_yardsticks
from harness.runs.read import read_run
from tests.make import GREEDY_RUN, drawn, evaluation, small_run


def test_a_condition_is_held_against_the_mean_of_wordings_and_of_fillers():
    names = [f"{kind}-{i:02}" for kind in ("edit", "filler") for i in range(1, 5)]
    run = evaluation(drawn(2, 80, 4, {"wo": 0.5, "mless": 0.6, **dict.fromkeys(names, 0.5)})).frame
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
    run = evaluation({name: same for name in ("wo", "mless", *names)}).frame
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


def test_by_chance_alone_hardly_any_rewording_is_set_apart():
    names, found = [f"edit-{i:02}" for i in range(1, 11)], 0
    for seed in range(40):
        run = evaluation(drawn(seed, 60, 1, dict.fromkeys(["wo", *names], 0.5))).frame
        found += bool(find_broken(run, names, baseline="wo"))
    assert found <= 6
    assert find_broken(run, [], baseline="wo") == {}


def test_a_rewording_that_is_set_apart_is_always_named():
    same = [["correct"] * 2, ["incorrect"] * 2] * 100
    run = evaluation({name: same for name in ("wo", "mless", "edit-01", "edit-02")})
    broken = boxless(run.frame, "edit-01", 0.1)
    object.__setattr__(run, "read_frame", lambda: broken)
    run.__dict__.pop("frame", None)
    notes = show_comparison(make_leaderboard([run])).notes
    assert "edit-01 (m)." in next(note for note in notes if note.startswith("Set apart"))


def test_what_a_user_calls_control_is_no_yardstick(tmp_path):
    run = small_run(tmp_path / "run")
    logs = {name: next(GREEDY_RUN.glob(f"samples_demo_{name}_*")) for name in ("wo", "mless")}
    board = make_leaderboard([read_run({"wo": logs["wo"], "control": logs["mless"]})])
    assert board.yardsticks == {} and board.comparison["condition"].tolist() == ["wo", "control"]
    assert read_run(run).facts["yardsticks"] == {}
