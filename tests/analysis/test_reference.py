import json

import pandas
import pytest

from harness import resources
from harness.analysis.published_numbers import (
    REFERENCE_COLUMNS,
    read_reference,
    reference_table,
    setup_differences,
)
from harness.analysis.result_tables import make_leaderboard
from harness.errors import ConfigError
from tests.make import GREEDY_RUN, evaluation, table_page

SHIPPED = sorted(file.stem for file in (resources.folder("results") / "reference").glob("*.yaml"))


def board(*models, **facts):
    """Models with accuracies {condition: right of 500}."""
    return make_leaderboard(
        [
            evaluation(
                {
                    name: [["correct"]] * right + [["incorrect"]] * (500 - right)
                    for name, right in arms.items()
                },
                model=model,
                **facts,
            )
            for model, arms in models
        ]
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_every_table_has_its_source(name):
    reference = read_reference(name)
    assert "arXiv 2510.01032" in reference.source and reference.dataset == "math500"
    assert reference.uncertainty == (0.05 if reference.exact else 1)


def test_published_numbers_stand_next_to_ours():
    reference = read_reference("study-table-1")
    ours = board(
        ("qwen2.5-math-7b", {"wo": 360, "mless": 362}), ("Qwen2.5-32B-Instruct", {"wo": 300})
    )
    table = reference_table(ours.comparison, ours.side_tables["audit"], reference)
    assert list(table.columns) == list(REFERENCE_COLUMNS)
    rows = table.set_index(["model", "condition"])
    row = rows.loc[("Qwen2.5-Math-7B", "mless")]
    assert row[["accuracy", "authors_rule", "reference"]].tolist() == pytest.approx(
        [72.4, 72.4, 74.6]
    )
    assert row["accuracy_low"] < 72.4 < row["accuracy_high"]
    assert row[["difference", "reference_difference"]].tolist() == pytest.approx([0.4, 2.3])
    assert row["low"] < 0.4 < row["high"]
    assert pandas.isna(rows.loc[("Qwen2.5-32B-Instruct", "mless"), "accuracy"]), (
        "we have not run it"
    )
    assert set(table["model"]) == {"Qwen2.5-Math-7B", "Qwen2.5-32B-Instruct"}, (
        "no other model is shown"
    )


def test_without_any_of_its_models_the_reference_stands_alone():
    ours = board(("mine", {"wo": 250, "mless": 250}))
    table = reference_table(
        ours.comparison, ours.side_tables["audit"], read_reference("study-table-3a")
    )
    assert len(table) == 6 and table["accuracy"].isna().all() and table["reference"].notna().all()


def test_what_differs_in_the_set_up_is_said():
    reference = read_reference("study-table-1")
    made = board(
        ("mine", {"wo": 1}),
        dataset_name="demo",
        sampling={"temperature": 0.7, "top_p": 0.95},
        greedy=False,
    )
    model, dataset, sampling, prompt, grader = setup_differences(
        reference, made.receipt, ["raw", "raw"]
    )
    assert model.startswith("Model: mine is not in the reference")
    assert dataset == "Dataset: math500 (published), demo (run)."
    assert sampling.endswith("mean of 5 runs (published), temperature 0.7, top_p 0.95 (run).")
    assert prompt == "Prompt: as_published (published), raw (run)."
    assert grader.startswith("Grader: ") and grader.endswith(" as mathematics (run).")
    same = board(("Qwen2.5-Math-7B", {"wo": 1}), dataset_name="math500")
    said = setup_differences(reference, same.receipt, ["as_published"])
    assert [line.split(":")[0] for line in said] == ["Sampling", "Grader"], (
        "what cannot be settled is stated"
    )


def test_the_command_shows_them_in_every_format():
    text = table_page(GREEDY_RUN, reference="study-table-1")
    assert (
        "Reference: Table 1 of Shi et al. (2025)" in text
        and "mless-demo is not in the reference" in text
    )
    data = json.loads(table_page(GREEDY_RUN, form="json", reference="study-table-1"))["reference"]
    assert data["name"] == "study-table-1" and data["setup"]["layout"] == "as_published"
    assert (
        len(data["rows"]) == 12
        and list(data["rows"][0]) == list(REFERENCE_COLUMNS)
        and len(data["differences"]) == 5
    )
    assert table_page(GREEDY_RUN, form="csv", reference="study-table-1").startswith(
        '"model","layout","condition","accuracy",'
    )


def test_bad_references_are_refused(tmp_path):
    for name in ("table-9", str(tmp_path)):
        with pytest.raises(ConfigError, match=f"Reference '{name}': .* one of seed-bar-chart, st"):
            read_reference(name)
    with pytest.raises(
        ConfigError, match="--reference has numbers for all problems together: use it without --by"
    ):
        table_page(GREEDY_RUN, by=["level"], reference="study-table-1")
    whole = (resources.folder("results") / "reference" / "study-table-1.yaml").read_text()
    for change, message in (
        (whole.replace("uncertainty", "sigma"), "unknown key 'sigma'"),
        (whole.replace("{wo: 63.9,", "{wo: many,"), "accuracies.0.conditions.wo: "),
        (whole.replace("source:", "source: ]"), "is not valid YAML"),
    ):
        path = tmp_path / "r.yaml"
        path.write_text(change)
        with pytest.raises(ConfigError, match=message):
            read_reference(str(path))
