import re

import numpy as np
import pytest
from scipy import stats

from harness import Run, load_run
from harness.analysis.crossed_effects import measure_crossed_error
from harness.analysis.other_texts import (
    TEXT_COLUMNS,
    estimate_spread,
    place_effect,
    text_table,
)
from harness.analysis.outcomes import count_outcomes, group_by_setting
from harness.analysis.result_tables import list_rows, make_leaderboard
from harness.display.comparison_tables import make_comparison_table
from harness.display.figures.forest_figure import draw_forest
from harness.display.report.report_page import make_card
from harness.display.side_tables import make_shown_side_tables
from harness.errors import ComparisonError
from harness.experiment.condition_entries import read_conditions
from tests.make import (
    CONTROL,
    by_condition,
    evaluation,
    make_board,
    right,
    verdicts_by_count,
    with_cases,
)


def settings_of(accuracies, *, n=200):
    """Outcomes of greedy conditions; each problem has a difficulty that all share."""
    difficulties = np.random.default_rng(1).random((n, 1))
    verdicts = {
        name: np.where(difficulties < accuracy, "correct", "incorrect")
        for name, accuracy in accuracies.items()
    }
    return group_by_setting(count_outcomes(evaluation(verdicts).samples))


def texts_of(family, size):
    fields = {"kind": "other text", "of": "mless", "family": family}
    return {f"{family[:4]}-{n}": {**fields, "number": n} for n in range(1, 1 + size)}


@with_cases
def test_a_condition_is_compared_with_each_kind_of_text_of_its_length_and_placement(
    entries, accuracies, rows
):
    conditions = read_conditions({"conditions": entries})
    sentences, tokens = texts_of("sentences", 8), texts_of("random_tokens", 8)
    accuracies = dict.fromkeys([*conditions, *sentences, *tokens], 0.5) | accuracies
    by_setting = settings_of(accuracies)
    table = text_table(by_setting, conditions, sentences | tokens, "wo")
    assert list(table.columns) == list(TEXT_COLUMNS)
    assert table[["condition", "kind", "texts"]].to_numpy().tolist() == rows
    ((_, by_condition),) = by_setting.items()
    is_right = {name: outcomes.right_counts for name, (outcomes,) in by_condition.items()}
    effects = np.array([is_right["mless"] - is_right[name] for name in sentences], dtype=float)
    row, (error, _) = table.iloc[0], measure_crossed_error(effects)
    assert row["difference"] == pytest.approx(100 * effects.mean())
    assert row["new_high"] - row["new_low"] > 2 * 1.96 * 100 * error
    base = is_right["wo"].mean()
    assert row["effect"] == pytest.approx(100 * (is_right["mless"].mean() - base))
    assert row["effects"] == pytest.approx(
        [100 * (is_right[name].mean() - base) for name in sentences]
    )


@with_cases
def test_a_filler_is_placed_in_the_range_of_one_more_text(effects, effect, baseline, expected):
    row = place_effect(effect, np.array(effects, dtype=float), baseline)
    assert {key: row.get(key) for key in expected} == pytest.approx(expected)


@with_cases
def test_a_word_holds_only_if_it_holds_for_each_family(families, mless, expected, sentence, word):
    """`families` has each family's size and the accuracy of its first text."""
    references, chances = {}, {"wo": 0.4, "random": mless, "mless": mless}
    for family, (size, accuracy) in families.items():
        references |= texts_of(family, size)
        accuracies = np.linspace(accuracy, accuracy + 0.1, size)
        chances |= dict(zip(texts_of(family, size), accuracies, strict=True))
    (setting,) = settings_of(chances).values()
    verdicts = {
        name: np.where(replicates[0].right_counts, "correct", "incorrect")[:, None]
        for name, replicates in setting.items()
    }
    facts = {"primary": "mless - wo", "contrasts": ["mless - wo", "mless - random"]}
    board = make_board(verdicts, reference_conditions=references, **facts)
    row = by_condition(board).loc["mless"]
    assert row["other_texts"] == expected
    grid = make_comparison_table(board)
    (warning,) = [text for text in grid.warnings if text.startswith("w/ Mless: ")]
    assert re.sub(r"\[.*?\]", "RANGE", warning) == f"w/ Mless: {sentence}."
    column = [column.heading for column in grid.columns].index("verdict")
    assert [cells[column].text for cells in grid.cells[1:3]] == ["exploratory", word]
    answer, other_answer = make_card(board)["findings"]
    assert answer["verdict"] == word.partition(" ")[0]
    assert warning.removeprefix("w/ Mless: ").rstrip(".").lower() in answer["text"].lower()
    assert answer["text"].startswith("w/ Mless minus w/o: ")
    assert other_answer["text"].startswith("w/ Mless minus Random sentence: ")
    exploratory_facts = {"primary": None, "contrasts": ["random - wo"]}
    exploratory = make_board(verdicts, reference_conditions=references, **exploratory_facts)
    assert not any("None" in finding["text"] for finding in make_card(exploratory)["findings"])
    figure = draw_forest(board.comparison, list_rows(board.side_tables["texts"]))
    bands = [band.get_datalim(figure.axes[0].transData) for band in figure.axes[0].collections]
    rows = [
        row for row in make_shown_side_tables(board)["texts"].rows if row["place"] != "not shown"
    ]
    ends = [pytest.approx([row["range_low"], row["range_high"]]) for row in rows]
    assert [[band.x0, band.x1] for band in bands] == ends
    assert ("Grey bands" in figure.get_supxlabel()) == bool(rows)


@with_cases
def test_the_spread_of_texts_is_estimated_without_noise(spread):
    rng = np.random.default_rng(2)
    rows = []
    for _ in range(10):
        texts = 0.5 + 0.01 * spread * stats.zscore(rng.normal(size=(20, 1)), ddof=1)
        # the observed differences vary by at least 3.5 points, because a text has 200 problems
        chances = np.vstack([np.full(200, 0.5), texts + rng.uniform(-0.2, 0.2, (20, 200))])
        verdicts = np.where(rng.random(chances.shape) < chances, "correct", "incorrect")
        named_verdicts = {f"t{n}": verdict[:, None] for n, verdict in enumerate(verdicts)}
        baseline, *outcomes = count_outcomes(evaluation(named_verdicts).samples)
        effects = [100 * (text.right_counts - baseline.right_counts).mean() for text in outcomes]
        rows.append(estimate_spread(np.array(effects), outcomes))
    assert np.mean([row["spread"] ** 2 for row in rows]) == pytest.approx(spread**2, rel=0.2, abs=2)
    assert sum(row["spread_low"] <= spread <= row["spread_high"] for row in rows) >= 9


@with_cases
def test_tables_of_a_run_go_by_fields_whatever_the_names_are(make_run, right_under, instructions):
    """`right_under` has each condition's filler length, and how many instructions it needs.

    Its last names look like those of a draw, of an arm and of the positive control, which is never
    right.
    """

    def answer_by_instruction(request, target):
        fillers = re.findall(r"(?:/ ){8,}/|$", request.prompt)
        length = max(len(filler.split()) for filler in fillers)
        (number,) = [n for n in range(4) if request.prompt.startswith(instructions[n])]
        is_right = number < dict(right_under.values())[length]
        is_control = request.prompt.endswith("boxed{")
        return right(request, target if is_right and not is_control else "wrong")

    entries = [
        {"name": name, "unit": "/", "count": length}
        for name, (length, _) in list(right_under.items())[2:]
    ]
    folder = make_run(
        answer_by_instruction,
        conditions=["wo", "mless", *entries],
        fewshot={"num_fewshot": 0, "instructions": instructions},
        other_texts={"sentences": 8},
        positive_control=True,
        limit=2,
    )
    accuracies = {name: 25.0 * count for name, (_, count) in right_under.items()}
    board = make_leaderboard([Run.load(folder)])
    table = by_condition(board)
    is_text = table.index.str.startswith("sentence-")
    assert table.loc[~is_text, "accuracy"].to_dict() == accuracies | {"answer-at-once_": 0.0}
    columns = "repeats problems wrong_to_right right_to_wrong".split()
    assert table.loc["mless", columns].tolist() == [4, 2, 1, 0]  # pairs of one instruction
    assert (table["draws"] == 4).all()
    assert table.loc["answer-at-once", "role"] != "reference"
    grid, side_tables = make_comparison_table(board), make_shown_side_tables(board)
    assert len(grid.cells) == len(accuracies)  # no row of a single instruction
    (row,) = side_tables["texts"].rows
    assert [row[key] for key in ("condition", "texts", "effect")] == ["mless", 8, 50]
    assert row["reason"] == "all texts have the same accuracy"
    assert table.loc["mless", "other_texts"] == "not shown"
    notes = " ".join(grid.notes)
    assert (
        "(answer-at-once_)" in notes and "for this prompt with new draws of instructions" in notes
    )
    assert len(board.reference_conditions) == 1 + 8
    assert set(load_run(folder)["condition"]) == right_under.keys()


def test_a_name_that_is_a_control_in_only_one_of_two_runs_is_refused():
    verdicts = verdicts_by_count({"wo": {"correct": 9}, "control": {"incorrect": 9}})
    runs = [evaluation(verdicts, reference_conditions=CONTROL), evaluation(verdicts, model="n")]
    message = "results/n: the condition 'control' differs from the one in results/m"
    with pytest.raises(ComparisonError, match=message):
        make_leaderboard(runs)
