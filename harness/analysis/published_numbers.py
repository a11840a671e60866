"""Published numbers next to ours, and how the set-ups differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from pydantic import Field, ValidationError

from harness import resources
from harness.constants import BASELINE
from harness.errors import ConfigError
from harness.runs.versions_and_hashes import describe_sampling
from harness.yaml_settings import Strict, explain, read_values

REFERENCE_COLUMNS = {
    "model": "the reference's name of the model",
    "layout": "the run's; missing where there is none",
    "condition": "the condition",
    "accuracy": "the run's, percent",
    "accuracy_low": "lower end of its score interval, percent",
    "accuracy_high": "upper end",
    "authors_rule": "the run's, by the study's own grading rule",
    "reference": "the reference's accuracy, percent",
    "difference": "the run's from the baseline, points",
    "low": "lower end of its 95 % interval, points",
    "high": "upper end",
    "reference_difference": "the reference's difference from its baseline",
}
"""Meaning of each column of `reference_table`."""


class Setup(Strict):
    """How the numbers were made, in the reference's words, and of how many samples a problem they are the mean."""

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
        source: Paper and place in it.
        exact: Whether it was printed as numbers. If not, it was read off a figure.
        uncertainty: Points by which rounding or reading may have moved each number.
        dataset: Its name in run configs.
        setup: How the numbers were made.
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
        ConfigError: there is no such file, or it is not of that form.
    """
    shipped = resources.folder("results") / "reference"
    path = (
        Path(name)
        if Path(name).is_file()
        else shipped / f"{Path(name).name.removesuffix('.yaml')}.yaml"
    )
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
        raise ConfigError(f"Reference {name!r}: expected a YAML file, or one of {known}.")
    try:
        return Reference.model_validate(read_values(path, "reference"))
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from None


def reference_table(
    comparison: pandas.DataFrame,
    audit: pandas.DataFrame,
    reference: Reference,
    *,
    baseline: str = BASELINE,
) -> pandas.DataFrame:
    """Each number of the reference next to ours for the same model and condition: the columns of `REFERENCE_COLUMNS`.

    Models that we have not run are left out. If we have run none of them, all are kept, with their
    numbers alone.

    Args:
        comparison: `analysis.compare`, not split any further.
        audit: `mediators_and_audit.audit_table`, for the study's own rule.
        reference: The published numbers.
        baseline: The condition that others are compared with.
    """
    keys = ["model", "layout", "condition"]
    audited = audit[[*keys, "authors_rule"]].astype(dict.fromkeys(keys, object))
    ours = comparison.merge(audited, on=keys)
    ours["name"] = ours.pop("model").map(_bare)
    rows = []
    for entry in reference.accuracies:
        base = entry.conditions.get(baseline, math.nan)
        for condition, accuracy in entry.conditions.items():
            change = math.nan if condition == baseline else accuracy - base
            found = {"condition": condition, "reference": accuracy, "reference_difference": change}
            rows.append({"model": entry.model, "name": _bare(entry.model), **found})
    theirs = pandas.DataFrame(rows)
    run = theirs["name"].isin(ours["name"])
    table = theirs[run if run.any() else ~run].merge(ours, on=["name", "condition"], how="left")
    return table[list(REFERENCE_COLUMNS)]


def setup_differences(
    reference: Reference, receipts: Sequence[Mapping[str, Any]], layouts: Sequence[str]
) -> list[str]:
    """Sentences about differences between the reference's set-up and ours.

    Args:
        reference: The published numbers.
        receipts: Our runs' facts, as of `read_runs.Run.about`.
        layouts: Our prompts' layouts.
    """
    theirs = {_bare(entry.model) for entry in reference.accuracies}
    strangers = dict.fromkeys(one["model"] for one in receipts if _bare(one["model"]) not in theirs)
    said = [f"Model: {', '.join(strangers)} is not in the reference."] if strangers else []
    setup = reference.setup
    compared: dict[str, tuple[str, Iterable[str]]] = {
        "Dataset": (
            reference.dataset,
            (one.get("dataset_name") or "not named in the logs" for one in receipts),
        ),
        "Sampling": (setup.sampling, (describe_sampling(one) or "not known" for one in receipts)),
        "Prompt": (setup.layout, layouts),
        "Grader": (
            setup.grader,
            (one.get("metric") or "compares the last box as mathematics" for one in receipts),
        ),
    }
    for what, (published, ours) in compared.items():
        if (found := list(dict.fromkeys(ours))) != [published]:
            said.append(f"{what}: theirs is {published}; ours {', '.join(found)}.")
    return said


def _bare(model: str) -> str:
    """A model's name in lower case without punctuation, in which spellings differ."""
    return "".join(letter for letter in model.lower() if letter.isalnum())
