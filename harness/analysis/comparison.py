"""`compare`: every condition against the baseline, with tests, intervals and verdicts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas

from harness.analysis.accuracy import accuracy
from harness.analysis.intervals import difference_bounds, hold_zero, score_interval
from harness.analysis.paired_tests import count_flips, paired_test
from harness.analysis.power import ALPHA, refuse_out_of_range
from harness.analysis.sample_counts import IntArray, Outcomes, count_outcomes, refuse_unpaired
from harness.analysis.verdicts import APART, EXPLORATORY, equivalence_p, judge
from harness.analysis.yardsticks import find_broken, measure_yardsticks
from harness.constants import DEFAULT_SEED
from harness.errors import ComparisonError
from harness.experiment.conditions import contrast_name, read_contrast

MARGIN = 1.0
"""Default of the equivalence margin, in points."""

COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "what stands between instruction and problem; or a contrast with another baseline: mless - random",
    "baseline": "the condition that it is compared with",
    "n": "problems",
    "k": "samples per problem",
    "accuracy": "percent right: mean over problems of the share of right samples (avg@k)",
    "standard_error": "of the accuracy, in points, clustered by problem",
    "accuracy_low": "lower end of the accuracy's score interval, percent",
    "accuracy_high": "upper end",
    "difference": "accuracy less the baseline's, in points, paired by problem",
    "low": "lower end of the difference's score interval, points; with alpha shared as p_adjusted does, and holding 0 "
    "exactly if that is not below alpha",
    "high": "upper end",
    "wrong_to_right": "problems that the baseline gets wrong and the condition right, mean over pairs of samples",
    "right_to_wrong": "the reverse",
    "discordance": "both together, percent of the problems",
    "problems_up": "problems with more right samples than under the baseline",
    "problems_down": "problems with fewer",
    "test": "mcnemar (k = 1, exact) or sign-flip and score (k > 1, the larger p of the two)",
    "p": "its two-sided p-value",
    "primary": "whether this is the contrast that the run is about, named before it",
    "family": "tests that p is adjusted with: registered (named before the run) or all in the table; others have none: "
    "exploratory, or a kind of yardstick",
    "tests": "how many tests share alpha with it: with a primary contrast the models and layouts, times the others "
    "for those behind it",
    "p_adjusted": "p after Holm over these; behind the primary contrast not below the primary's",
    "equivalence_low": "lower end of the score interval that equivalence is read from, points",
    "equivalence_high": "upper end",
    "equivalence_p": "p-value of two one-sided tests against the margin, never below what n problems may miss",
    "within_margin": "whether it is below alpha: that interval lies inside the margin, and there are enough problems",
    "margin": "the margin, points",
    "aa_difference": "second replicate of the baseline less the first, points",
    "aa_wrong_to_right": "flips between the two, as above",
    "aa_right_to_wrong": "the reverse",
    "wordings": "wordings without a filler: the baseline's and its harmless rewordings",
    "wording_spread": "standard deviation of the accuracy among these, points",
    "wording_difference": "accuracy less the mean of theirs, points",
    "fillers": "other fillers of the same length",
    "filler_spread": "standard deviation of the accuracy among these, points",
    "filler_difference": "accuracy less the mean of theirs, points",
    "verdict": "better or worse (adjusted p < alpha), else equivalent (within the margin), else inconclusive; "
    "baseline, exploratory, the yardsticks' kinds and set apart (a rewording that breaks the format) are not judged",
}
"""Meaning of each column of `compare`. Intervals have level 1 - alpha / tests, those of equivalence 1 - 2 alpha."""
_COUNTS = ("n", "k", "problems_up", "problems_down", "tests", "wordings", "fillers")
_NOISE = ("difference", "wrong_to_right", "right_to_wrong")
"""Columns that the second replicate of the baseline gets too, named `aa_...`."""


def compare(
    frame: pandas.DataFrame,
    *,
    baseline: str = "wo",
    margin: float = MARGIN,
    alpha: float = ALPHA,
    seed: int = DEFAULT_SEED,
    by: Sequence[str] = (),
    contrasts: Collection[str] | None = None,
    primary: str | None = None,
    left_out: Collection[tuple[str, str]] = (),
    yardsticks: Mapping[str, str] = MappingProxyType({}),
    behind: Mapping[str, float] = MappingProxyType({}),
) -> pandas.DataFrame:
    """Compare every condition with the baseline: one row for each model, layout and condition.

    A verdict rests on the adjusted p-value and on the equivalence interval alone. Intervals are score intervals, which
    keep their level with few flips. Those of tested differences share alpha as the tests do, and never contradict the
    verdict.

    Args:
        frame: One row per sample, as `harness.load_run` gives it, of one run or several. Replicate 0 is compared; the
            baseline's next replicate, if it was loaded too, gives the A/A columns.
        baseline: The condition that the others are compared with.
        margin: Equivalence margin in points.
        alpha: Level of the tests; intervals are of level 1 - alpha.
        seed: Seed of random sign flips, which only very many samples need. A row's flips depend on the seed and on
            the row's names, not on other rows.
        by: Further columns to split by, such as subject or level.
        contrasts: Differences to test, named before the run, such as `mless - wo`; the others are exploratory. One
            with another baseline, such as `mless - random`, gets a row of its own. By default every condition's from
            the baseline is tested.
        primary: The contrast that the run is about. It is tested first, at full alpha; the others can only be found
            behind it.
        left_out: Models with contrasts that were not named before their runs: exploratory there.
        yardsticks: Conditions that the others are held against, with the kind of each: `rewording`, `other filler` or
            `positive control`, as `harness.experiment.conditions.find_yardsticks` finds them. They are not tested.
        behind: By layout, the p-value of a pooled primary contrast (`pooled.pool`), which is tested before all others.

    Returns:
        A frame with the columns of `COLUMNS`, those of `by` after the layout, in the frame's own order.

    Raises:
        ComparisonError: no baseline, other problems, missing or doubled samples, or a number out of range.
        ConfigError: a contrast is not written as one.
    """
    refuse_out_of_range(
        ("margin", margin, 0 < margin < 100, "points above 0 and below 100"),
        ("alpha", alpha, 0 < alpha < 0.5, "a level between 0 and 0.5"),
    )
    counted = count_outcomes(frame, by=by)
    if primary is not None and by:
        raise ComparisonError("primary: it is tested over all problems: expected no `by` beside it. Leave one out.")
    pairs = {_row_name(*pair, baseline): pair for pair in map(read_contrast, contrasts or ())}
    _refuse_unknown(counted, baseline, pairs.values(), yardsticks)
    unnamed = {(model, _row_name(*read_contrast(name), baseline)) for model, name in left_out}
    about = None if primary is None else _row_name(*read_contrast(primary), baseline)
    if about is not None and about not in pairs:
        raise ComparisonError(f"primary: expected one of the contrasts, got {primary}. Name it in contrasts too.")
    broken = find_broken(frame, [name for name, kind in yardsticks.items() if kind == "rewording"], baseline=baseline)
    rows: list[dict[str, Any]] = []
    changes: list[IntArray | None] = []
    for setting in dict.fromkeys(one.setting for one in counted):
        here: dict[str, list[Outcomes]] = {}
        for one in counted:
            if one.setting == setting:
                here.setdefault(one.condition, []).append(one)
        first = {name: min(replicates, key=lambda one: one.replicate) for name, replicates in here.items()}
        noise: dict[str, Any] = {}
        if again := [one for one in here[baseline] if one is not first[baseline]]:
            twice = min(again, key=lambda one: one.replicate)
            refuse_unpaired(frame, first[baseline], twice)
            found = _difference(first[baseline], twice, _generator(seed, twice))
            noise = {f"aa_{name}": found[name] for name in _NOISE}
        table = []
        for name, (condition, against) in ({name: (name, baseline) for name in here} | pairs).items():
            if condition not in here or against not in here:
                continue
            new, old = first[condition], first[against]
            row = {**dict(setting), "condition": name, "baseline": against, **accuracy(new, level=1 - alpha)}
            row |= noise if against == baseline else {}
            if (str(row["model"]), str(row["layout"]), name) in broken:
                row["verdict"] = APART
            if condition != against:
                refuse_unpaired(frame, old, new)
                row |= _difference(old, new, _generator(seed, new)) | _equivalence(old, new, margin=margin, alpha=alpha)
                registered = (str(row["model"]), name) not in unnamed
                row |= {"primary": name == about and registered} | ({} if registered else {"verdict": EXPLORATORY})
            changes.append(None if condition == against else new.right - old.right)
            table.append({**row, "margin": margin})
        measure_yardsticks(
            table, {name: one.right / one.samples for name, one in first.items()}, yardsticks, baseline=baseline
        )
        rows += table
    judge(
        rows,
        family=None if contrasts is None else pairs,
        primary=about,
        yardsticks=yardsticks,
        behind=behind,
        alpha=alpha,
    )
    for row, change in zip(rows, changes, strict=True):
        if change is not None:
            row |= _interval(row, change, alpha=alpha)
    model, layout, *others = COLUMNS
    columns = [model, layout, *by, *others]
    return pandas.DataFrame(rows, columns=columns).astype(
        {**dict.fromkeys(_COUNTS, "Int64"), "primary": "boolean", "within_margin": "boolean"}
    )


def _row_name(condition: str, against: str, baseline: str) -> str:
    """What stands under `condition`: the condition where it is compared with the baseline, else the contrast."""
    return condition if against == baseline else contrast_name(condition, against)


def _generator(seed: int, one: Outcomes) -> np.random.Generator:
    """A random generator for one row, seeded with the row's names."""
    digest = hashlib.sha256(f"{seed}, {one.name}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest))


def _difference(old: Outcomes, new: Outcomes, rng: np.random.Generator) -> dict[str, Any]:
    changes = new.right - old.right
    up, down = int((changes > 0).sum()), int((changes < 0).sum())
    flips = count_flips(old.right, new.right, k=old.k)
    return {
        "difference": 100 * float(changes.mean()) / old.k,
        "wrong_to_right": flips.wrong_to_right,
        "right_to_wrong": flips.right_to_wrong,
        "discordance": 100 * flips.discordance,
        "problems_up": up,
        "problems_down": down,
        "test": "mcnemar" if old.k == 1 else "sign-flip and score",
        "p": paired_test(changes, old.k, rng=rng),
    }


def _equivalence(old: Outcomes, new: Outcomes, *, margin: float, alpha: float) -> dict[str, Any]:
    changes = new.right - old.right
    means, bounds = changes / old.k, difference_bounds(changes, old.k)
    low, high = score_interval(means, bounds=bounds, level=1 - 2 * alpha)
    within = equivalence_p(means, margin / 100, bounds=bounds)
    return {
        "equivalence_low": 100 * low,
        "equivalence_high": 100 * high,
        "equivalence_p": within,
        "within_margin": within < alpha,
    }


def _interval(row: Mapping[str, Any], changes: IntArray, *, alpha: float) -> dict[str, Any]:
    """The interval of a judged row. One without a test is of level 1 - alpha, and is left as it is."""
    k, tests = row["k"], row.get("tests", 1)
    ends = score_interval(changes / k, bounds=difference_bounds(changes, k), level=1 - alpha / tests)
    if "tests" in row:
        ends = hold_zero(ends, row["difference"], passed=row["p_adjusted"] < alpha)
    return {"low": 100 * ends[0], "high": 100 * ends[1]}


def _refuse_unknown(
    counted: Sequence[Outcomes], baseline: str, contrasts: Collection[tuple[str, str]], yardsticks: Collection[str]
) -> None:
    for setting in dict.fromkeys(one.setting for one in counted):
        names = dict.fromkeys(one.condition for one in counted if one.setting == setting)
        if baseline not in names:
            where = ", ".join(f"{column} {value}" for column, value in setting)
            raise ComparisonError(
                f"{where}: there is no baseline condition {baseline!r} to compare with: expected it among the "
                f"conditions, got {', '.join(names)}. Run it too, or name another baseline."
            )
    known = list(dict.fromkeys(one.condition for one in counted))
    for role, named in (("contrasts", [name for pair in contrasts for name in pair]), ("yardsticks", [*yardsticks])):
        if unknown := [name for name in named if name not in known]:
            raise ComparisonError(f"{role}: expected some of the conditions {', '.join(known)}, got {unknown[0]}.")
        if role == "contrasts" and (both := [name for name in yardsticks if name in named]):
            raise ComparisonError(f"contrasts: {both[0]} is a yardstick, which is not tested. Leave it out.")
    if baseline in yardsticks:
        raise ComparisonError(f"yardsticks: {baseline} is the baseline, and cannot be held against itself.")
