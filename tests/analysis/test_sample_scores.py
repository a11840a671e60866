"""avg@k, pass@k and maj@k: by hand, and over all sets of k samples."""

from itertools import combinations

import numpy as np
import pytest

from harness import compare
from harness.analysis import estimate_difference
from harness.analysis.result_tables import make_leaderboard
from harness.display.comparison_tables import show_comparison
from harness.display.table_page import table_csv
from harness.errors import ComparisonError
from tests.make import compare_rows, drawn, evaluation, with_cases

WRONG, RIGHT = "incorrect", "correct"


def make_samples(problems=12, k=5, **chances):
    """Random verdicts of conditions."""
    return evaluation(drawn(0, problems, k, chances, (WRONG,))).samples


@with_cases
def test_pass_at_k_is_the_mean_over_all_sets_of_k_samples(k):
    frame = make_samples(wo=0.2, mless=0.4).assign(cluster=lambda rows: rows["level"])
    table = compare_rows(frame, score=f"pass@{k}")
    shares = {}
    for name, samples in frame.groupby("condition"):
        rows = samples.pivot(index="problem_id", columns="sample_index", values="correct")
        sets = [rows[list(chosen)].any(axis=1) for chosen in combinations(range(5), k)]
        shares[name] = np.mean(sets, axis=0)
        assert table.loc[name, "accuracy"] == pytest.approx(100 * shares[name].mean())
    changes = np.rint((shares["mless"] - shares["wo"]) * len(sets)).astype(int)
    clusters = frame.groupby("problem_id")["cluster"].first().to_numpy() - 1
    expected = estimate_difference(changes, len(sets), clusters=clusters)
    assert table.loc["mless", "p"] == expected.p
    ends = [100 * end for end in expected.interval()]
    assert table.loc["mless", ["low", "high"]].tolist() == pytest.approx(ends)


def test_avg_at_k_is_the_accuracy_and_many_sets_do_not_overflow():
    frame = make_samples(k=64, wo=0.02, mless=0.05)
    assert compare_rows(frame, score="avg@8").equals(compare_rows(frame, score=None))
    table = compare_rows(frame, score="pass@32")
    right = frame[frame["condition"] == "wo"].groupby("problem_id")["correct"].sum()
    miss = [np.prod([(32 - i) / (64 - i) for i in range(count)]) for count in right]
    assert table.loc["wo", "accuracy"] == pytest.approx(100 * (1 - np.mean(miss)), abs=1e-4)
    assert table["answered_difference"].iloc[1] == pytest.approx(table["difference"].iloc[1])


@with_cases
def test_maj_at_4_takes_the_most_frequent_answer_and_of_equals_the_first(answers, accuracy):
    frame = make_samples(problems=1, wo=0, mless=0).assign(answer=answers * 2)
    frame["correct"] = frame["answer"] == "2"
    shuffled = frame.sample(frac=1, random_state=1)
    assert set(compare(shuffled, score="maj@4")["accuracy"]) == {accuracy}


@with_cases
def test_a_score_needs_k_samples_with_one_prompt(kind):
    frame = make_samples(wo=0.5, mless=0.5)
    with pytest.raises(ComparisonError, match=f"score {kind}@6: expected K from 1 to 5"):
        compare(frame, score=f"{kind}@6")
    for single in (frame[frame["sample_index"] == 0], frame.assign(draw=frame["sample_index"])):
        with pytest.raises(ComparisonError, match=r"expected several samples, .* 1 with one"):
            compare(single, score=f"{kind}@1")


def test_draws_of_examples_have_scores_of_their_own():
    frame = make_samples(k=8, wo=0.2, mless=0.6)
    frame["draw"] = frame["sample_index"] // 2
    row = compare_rows(frame, score="pass@2").loc["mless"]
    pairs = frame.groupby(["condition", "problem_id", "draw"])["correct"].any()
    assert row["accuracy"] == pytest.approx(100 * pairs["mless"].mean())
    assert row["draws"] == 4


def test_tables_name_the_score():
    verdicts = {"wo": [[RIGHT, WRONG]] * 9, "mless": [[WRONG, WRONG]] * 9}
    board = make_leaderboard([evaluation(verdicts)], score="pass@2")
    table = show_comparison(board)
    assert "pass@2 %" in table.header
    assert table.warnings[0].startswith("pass@2 instead of accuracy: chance that at least one")
    assert table_csv(board).endswith('# {"score": "pass@2"}')
