"""Published numbers next to those of runs."""

from pathlib import Path

import pandas
from pydantic import Field

from harness import resources
from harness.analysis.result_tables import records
from harness.display.comparison_columns import ACCURACY
from harness.display.comparison_tables import describe_words
from harness.display.format_table import Column, Table
from harness.display.format_values import number
from harness.errors import ConfigError
from harness.yaml_settings import Strict, read_values, validate

REFERENCE_COLUMNS = {
    "model": "the model's name in the reference",
    "layout": "layout of the run; missing if there is no run",
    "condition": "the condition",
    "reference": "published accuracy, percent",
    "accuracy": "accuracy of the run, percent",
    "accuracy_low": "lower end of its score interval, percent",
    "accuracy_high": "upper end",
}
"""Meaning of each column of `reference_table`."""


class ModelAccuracies(Strict):
    """One model's accuracies in percent, by condition."""

    model: str
    conditions: dict[str, float]


class PublishedTable(Strict):
    """One table of published numbers.

    Attributes:
        source: Paper, and table or figure.
        setup: How the numbers were produced: dataset, prompts, sampling and grading.
        accuracies: The numbers.
    """

    source: str
    setup: str
    accuracies: tuple[ModelAccuracies, ...] = Field(min_length=1)


def read_reference(name: str) -> PublishedTable:
    """Read a YAML file of reference numbers, or one in results/reference/ by its name.

    Raises:
        ConfigError: there is no such file, or it does not fit the schema.
    """
    shipped_folder = resources.folder("results") / "reference"
    path = Path(name)
    if not path.is_file():
        path = shipped_folder / f"{path.name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        names = ", ".join(sorted(file.stem for file in shipped_folder.glob("*.yaml")))
        raise ConfigError(f"Reference {name!r}: expected a YAML file, or one of {names}.")
    return validate(PublishedTable, read_values(path, "reference"), path)


def reference_table(comparison: pandas.DataFrame, reference: PublishedTable) -> pandas.DataFrame:
    """The reference's numbers next to those of runs, for the same models and conditions.

    Models that were not run are left out. If none of them was run, all have rows without numbers of
    runs.

    Args:
        comparison: `analysis.compare`, split by model and layout alone.
        reference: The published numbers.

    Returns:
        A frame with the columns of `REFERENCE_COLUMNS`.
    """
    run_rows = comparison.rename(columns={"model": "label"})
    run_rows["name"] = run_rows["label"].map(_normalise)
    rows = []
    for published in reference.accuracies:
        for condition, accuracy in published.conditions.items():
            row = {"model": published.model, "name": _normalise(published.model)}
            rows.append({**row, "condition": condition, "reference": accuracy})
    reference_rows = pandas.DataFrame(rows)
    was_run = reference_rows["name"].isin(run_rows["name"])
    if was_run.any():
        reference_rows = reference_rows[was_run]
    return reference_rows.merge(run_rows, on=["name", "condition"], how="left")[
        list(REFERENCE_COLUMNS)
    ]


def show_reference(table: pandas.DataFrame, reference: PublishedTable) -> Table:
    """The table in text. It judges no agreement, because the set-ups differ."""
    rows = records(table)
    shared_values, word_columns = describe_words(rows, ("model", "layout", "condition"))
    title = ", ".join([f"Reference: {reference.source}", *shared_values])
    columns = [*word_columns, Column("reference", "published %", number), ACCURACY]
    notes = [f"Published numbers: {reference.setup}."]
    if table["accuracy"].isna().all():
        notes.append("None of these models is among the runs.")
    return Table(title, rows, columns, notes)


def _normalise(model: str) -> str:
    """A model's name in lower case without punctuation, because spellings differ."""
    return "".join(filter(str.isalnum, model.lower()))
