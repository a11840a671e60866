"""`compare`: every condition against the baseline, with tests, intervals and verdicts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas

from harness.analysis.controls import APART, find_broken, measure_rewordings
from harness.analysis.outcomes import Outcomes, Setting, by_setting, count_outcomes, measure_accuracy, refuse_unpaired
from harness.analysis.tests import (
    by_cluster,
    count_flips,
    equivalence_p,
    hold_zero,
    holm,
    paired_test,
    score_interval,
    verdict,
)
from harness.constants import ALPHA, BASELINE, DEFAULT_SEED, FEWEST_GRADED, MARGIN, PASSED
from harness.errors import ComparisonError
from harness.experiment.conditions import contrast_name, read_contrast

COMPARISON_COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition, or a contrast with another baseline: mless - random",
    "baseline": "the condition that it is compared with",
    "n": "problems",
    "k": "samples per problem",
    "accuracy": "percent right (avg@k)",
    "standard_error": "of the accuracy, in points, clustered by problem or cluster of problems",
    "accuracy_low": "lower end of the accuracy's score interval, percent",
    "accuracy_high": "upper end",
    "difference": "accuracy less the baseline's, in points, paired by problem",
    "low": "lower end of its score interval, points; cut at 0, or extended to 0, to agree with p_adjusted",
    "high": "upper end",
    "answer_difference": "the part of the difference from pairs of samples that both have a graded answer, points",
    "answer_low": "lower end of its score interval, not adjusted; the rest of the difference is format",
    "answer_high": "upper end",
    "by_format": "whether a difference that is judged better or worse may be all format",
    "graded": "percent of the samples with a graded answer",
    "least_difference": "the difference if every ungraded sample of the baseline alone were right, points",
    "most_difference": "the same of the condition's",
    "wrong_to_right": "problems that become right, mean over pairs of samples with one draw of examples",
    "right_to_wrong": "the reverse",
    "discordance": "both together, percent of the problems",
    "problems_up": "problems with more right samples than under the baseline",
    "problems_down": "problems with fewer",
    "test": "mcnemar (k = 1, exact) or sign-flip and score (k > 1 or clusters, the larger p of the two)",
    "p": "its two-sided p-value",
    "primary": "whether this is the run's primary contrast",
    "family": "tests that p is adjusted with: registered or all; exploratory ones have none",
    "tests": "how many tests share alpha with it",
    "p_adjusted": "p after Holm over these; not below the primary contrast's",
    "equivalence_low": "lower end of the interval of equivalence, points",
    "equivalence_high": "upper end",
    "equivalence_p": "p of two one-sided tests against the margin, never below what so many clusters may miss",
    "within_margin": "whether it is below alpha",
    "margin": "the margin, points",
    "aa_difference": "the difference when both sides were run again, less the first: its own noise, points",
    "aa_low": "lower end of its score interval, not adjusted",
    "aa_high": "upper end",
    "wordings": "wordings without a filler: the baseline's and its rewordings",
    "wording_low": "the least accuracy among these, percent",
    "wording_high": "the greatest",
    "wording_difference": "accuracy less the wordings' mean, points",
    "verdict": "better, worse, equivalent, inconclusive, unmeasured, exploratory, or baseline",
    "unmeasured": "why the run could not have shown equivalence",
}
"""Meaning of each column of `compare`. Intervals have level 1 - alpha / tests, those of equivalence 1 - 2 alpha."""
_COUNTS = ("n", "k", "problems_up", "problems_down", "tests", "wordings")

Row = dict[str, Any]
"""A row of `compare`. A row without a difference is a baseline."""


def compare(
    frame: pandas.DataFrame,
    *,
    baseline: str = BASELINE,
    margin: float = MARGIN,
    by: Sequence[str] = (),
    contrasts: Collection[str] | None = None,
    primary: str | None = None,
    left_out: Collection[tuple[str, str]] = (),
    yardsticks: Mapping[str, str] = MappingProxyType({}),
    counted: Sequence[Outcomes] | None = None,
) -> pandas.DataFrame:
    """Compare every condition with the baseline: one row for each model, layout and condition.

    A verdict rests on the adjusted p-value and on the equivalence interval alone. Intervals are score intervals, which
    keep their level with few flips. Those of tested differences share alpha as the tests do, and are cut at 0 or
    extended to it where they would contradict the verdict.

    Args:
        frame: One row per sample, as `harness.load_run` gives it, of one run or several. Replicate 0 is compared; the
            next replicate of both sides of a contrast, if they were run again, gives the A/A columns.
        baseline: The condition that the others are compared with.
        margin: Equivalence margin in points.
        by: Further columns to split by, such as subject or level.
        contrasts: Differences to test, named before the run, such as `mless - wo`; the others are exploratory. One
            with another baseline, such as `mless - random`, gets a row of its own. By default every condition's from
            the baseline is tested.
        primary: The contrast that the run is about. It is tested first, at full alpha; the others can only be found
            behind it.
        left_out: Models with contrasts that were not named before their runs: exploratory there.
        yardsticks: Conditions that the others are held against, with the kind of each: `rewording`, `other filler`,
            `other wording` or `positive control`, as `harness.experiment.conditions.find_yardsticks` finds them. They
            are not tested.
        counted: `outcomes.count_outcomes` of the frame, where there is one already.

    Returns:
        A frame with the columns of `COMPARISON_COLUMNS`, those of `by` after the layout, in the frame's own order.

    Raises:
        ComparisonError: no baseline, other problems, missing or doubled samples, or a margin out of range.
        ConfigError: a contrast is not written as one.
    """
    if not 0 < margin < 100:
        raise ComparisonError(f"margin: expected points above 0 and below 100, got {margin}.")
    if primary is not None and (by or primary not in (contrasts or ())):
        raise ComparisonError(f"primary: expected one of the contrasts, over all problems, got {primary}.")
    settings = by_setting(count_outcomes(frame, by=by) if counted is None else counted)
    pairs = {row_name(*pair, baseline): pair for pair in map(read_contrast, contrasts or ())}
    _refuse_unknown(settings, baseline, pairs.values())
    unnamed = {(model, row_name(*read_contrast(name), baseline)) for model, name in left_out}
    about = None if primary is None else row_name(*read_contrast(primary), baseline)
    rewordings = [name for name, kind in yardsticks.items() if kind == "rewording"]
    broken = find_broken(settings, rewordings, baseline=baseline) if rewordings else {}
    rows: list[Row] = []
    for setting, arms in settings.items():
        table = []
        for name, (condition, against) in ({name: (name, baseline) for name in arms} | pairs).items():
            if condition not in arms or against not in arms:
                continue
            new, old = arms[condition][0], arms[against][0]
            row = {**dict(setting), "condition": name, "baseline": against, "margin": margin}
            row |= measure_accuracy(new)
            model = str(row["model"])
            if (setting, name) in broken:
                row["verdict"] = APART
            if condition != against:
                registered = (model, name) not in unnamed
                row |= (
                    _compare_pair(old, new, margin=margin)
                    | _measure_again(arms[against], arms[condition])
                    | {"primary": name == about and registered}
                    | ({} if registered else {"verdict": "exploratory"})
                )
            table.append(row)
        for row in table:
            row["unmeasured"] = _why_unmeasured(row, table, yardsticks)
        measure_rewordings(table, yardsticks, baseline=baseline)
        rows += table
    family = None if contrasts is None else pairs
    judge(rows, family=family, primary=about, yardsticks=yardsticks)
    for row in rows:
        if "changes" in row:
            row |= _interval(row)
    model_column, layout_column, *others = COMPARISON_COLUMNS
    return pandas.DataFrame(rows, columns=[model_column, layout_column, *by, *others]).astype(
        {**dict.fromkeys(_COUNTS, "Int64"), **dict.fromkeys(("primary", "within_margin", "by_format"), "boolean")}
    )


def effects_by_draw(frame: pandas.DataFrame, pairs: Mapping[str, tuple[str, str]]) -> Iterator[Row]:
    """The difference of each pair of conditions with each draw of examples, in points; nothing for a single draw."""
    several = frame[frame["replicate"] == 0] if "draw" in frame else frame[:0]
    for (model, layout), part in several.groupby(["model", "layout"], observed=True, sort=False):
        arms: Any = 100 * part.groupby(["condition", "draw"], observed=True)["correct"].mean().unstack("draw")
        for new, old in pairs.values():
            if {new, old} <= {*arms.index} and len(arms.columns) > 1:
                points = (arms.loc[new] - arms.loc[old]).tolist()
                yield {"model": model, "layout": layout, "contrast": contrast_name(new, old), "differences": points}


def row_name(condition: str, against: str, baseline: str) -> str:
    """What stands under `condition`: the condition where it is compared with the baseline, else the contrast."""
    return condition if against == baseline else contrast_name(condition, against)


def judge(
    rows: Sequence[Row],
    *,
    family: Collection[str] | None,
    primary: str | None,
    yardsticks: Mapping[str, str],
) -> None:
    """Add to each row its family, with how many tests it shares alpha, the p-value adjusted in it, and the verdict.

    The chance that a table calls anything better or worse by mistake is at most alpha. Without a primary contrast all
    tests share it. With one, every model and layout has an equal share; there the primary contrast is tested first,
    with the whole share, and the others can only be found if it is.

    Args:
        rows: All rows of a table.
        family: Rows to test, by what stands under `condition`, named before the run; all others are exploratory. None
            if none were named; then all are tested.
        primary: The one of the family that the run is about, if any.
        yardsticks: Conditions that are not tested, with the kind of each.

    Source:
        Serial gatekeeping: Westfall and Krishen (2001), doi:10.1016/S0378-3758(01)00077-5; shares: Bonferroni.
    """
    settings: dict[Any, list[Row]] = {}
    for row in rows:
        if "difference" not in row:
            row["verdict"] = "baseline"
            continue
        kind = row.get("verdict") or yardsticks.get(row["condition"])
        if kind is None and family is not None and row["condition"] not in family:
            kind = "exploratory"
        if kind:
            row |= {"family": kind, "verdict": kind}
        else:
            row["family"] = "all" if family is None else "registered"
            settings.setdefault((row["model"], row["layout"]) if primary else None, []).append(row)
    for tested in settings.values():
        gate = 0.0
        first = [row for row in tested if row["condition"] == primary]
        for step in (first, [row for row in tested if row["condition"] != primary]):
            adjusted = np.maximum(gate, np.minimum(1, len(settings) * holm([row["p"] for row in step])))
            for row, p in zip(step, adjusted.tolist(), strict=True):
                word = verdict(p, row["difference"], within_margin=row["within_margin"])
                word = "unmeasured" if row.get("unmeasured") and word not in PASSED else word
                row |= {"tests": len(settings) * len(step), "p_adjusted": p, "verdict": word}
                gate = p if row["condition"] == primary else gate


def _compare_pair(old: Outcomes, new: Outcomes, *, margin: float) -> Row:
    """A condition against another. Random flips, which only very many samples need, depend on the new one's name."""
    refuse_unpaired(old, new)
    digest = hashlib.sha256(f"{DEFAULT_SEED}, {new.name}".encode()).digest()
    changes, k = new.right - old.right, old.k
    of_draws = [*zip(old.right_by_draw, new.right_by_draw, strict=True)]  # a sample's pair has the same examples
    gained, lost = np.mean([count_flips(*pair, k=k // len(of_draws)) for pair in of_draws], axis=0).tolist()
    means, weights = by_cluster(changes / k, old.clusters)
    low, high = score_interval(means, level=1 - 2 * ALPHA, weights=weights)
    equivalent = equivalence_p(means, margin / 100, weights=weights)
    ungraded = [100 * (1 - float(one.graded.sum() / one.samples.sum())) for one in (old, new)]
    difference = 100 * float(changes.mean()) / k
    return {
        "changes": (means, weights),
        # of the k * k pairs of a problem's samples those that both have an answer
        "answers": by_cluster((new.right * old.graded - old.right * new.graded) / k**2, old.clusters),
        "least_difference": difference - ungraded[0],
        "most_difference": difference + ungraded[1],
        "difference": difference,
        "wrong_to_right": gained,
        "right_to_wrong": lost,
        "discordance": 100 * ((gained + lost) / len(changes)),
        "problems_up": int((changes > 0).sum()),
        "problems_down": int((changes < 0).sum()),
        "test": "mcnemar" if k == 1 and len(means) == len(changes) else "sign-flip and score",
        "p": paired_test(changes, k, rng=np.random.default_rng(int.from_bytes(digest)), clusters=old.clusters),
        "equivalence_low": 100 * low,
        "equivalence_high": 100 * high,
        "equivalence_p": equivalent,
        "within_margin": equivalent < ALPHA,
    }


def _measure_again(old: Sequence[Outcomes], new: Sequence[Outcomes]) -> Row:
    """The noise of a difference: measured a second time, less the first. Nothing where a side was run once."""
    if min(len(old), len(new)) < 2:
        return {}
    for one in (old[1], new[1]):
        refuse_unpaired(old[0], one)
    changes = (new[1].right - old[1].right) - (new[0].right - old[0].right)
    means, weights = by_cluster(changes / old[0].k, old[0].clusters)
    bounds = (-2.0, 2.0) if np.abs(means).max() > 1 else None  # lost on one side, won on the other
    low, high = score_interval(means, weights=weights, bounds=bounds)
    return {"aa_difference": 100 * float(changes.mean()) / old[0].k, "aa_low": 100 * low, "aa_high": 100 * high}


def _interval(row: Row) -> Row:
    """The interval of a judged row. One without a test is of level 1 - alpha, and is left as it is."""
    means, weights = row["changes"]
    ends = score_interval(means, level=1 - ALPHA / row.get("tests", 1), weights=weights)
    if "tests" in row:
        ends = hold_zero(ends, row["difference"], passed=row["p_adjusted"] < ALPHA)
    values, weights = row["answers"]
    answer, (low, high) = float((weights * values).mean()), score_interval(values, weights=weights)
    judged = row["verdict"] in PASSED
    return {
        "low": 100 * ends[0],
        "high": 100 * ends[1],
        "answer_difference": 100 * answer,
        "answer_low": 100 * low,
        "answer_high": 100 * high,
        "by_format": low <= 0 <= high and abs(200 * answer) < abs(row["difference"]) if judged else None,
    }


def _why_unmeasured(row: Row, table: Sequence[Row], yardsticks: Mapping[str, str]) -> str | None:
    """The reason why a row could not have shown equivalence; None without one. `table` has all rows of its setting."""
    by_name = {one["condition"]: one for one in table}
    if "difference" not in row or row["baseline"] not in by_name:
        return None
    sides = [by_name[row["baseline"]], row]
    if min(one["graded"] for one in sides) < 100 * FEWEST_GRADED:
        return "fewer than half of the samples of one side have a graded answer"
    if all(one["accuracy_low"] <= 0 or one["accuracy_high"] >= 100 for one in sides):
        return "both accuracies are at the end of the scale"
    controls = [one for name, one in by_name.items() if yardsticks.get(name) == "positive control"]
    if any(one["p"] >= ALPHA or one["difference"] > 0 for one in controls):
        return "the positive control was not seen"
    return None


def _refuse_unknown(
    settings: Mapping[Setting, Mapping[str, Any]],
    baseline: str,
    contrasts: Iterable[tuple[str, str]],
) -> None:
    for setting, arms in settings.items():
        if baseline not in arms:
            where = ", ".join(f"{column} {value}" for column, value in setting)
            raise ComparisonError(f"{where}: no baseline condition {baseline!r} among {', '.join(arms)}.")
    known = {name for arms in settings.values() for name in arms}
    if unknown := [name for pair in contrasts for name in pair if name not in known]:
        raise ComparisonError(f"{unknown[0]}: expected one of the conditions {', '.join(sorted(known))}.")
