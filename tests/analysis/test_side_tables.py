"""What else changes, and the split of a difference: by hand, and always adding up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis import compare
from harness.analysis.controls import MEDIATORS, mediator_table
from tests.make import drawn, evaluation


def table(verdicts, **options):
    return mediator_table(evaluation(verdicts).frame, **options).set_index("condition")


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
    parts = mediator_table(one.frame).set_index("condition").loc["mless"]
    difference = compare(one.frame).set_index("condition").loc["mless", "difference"]
    assert parts["format_difference"] + parts["answer_difference"] == pytest.approx(difference, abs=1e-9)


def test_replicates_are_left_out_and_splits_have_their_own_rows():
    verdicts = drawn(1, 20, 2, {"wo": 0.5, "mless": 0.5})
    assert table(verdicts).equals(table({**verdicts, "wo again": verdicts["mless"]}))
    by = mediator_table(evaluation(verdicts).frame, by=["subject"])
    assert by["samples"].tolist() == [20, 20, 20, 20] and set(by["subject"]) == {"Algebra", "Geometry"}


def test_without_the_baseline_there_is_no_split():
    assert table({"mless": [["correct"], ["no_box"]]})["format_changed"].isna().all()
