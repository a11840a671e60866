"""Published numbers beside ours: whether they agree within our interval, and what differs in the set-up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, Field, ValidationError

from harness import resources
from harness.errors import ConfigError
from harness.experiment.conditions import BASELINE
from harness.experiment.yaml_settings import Strict, explain

if TYPE_CHECKING:
    import pandas

COLUMNS = {
    "model": "the reference's name of the model",
    "layout": "ours; missing where we have not run it",
    "condition": "which",
    "accuracy": "ours, percent",
    "low": "lower end of its interval",
    "high": "upper end",
    "authors_rule": "ours, as the study's own grading rule has it",
    "reference": "the reference's accuracy, percent",
    "agrees": "whether it lies in our interval, give or take its own rounding or reading error; missing on other data",
    "difference": "ours from the baseline, points",
    "difference_low": "lower end of its interval",
    "difference_high": "upper end",
    "reference_difference": "the reference's difference from its baseline",
    "difference_agrees": "whether that lies in our interval, give or take twice that error; missing on other data",
}
"""What each column of `reference_table` is."""


class Setup(Strict):
    """How the numbers were made, in the reference's words."""

    sampling: str
    layout: str
    grader: str


class ModelAccuracies(Strict):
    """One model's accuracies in percent, by condition."""

    model: str
    conditions: dict[str, float]


class Reference(Strict):
    """One table of published numbers.

    Attributes:
        source: Where it stands.
        exact: Whether it was printed as numbers; else it was read off a figure.
        uncertainty: Points that rounding or reading may have moved each number.
        dataset: As run configs name it.
        setup: How it was made.
        accuracies: The numbers.
    """

    source: str
    exact: bool
    uncertainty: float = Field(ge=0)
    dataset: str
    setup: Setup
    accuracies: tuple[ModelAccuracies, ...] = Field(min_length=1)


def read_reference(name: str) -> Reference:
    """The reference numbers of a name in results/reference/, with or without `.yaml`, or of a YAML file.

    Raises:
        ConfigError: there are none, or the file is not of that form.
    """
    shipped = resources.folder("results") / "reference"
    path = Path(name) if Path(name).is_file() else shipped / f"{Path(name).name.removesuffix('.yaml')}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in shipped.glob("*.yaml")))
        raise ConfigError(f"Reference {name!r} does not exist: expected a YAML file, or one of {known}.")
    try:
        return Reference.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        nested: dict[str, type[BaseModel]] = {"setup": Setup, "accuracies": ModelAccuracies}
        raise ConfigError(explain(error, str(path), Reference, nested)) from None


def reference_table(
    comparison: pandas.DataFrame,
    audit: pandas.DataFrame,
    reference: Reference,
    *,
    receipts: Sequence[Mapping[str, Any]] = (),
    baseline: str = BASELINE,
) -> pandas.DataFrame:
    """The reference's numbers, each beside ours of that model and condition: the columns of `COLUMNS`.

    Models that we have not run are left out, unless we have run none of them: then all stand there alone. Numbers on
    another dataset neither agree nor differ.

    Args:
        comparison: `analysis.compare`, not split any further.
        audit: `leaderboard.audit_table`, for the study's own rule.
        reference: The published numbers.
        receipts: Our runs' facts, as of `run.Run`.
        baseline: The condition that others are compared with.
    """
    import pandas

    same_data = {one.get("dataset_name") for one in receipts} <= {None, reference.dataset}
    ours = [(row, audited) for row, audited in zip(_rows(comparison), _rows(audit), strict=True)]
    run = {_bare(row["model"]) for row, _ in ours}
    asked = [entry for entry in reference.accuracies if _bare(entry.model) in run] or list(reference.accuracies)
    rows = []
    for entry in asked:
        for condition, accuracy in entry.conditions.items():
            change = accuracy - entry.conditions[baseline] if baseline in entry.conditions else math.nan
            theirs = {
                "model": entry.model,
                "condition": condition,
                "reference": accuracy,
                "reference_difference": math.nan if condition == baseline else change,
            }
            found = [
                pair
                for pair in ours
                if (_bare(pair[0]["model"]), pair[0]["condition"]) == (_bare(entry.model), condition)
            ]
            rows += [theirs | _our_part(row, audited, theirs, reference.uncertainty) for row, audited in found] or [
                theirs
            ]
    table = pandas.DataFrame(rows, columns=list(COLUMNS))
    judgements = ["agrees", "difference_agrees"]
    if not same_data:
        table[judgements] = None
    return table.astype(dict.fromkeys(judgements, "boolean"))


def setup_differences(reference: Reference, receipts: Sequence[Mapping[str, Any]], layouts: Sequence[str]) -> list[str]:
    """What differs between the reference's set-up and ours, one sentence each.

    Args:
        reference: The published numbers.
        receipts: Our runs' facts, as of `run.Run`.
        layouts: Our prompts' layouts.
    """
    said = []
    theirs = {_bare(entry.model) for entry in reference.accuracies}
    if others := [one["model"] for one in receipts if _bare(one["model"]) not in theirs]:
        said.append(
            f"Model: {', '.join(dict.fromkeys(others))} is not in the reference, so nothing agrees or disagrees."
        )
    unnamed = "not named in the logs"
    datasets = _different(one.get("dataset_name") or unnamed for one in receipts)
    if datasets != [reference.dataset]:
        follows = ", so nothing agrees or disagrees" if {*datasets} - {reference.dataset, unnamed} else ""
        said.append(f"Dataset: theirs is {reference.dataset}, ours {', '.join(datasets)}{follows}.")
    drawn = _different("greedy" if one.get("greedy") else _sampling(one) for one in receipts)
    said.append(f"Sampling: theirs is {reference.setup.sampling}; ours {', '.join(drawn)}.")
    if _different(layouts) != [reference.setup.layout]:
        said.append(f"Prompt: theirs is the layout {reference.setup.layout}, ours {', '.join(_different(layouts))}.")
    graders = _different(one.get("metric") or "compares the last box as mathematics" for one in receipts)
    said.append(
        f"Grader: theirs is {reference.setup.grader}; ours {', '.join(graders)}. The column authors' has our "
        "completions by their rule."
    )
    return said


def _our_part(
    row: Mapping[str, Any], audited: Mapping[str, Any], theirs: Mapping[str, Any], error: float
) -> dict[str, Any]:
    """Our part of a row."""
    change = theirs["reference_difference"]
    compared = not math.isnan(change) and not math.isnan(row["difference"])
    inside = row["low"] - 2 * error <= change <= row["high"] + 2 * error
    return {
        "layout": row["layout"],
        "accuracy": row["accuracy"],
        "low": row["accuracy_low"],
        "high": row["accuracy_high"],
        "authors_rule": audited["authors_rule"],
        "agrees": row["accuracy_low"] - error <= theirs["reference"] <= row["accuracy_high"] + error,
        "difference": row["difference"],
        "difference_low": row["low"],
        "difference_high": row["high"],
        "difference_agrees": inside if compared else None,
    }


def _rows(frame: pandas.DataFrame) -> list[dict[Any, Any]]:
    return frame.to_dict("records")


def _sampling(facts: Mapping[str, Any]) -> str:
    values = facts.get("sampling") or {}
    drawn = [f"{name} {values[name]:g}" for name in ("temperature", "top_p", "top_k") if values.get(name)]
    return ", ".join(drawn) or "not known"


def _different(values: Any) -> list[str]:
    return list(dict.fromkeys(str(value) for value in values))


def _bare(model: str) -> str:
    """A model's name without what spellings differ in."""
    return "".join(letter for letter in model.lower() if letter.isalnum())
