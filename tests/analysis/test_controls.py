from itertools import product

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.analysis.joint_outcomes import TOGETHER_COLUMNS, together_table
from harness.analysis.mediators_and_audit import MEDIATOR_COLUMNS, mediator_table
from harness.analysis.result_tables import list_rows, make_leaderboard
from harness.display.comparison_tables import make_comparison_table
from harness.display.report.report_page import make_card
from tests.make import (
    CONTROL,
    by_condition,
    compare_rows,
    drawn,
    evaluation,
    make_board,
    one_line,
    table_page,
    verdicts_by_count,
    with_cases,
)


def find_mediators(verdicts):
    return mediator_table(evaluation(verdicts).samples).set_index("condition")


@with_cases
def test_the_shares_of_mediators_by_hand(verdicts, shares):
    table = find_mediators(verdicts)
    assert list(table.columns) == ["model", "layout", *MEDIATOR_COLUMNS]
    for name, expected in shares.items():
        assert table.loc[name, [*expected]].to_dict() == expected


def test_mediators_leave_out_replicates_and_can_be_split():
    verdicts = drawn(1, 20, 2, {"wo": 0.5, "mless": 0.5})
    replicated = {**verdicts, "wo again": verdicts["mless"]}
    assert find_mediators(verdicts).equals(find_mediators(replicated))
    table = mediator_table(evaluation(verdicts).samples, by=["subject"])
    assert table["samples"].tolist() == [20] * 4
    assert set(table["subject"]) == {"Algebra", "Geometry"}


def list_samples(answers):
    """A row for each answer of a case."""
    for name, problems in answers.items():
        condition, _, again = name.partition(" ")
        for problem, texts in enumerate(problems):
            for draw, draw_texts in enumerate(str(texts).split("|")):
                for index, text in enumerate(draw_texts.split()):
                    yield {
                        "model": "m",
                        "layout": "raw",
                        "condition": condition,
                        "replicate": int(bool(again)),
                        "problem_id": problem,
                        "draw": draw,
                        "sample_index": index,
                        "answer": None if text == "-" else text.rstrip("+"),
                        "correct": text.endswith("+"),
                    }


@with_cases
def test_conditions_are_counted_together_within_problem_draw_and_sample(answers, expected):
    frame = pandas.DataFrame(list_samples(answers))
    rows = list_rows(together_table(frame.astype({"condition": "category", "answer": "category"})))
    shares = {row["condition"]: [row[name] for name in TOGETHER_COLUMNS] for row in rows}
    assert shares == expected


def compare_verdicts(verdicts, **options):
    return compare_rows(evaluation(verdicts).samples, **options).loc["mless"]


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 4),
    chances=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_the_answered_difference_is_the_mean_over_all_pairs_of_samples(seed, k, chances):
    verdicts = drawn(seed, 12, k, {"wo": chances[0], "mless": chances[1]})
    score = {"correct": 1, "incorrect": 0}
    difference = 0
    for new, old in zip(verdicts["mless"], verdicts["wo"], strict=True):
        pairs = [pair for pair in product(new, old) if score.keys() >= set(pair)]
        difference += sum(score[after] - score[before] for after, before in pairs)
    row = compare_verdicts(verdicts)
    expected = pytest.approx(100 * difference / (12 * k * k), abs=1e-9)
    assert row["answered_difference"] == expected
    answered = sum(samples.count(name) for samples in verdicts["mless"] for name in score)
    assert row["graded"] == pytest.approx(100 * answered / (12 * k))


HALF_RIGHT = {"correct": 200, "incorrect": 200}


@with_cases
def test_samples_without_an_answer_give_no_verdict(wo, mless, verdict, reason):
    board = make_board(verdicts_by_count({"wo": wo, "mless": mless}, samples=2))
    row = by_condition(board).loc["mless"]
    assert row["verdict"] == verdict
    if reason is None:
        assert row["unmeasured"] is None
    else:
        assert reason in row["unmeasured"]
    notes = " ".join(make_comparison_table(board).notes)
    message = f"unmeasured (w/ Mless): {row['unmeasured']}."
    assert (message in notes) == (verdict == "unmeasured")
    assert ("Raise max_gen_toks" in notes) == ("truncated" in wo)


@with_cases
def test_advice_fits_the_way_in_which_completions_ended(
    completion, reason, changes, message, make_run
):
    run = make_run(lambda *_: (completion, reason), limit=4, **changes)
    notes = one_line(table_page(run, explain=False))
    assert message in notes
    assert ("aise max_gen_toks" in notes) == ("aise max_gen_toks" in message)
    assert ("next question in the format" in notes) == ("next question" in message)


@with_cases
def test_without_an_effect_of_the_positive_control_nothing_is_measured(control, verdict):
    verdicts = verdicts_by_count(
        {"wo": HALF_RIGHT, "mless": HALF_RIGHT, "control": control}, samples=2
    )
    assert compare_verdicts(verdicts, reference_conditions=CONTROL)["verdict"] == verdict


def test_verdicts_are_split_also_by_the_positive_control():
    verdicts = verdicts_by_count(dict.fromkeys(("wo", "mless", "control"), HALF_RIGHT), samples=2)
    runs = [evaluation(verdicts, reference_conditions=CONTROL)]
    cells = make_comparison_table(make_leaderboard(runs, by=["level"])).cells
    assert str(cells).count("text='unmeasured'") == 5


@with_cases
def test_a_gain_only_of_fewer_samples_without_an_answer_is_called_format(ending, name):
    half = {"correct": 200, ending: 200}
    counts = {"wo": half, "mless": {"correct": 400}, "mful": half}
    board = make_board(verdicts_by_count(counts, samples=2))
    row = by_condition(board).loc["mless"]
    assert row[["verdict", "by_format"]].tolist() == ["better", True]
    assert row["answered_low"] <= 0 == row["answered_difference"] <= row["answered_high"]
    grid = make_comparison_table(board)
    headings = [column.heading for column in grid.columns]
    cells = dict(zip(headings, [cell.text for cell in grid.cells[1]], strict=True))
    assert cells["verdict"] == "better (format)"
    assert cells["answered [95 %]"].startswith("0.0 [")
    card = make_card(board)
    assert "better (format)" in str(card["findings"])
    assert f"; most in w/ Mful ({name} 50.0 %). " in card["facts"]["Ungraded"]
