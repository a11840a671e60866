import pytest

from harness.analysis.result_tables import make_leaderboard
from harness.experiment.expand_conditions import CELLS
from tests.make import evaluation, verdicts_by_count


def test_arms_and_the_filler_are_compared_with_the_position_gap_as_the_baseline():
    few, many = {"correct": 5, "incorrect": 35}, {"correct": 35, "incorrect": 5}
    counts = {"wo": {"correct": 30, "incorrect": 10}, "mless": few}
    for cell, (_, scale, _) in CELLS.items():
        counts[f"mless-{cell}"] = few if scale else many
    run = evaluation(verdicts_by_count(counts))
    table = make_leaderboard([run], baseline="mless-gap").comparison
    differences = table.set_index("condition").drop("mless-gap")
    assert set(differences["baseline"]) == {"mless-gap"}
    scaled = {"mless", *(f"mless-{cell}" for cell, (_, scale, _) in CELLS.items() if scale)}
    for name, row in differences.drop("wo").iterrows():
        change = -75 if name in scaled else 0
        assert row["difference"] == pytest.approx(change)
        assert row["verdict"] == ("worse" if name in scaled else "inconclusive")
