"""Published numbers beside ours: whether they lie in our intervals, and how the set-ups differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas
from pydantic import Field, ValidationError
from scipy.special import ndtri

from harness import resources
from harness.constants import ALPHA, BASELINE
from harness.errors import ConfigError
from harness.runs.receipts import describe_sampling
from harness.yaml_settings import Strict, explain, read_values

REFERENCE_COLUMNS = {
    "model": "the reference's name of the model",
    "layout": "the run's; missing where there is none",
    "condition": "the condition",
    "accuracy": "the run's, percent",
    "low": "lower end of where the reference lies in 95 of 100 cases, if only the dice differ; missing if k is 1",
    "high": "upper end",
    "authors_rule": "the run's, by the study's own grading rule",
    "reference": "the reference's accuracy, percent",
    "agrees": "whether it lies there, give or take its uncertainty; missing on other data",
    "difference": "the run's from the baseline, points",
    "difference_low": "lower end of where the reference's lies, likewise",
    "difference_high": "upper end",
    "reference_difference": "the reference's difference from its baseline",
    "difference_agrees": "whether that lies there, give or take twice that uncertainty; missing on other data",
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
    path = Path(name) if Path(name).is_file() else shipped / f"{Path(name).name.removesuffix('.yaml')}.yaml"
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
    frame: pandas.DataFrame,
    *,
    receipts: Sequence[Mapping[str, Any]] = (),
    baseline: str = BASELINE,
) -> pandas.DataFrame:
    """Each number of the reference beside ours for the same model and condition: the columns of `REFERENCE_COLUMNS`.

    Both are of the same problems. So a model that is the same differs by what the dice do, in both runs, and by nothing
    else: the error of drawing the samples alone, theirs taken to be that of a run with as many samples a problem as it
    names. Seeds that our conditions share make differences scatter less than this says.

    Models that we have not run are left out. If we have run none of them, all are kept, with their numbers alone. On
    another dataset, and where our problems have one sample each, numbers neither agree nor differ.

    Args:
        comparison: `analysis.compare`, not split any further.
        audit: `controls.audit_table`, for the study's own rule.
        reference: The published numbers.
        frame: Our samples, one row each.
        receipts: Our runs' facts, as of `read.Run.about`.
        baseline: The condition that others are compared with.
    """
    keys = ["model", "layout", "condition"]
    audited = audit[[*keys, "authors_rule"]].astype(dict.fromkeys(keys, object))
    ours = comparison.drop(columns=["low", "high"]).merge(audited, on=keys).merge(_sampling_variance(frame), on=keys)
    spread = ours["sampling_variance"] * (1 + ours["k"].astype(float) / reference.setup.samples)
    of_baseline = spread.where(ours["condition"] == baseline).groupby([ours["model"], ours["layout"]])
    both = spread + of_baseline.transform("first")
    for name, centre, variance in (("", "accuracy", spread), ("difference_", "difference", both)):
        reach = float(ndtri(1 - ALPHA / 2)) * variance**0.5
        ours[f"{name}low"], ours[f"{name}high"] = ours[centre] - reach, ours[centre] + reach
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
    same = {one.get("dataset_name") for one in receipts} <= {None, reference.dataset}
    for prefix, error in (("", reference.uncertainty), ("difference_", 2 * reference.uncertainty)):
        value, low, high = table[f"reference_{prefix}".rstrip("_")], table[f"{prefix}low"], table[f"{prefix}high"]
        inside = ((low - error <= value) & (value <= high + error)).astype("boolean")
        table[f"{prefix}agrees"] = inside.where(value.notna() & low.notna() & same)
    return table[list(REFERENCE_COLUMNS)]


def _sampling_variance(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The variance, in squared points, of each accuracy from drawing the samples alone, the problems held fixed.

    It says how far another run on the same problems would move. One sample a problem shows none: then it is missing.
    """
    keys = ["model", "layout", "condition"]
    first = frame[frame["replicate"] == 0].astype({**dict.fromkeys(keys, str), "correct": float})
    share, k = (first.groupby([*keys, "problem_id"], sort=False)["correct"].agg(of) for of in ("mean", "size"))
    problems = (share * (1 - share) / (k - 1)).where(k > 1).groupby(keys, sort=False)
    return (1e4 * problems.mean() / problems.size()).rename("sampling_variance").reset_index()


def setup_differences(reference: Reference, receipts: Sequence[Mapping[str, Any]], layouts: Sequence[str]) -> list[str]:
    """Sentences about differences between the reference's set-up and ours.

    Args:
        reference: The published numbers.
        receipts: Our runs' facts, as of `read.Run.about`.
        layouts: Our prompts' layouts.
    """
    theirs = {_bare(entry.model) for entry in reference.accuracies}
    strangers = dict.fromkeys(one["model"] for one in receipts if _bare(one["model"]) not in theirs)
    said = [f"Model: {', '.join(strangers)} is not in the reference."] if strangers else []
    setup = reference.setup
    compared: dict[str, tuple[str, Iterable[str]]] = {
        "Dataset": (reference.dataset, (one.get("dataset_name") or "not named in the logs" for one in receipts)),
        "Sampling": (setup.sampling, (describe_sampling(one) or "not known" for one in receipts)),
        "Prompt": (setup.layout, layouts),
        "Grader": (setup.grader, (one.get("metric") or "compares the last box as mathematics" for one in receipts)),
    }
    for what, (published, ours) in compared.items():
        if (found := list(dict.fromkeys(ours))) != [published]:
            said.append(f"{what}: theirs is {published}; ours {', '.join(found)}.")
    return said


def _bare(model: str) -> str:
    """A model's name in lower case without punctuation, in which spellings differ."""
    return "".join(letter for letter in model.lower() if letter.isalnum())
