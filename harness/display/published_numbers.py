"""Published numbers next to those of runs, and how the set-ups differ."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from pydantic import Field

from harness import resources
from harness.constants import BASELINE
from harness.errors import ConfigError
from harness.runs.versions_and_hashes import describe_sampling
from harness.yaml_settings import Strict, read_values, validate

REFERENCE_COLUMNS = {
    "model": "the model's name in the reference",
    "layout": "layout of the run; missing if there is no run",
    "condition": "the condition",
    "accuracy": "accuracy of the run, percent",
    "accuracy_low": "lower end of its score interval, percent",
    "accuracy_high": "upper end",
    "authors_rule": "accuracy of the run by the study's grading rule, percent",
    "reference": "published accuracy, percent",
    "difference": "difference from the baseline in the run",
    "low": "lower end of its 95 % interval",
    "high": "upper end",
    "reference_difference": "published difference from the baseline",
}
"""Meaning of each column of `reference_table`."""


class Setup(Strict):
    """How the numbers were produced, in the words of the reference.

    Attributes:
        sampling, layout, grader: As sentences have them.
        samples: The number of samples per problem over which the numbers are means.
    """

    sampling: str
    layout: str
    grader: str
    samples: int = Field(default=1, ge=1)


class ModelAccuracies(Strict):
    """One model's accuracies in percent, by condition."""

    model: str
    conditions: dict[str, float]


class Reference(Strict):
    """One table of published numbers.

    Attributes:
        source: Paper, and table or figure.
        exact: Whether the numbers were printed. If not, they were read off a figure.
        uncertainty: Possible error of each number by rounding or reading, points.
        dataset: Its name in run configs.
        setup: How the numbers were produced.
        accuracies: The numbers.
    """

    source: str
    exact: bool
    uncertainty: float = Field(ge=0)
    dataset: str
    setup: Setup
    accuracies: tuple[ModelAccuracies, ...] = Field(min_length=1)


def read_reference(name: str) -> Reference:
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
    return validate(Reference, read_values(path, "reference"), path)


def reference_table(
    comparison: pandas.DataFrame,
    audit: pandas.DataFrame,
    reference: Reference,
    *,
    baseline: str = BASELINE,
) -> pandas.DataFrame:
    """The reference's numbers next to those of runs, for the same models and conditions.

    Models that were not run are left out. If none of them was run, all have rows without numbers of
    runs.

    Args:
        comparison: `analysis.compare`, split by model and layout alone.
        audit: `mediators_and_audit.audit_table`, for the grading rule of the study.
        reference: The published numbers.
        baseline: The condition that the others are compared with.

    Returns:
        A frame with the columns of `REFERENCE_COLUMNS`.
    """
    keys = ["model", "layout", "condition"]
    audit_columns = audit[[*keys, "authors_rule"]].astype(dict.fromkeys(keys, object))
    run_rows = comparison.merge(audit_columns, on=keys)
    run_rows["name"] = run_rows.pop("model").map(_normalise)
    rows = []
    for model_accuracies in reference.accuracies:
        baseline_accuracy = model_accuracies.conditions.get(baseline, math.nan)
        for condition, accuracy in model_accuracies.conditions.items():
            row: dict[str, Any] = {
                "model": model_accuracies.model,
                "name": _normalise(model_accuracies.model),
                "condition": condition,
            }
            row |= {"reference": accuracy, "reference_difference": accuracy - baseline_accuracy}
            rows.append(row)
    reference_rows = pandas.DataFrame(rows)
    # the baseline has no difference from itself
    reference_rows.loc[reference_rows["condition"] == baseline, "reference_difference"] = math.nan
    was_run = reference_rows["name"].isin(run_rows["name"])
    if was_run.any():
        reference_rows = reference_rows[was_run]
    return reference_rows.merge(run_rows, on=["name", "condition"], how="left")[
        list(REFERENCE_COLUMNS)
    ]


def setup_differences(
    reference: Reference, receipts: Sequence[Mapping[str, Any]], layouts: Sequence[str]
) -> list[str]:
    """Sentences about differences between the set-up of the reference and that of runs.

    Args:
        reference: The published numbers.
        receipts: `about` of each run.
        layouts: The layouts of the runs' prompts.
    """
    reference_models = {
        _normalise(model_accuracies.model) for model_accuracies in reference.accuracies
    }
    models = dict.fromkeys(receipt["model"] for receipt in receipts)
    unknown_models = [model for model in models if _normalise(model) not in reference_models]
    sentences = []
    if unknown_models:
        sentences.append(f"Model: {', '.join(unknown_models)} is not in the reference.")
    setup = reference.setup
    datasets = [receipt.get("dataset_name") for receipt in receipts]
    samplings = [describe_sampling(receipt) for receipt in receipts]
    graders = [receipt.get("metric") for receipt in receipts]
    for topic, published, run_descriptions, default in (
        ("Dataset", reference.dataset, datasets, "not named in the logs"),
        ("Sampling", setup.sampling, samplings, "not known"),
        ("Prompt", setup.layout, layouts, "not known"),
        ("Grader", setup.grader, graders, "compares the last box as mathematics"),
    ):
        descriptions = list(
            dict.fromkeys(description or default for description in run_descriptions)
        )
        if descriptions != [published]:
            sentences.append(f"{topic}: {published} (published), {', '.join(descriptions)} (run).")
    return sentences


def _normalise(model: str) -> str:
    """A model's name in lower case without punctuation, because spellings differ."""
    return "".join(filter(str.isalnum, model.lower()))
