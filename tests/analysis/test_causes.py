import pytest

from harness.analysis.result_tables import make_leaderboard
from harness.experiment.expand_conditions import CELLS
from tests.make import evaluation


def test_arms_and_the_filler_are_compared_with_the_position_gap_as_the_baseline():
    correct = {"wo": 30, "mless": 5}
    for cell, (_, scale, _) in CELLS.items():
        correct[f"mless-{cell}"] = 5 if scale else 35
    verdicts = {
        name: [["correct"]] * count + [["incorrect"]] * (40 - count)
        for name, count in correct.items()
    }
    table = make_leaderboard([evaluation(verdicts)], baseline="mless-gap").comparison
    differences = table.set_index("condition").drop("mless-gap")
    assert set(differences["baseline"]) == {"mless-gap"}
    scaled = {"mless", *(f"mless-{cell}" for cell, (_, scale, _) in CELLS.items() if scale)}
    for name, row in differences.drop("wo").iterrows():
        change = -75 if name in scaled else 0
        assert row["difference"] == pytest.approx(change)
        assert row["verdict"] == ("worse" if name in scaled else "inconclusive")
