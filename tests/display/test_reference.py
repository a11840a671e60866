import json

import pandas
import pytest

from harness import resources
from harness.analysis.result_tables import make_leaderboard
from harness.display.published_numbers import (
    REFERENCE_COLUMNS,
    read_reference,
    reference_table,
)
from harness.errors import ConfigError
from tests.make import GREEDY_RUN, evaluation, one_line, table_page, verdicts_by_count, with_cases

FOLDER = resources.folder("results") / "reference"


def make_board(*models):
    """The leaderboard of models, each with its numbers of correct problems of 500."""
    runs = []
    for model, counts in models:
        counts = {name: {"correct": n, "incorrect": 500 - n} for name, n in counts.items()}
        runs.append(evaluation(verdicts_by_count(counts), model=model))
    return make_leaderboard(runs)


def compare_with(name, board):
    return reference_table(board.comparison, read_reference(name))


@pytest.mark.parametrize("name", [file.stem for file in FOLDER.glob("*.yaml")])
def test_every_table_has_its_source(name):
    reference = read_reference(name)
    assert "arXiv 2510.01032" in reference.source
    assert reference.setup.startswith("MATH-500, layout as_published; sampling: ")


def test_published_numbers_stand_next_to_ours():
    models = ("qwen2.5-math-7b", {"wo": 360, "mless": 362}), ("Qwen2.5-32B-Instruct", {"wo": 300})
    table = compare_with("study-table-1", make_board(*models))
    assert list(table.columns) == list(REFERENCE_COLUMNS)
    rows = table.set_index(["model", "condition"])
    row = rows.loc[("Qwen2.5-Math-7B", "mless")]
    assert row[["reference", "accuracy"]].tolist() == pytest.approx([74.6, 72.4])
    assert row["accuracy_low"] < 72.4 < row["accuracy_high"]
    assert pandas.isna(rows.loc[("Qwen2.5-32B-Instruct", "mless"), "accuracy"]), "not run"
    models = {"Qwen2.5-Math-7B", "Qwen2.5-32B-Instruct"}
    assert set(table["model"]) == models, "no other model of the reference is shown"


def test_without_any_of_its_models_the_reference_stands_alone():
    table = compare_with("study-table-3a", make_board(("mine", {"wo": 250, "mless": 250})))
    assert len(table) == 6 and table["accuracy"].isna().all() and table["reference"].notna().all()


def test_the_command_shows_published_numbers_in_text_and_json():
    text, data = (
        table_page(GREEDY_RUN, form=form, reference="study-table-1") for form in ("text", "json")
    )
    assert "Reference: Table 1 of Shi et al. (2025)" in text
    assert "MATH-500, layout as_published; sampling: " in one_line(text)
    reference = json.loads(data)["reference"]
    assert reference["name"] == "study-table-1"
    assert "mean of 5 runs" in reference["setup"] and len(reference["rows"]) == 12
    assert list(reference["rows"][0]) == list(REFERENCE_COLUMNS)


@with_cases
def test_a_reference_that_cannot_be_read_is_refused(tmp_path, original, damaged, message):
    path = tmp_path / "reference.yaml"
    path.write_text((FOLDER / "study-table-1.yaml").read_text().replace(original, damaged))
    with pytest.raises(ConfigError, match=message):
        read_reference(str(path))
