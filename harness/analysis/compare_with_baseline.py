"""`compare`: every condition against the baseline, with tests, intervals and verdicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas

from harness.analysis.count_correct import (
    Outcomes,
    Setting,
    by_setting,
    count_outcomes,
    measure_accuracy,
    refuse_unpaired,
)
from harness.analysis.paired_tests import count_flips, fewest_problems, holm, verdict
from harness.analysis.pool_models import estimate_over_draws
from harness.constants import ALPHA, BASELINE, MARGIN, PASSED
from harness.errors import ComparisonError, list_near
from harness.experiment.conditions import POSITIVE_CONTROL, contrast_name, read_contrast

FEWEST_GRADED = 0.5
"""Where a smaller share of a condition's samples has a graded answer, an effect that is not seen says nothing."""

COMPARISON_COLUMNS = {
    "model": "the model's label",
    "layout": "how instruction, filler and problem make a prompt",
    "condition": "the condition, or a contrast with another baseline: mless - random",
    "baseline": "the condition that it is compared with",
    "problems": "number of problems",
    "repeats": "samples of each problem",
    "draws": "draws of examples; from 4 on, intervals and p are for new draws too, else for these examples",
    "accuracy": "percent right (avg@k)",
    "standard_error": "of the accuracy, in points, clustered by problem or cluster of problems",
    "accuracy_low": "lower end of the accuracy's score interval, percent",
    "accuracy_high": "upper end",
    "difference": "accuracy less the baseline's, in points, paired by problem",
    "low": "lower end of its 95 % interval, points; not adjusted: 0 is outside exactly if p < 0.05",
    "high": "upper end",
    "p": "two-sided p-value of the sign-flip test; with one sample a problem, McNemar's exact test",
    "answered_difference": "the part of the difference from pairs of samples that both have a graded answer, points",
    "answered_low": "lower end of its 95 % interval; the rest of the difference is format",
    "answered_high": "upper end",
    "by_format": "whether a difference that is judged better or worse may be all format",
    "graded": "percent of the samples with a graded answer",
    "wrong_to_right": "problems that become right, mean over pairs of samples with one draw of examples",
    "right_to_wrong": "the reverse",
    "role": "baseline, tested, exploratory (not registered beforehand), or reference (the positive control)",
    "primary": "whether this is the run's primary contrast",
    "tests": "how many tests share alpha with it",
    "p_adjusted": "p after Holm over these; not below the primary contrast's",
    "equivalence_low": "lower end of the 90 % interval, points",
    "equivalence_high": "upper end",
    "within_margin": "whether this interval lies within the margin, and there are enough problems",
    "margin": "the margin, points",
    "aa_difference": "the difference when both sides were run again, less the first, points",
    "aa_samples": "completions of both sides that were generated again",
    "aa_changed": "how many of them differ",
    "verdict": "of a tested difference: better, worse, equivalent, inconclusive or unmeasured",
    "unmeasured": "why the run could not have shown equivalence",
}
"""Meaning of each column of `compare`."""
_COUNTS = ("problems", "repeats", "draws", "tests", "aa_samples", "aa_changed")

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
    reference_conditions: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    counted: Sequence[Outcomes] | None = None,
) -> pandas.DataFrame:
    """Compare every condition with the baseline: one row for each model, layout and condition.

    A verdict rests on the adjusted p-value and on the equivalence interval alone. Intervals are not adjusted for
    several tests, so the interval of a difference may exclude 0 where its verdict is `inconclusive`.

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
        reference_conditions: Conditions that are not tested, by name, as of `Run.reference_conditions`.
        counted: `count_correct.count_outcomes` of the frame, where there is one already.

    Returns:
        A frame with the columns of `COMPARISON_COLUMNS`, those of `by` after the layout, in the frame's own order.

    Raises:
        ComparisonError: no baseline, other problems, missing or doubled samples, or a margin out of range.
        ConfigError: a contrast is not written as one.
    """
    if not 0 < margin < 100:
        raise ComparisonError(f"margin: expected points above 0 and below 100, got {margin}.")
    if primary is not None and (by or primary not in (contrasts or ())):
        raise ComparisonError(
            f"primary: expected one of the contrasts, over all problems, got {primary}."
        )
    settings = by_setting(count_outcomes(frame, by=by) if counted is None else counted)
    pairs = {row_name(*pair, baseline): pair for pair in map(read_contrast, contrasts or ())}
    _refuse_unknown(settings, baseline, pairs.values())
    unnamed = {(model, row_name(*read_contrast(name), baseline)) for model, name in left_out}
    about = None if primary is None else row_name(*read_contrast(primary), baseline)
    changed_completions = count_changed_completions(frame, by=by)
    rows: list[Row] = []
    for setting, arms in settings.items():
        table = []
        for name, (condition, against) in (
            {name: (name, baseline) for name in arms} | pairs
        ).items():
            if condition not in arms or against not in arms:
                continue
            new, old = arms[condition][0], arms[against][0]
            row = {
                **dict(setting),
                "condition": name,
                "baseline": against,
                "margin": margin,
                "role": "tested",
            }
            row |= measure_accuracy(new)
            if condition == against:
                row["role"] = "baseline"
            else:
                row |= _compare_pair(old, new, margin=margin)
                row |= _measure_again(arms[against], arms[condition], changed_completions)
                is_registered = (str(row["model"]), name) not in unnamed
                row["primary"] = name == about and is_registered
                if name in reference_conditions:
                    row["role"] = "reference"
                elif not is_registered or (contrasts is not None and name not in pairs):
                    row["role"] = "exploratory"
            table.append(row)
        for row in table:
            row["unmeasured"] = _why_unmeasured(row, table, reference_conditions)
        rows += table
    judge(rows, primary=about)
    model_column, layout_column, *others = COMPARISON_COLUMNS
    return pandas.DataFrame(rows, columns=[model_column, layout_column, *by, *others]).astype(
        {
            **dict.fromkeys(_COUNTS, "Int64"),
            **dict.fromkeys(("primary", "within_margin", "by_format"), "boolean"),
        }
    )


def count_changed_completions(
    frame: pandas.DataFrame, *, by: Sequence[str] = ()
) -> dict[tuple[Setting, str], tuple[int, int]]:
    """How many completions differ when a condition is run again, and how many there are, by setting and condition.

    Args:
        frame: As of `compare`, with the completions or their checksums; empty without these.
        by: As of `compare`.
    """
    text = "completion_checksum" if "completion_checksum" in frame else "completion"
    if text not in frame or not (frame.get("replicate", pandas.Series(dtype=int)) == 1).any():
        return {}
    split = ["model", "layout", *by]
    keys = [*split, "condition", "problem_id", "sample_index"]
    first, again = (
        frame.loc[frame["replicate"] == replicate, [*keys, text]] for replicate in (0, 1)
    )
    both = first.merge(again, on=keys)
    changed = (both[f"{text}_x"] != both[f"{text}_y"]).groupby(
        [both[key] for key in (*split, "condition")], observed=True
    )
    counts: dict[tuple[Setting, str], tuple[int, int]] = {}
    for (*values, condition), differs in changed:
        counts[tuple(zip(split, values, strict=True)), str(condition)] = (
            int(differs.sum()),
            len(differs),
        )
    return counts


def effects_by_draw(frame: pandas.DataFrame, contrast: tuple[str, str]) -> Iterator[Row]:
    """The difference of a condition from another with each draw of examples, in points; nothing for a single draw."""
    condition, baseline = contrast
    several = frame[frame["replicate"] == 0] if "draw" in frame else frame[:0]
    for (model, layout), part in several.groupby(["model", "layout"], observed=True, sort=False):
        arms: Any = 100 * part.groupby(["condition", "draw"], observed=True)[
            "correct"
        ].mean().unstack("draw")
        if {condition, baseline} <= {*arms.index} and len(arms.columns) > 1:
            points = (arms.loc[condition] - arms.loc[baseline]).tolist()
            yield {
                "model": model,
                "layout": layout,
                "contrast": contrast_name(*contrast),
                "differences": points,
            }


def row_name(condition: str, against: str, baseline: str) -> str:
    """What stands under `condition`: the condition where it is compared with the baseline, else the contrast."""
    return condition if against == baseline else contrast_name(condition, against)


def judge(rows: Sequence[Row], *, primary: str | None) -> None:
    """Add to each tested row with how many tests it shares alpha, the p-value adjusted for them, and the verdict.

    The chance that a table calls anything better or worse by mistake is at most alpha. Without a primary contrast all
    tests share it. With one, every model and layout has an equal share; there the primary contrast is tested first,
    with the whole share, and the others are tested only if it is significant.

    Args:
        rows: All rows of a table.
        primary: What stands under `condition` of the contrast that the run is about, if there is one.

    Source:
        Serial gatekeeping: Westfall and Krishen (2001), doi:10.1016/S0378-3758(01)00077-5; shares: Bonferroni.
    """
    settings: dict[Any, list[Row]] = {}
    for row in rows:
        if row["role"] == "tested":
            settings.setdefault((row["model"], row["layout"]) if primary else None, []).append(row)
    for tested in settings.values():
        gate = 0.0
        first = [row for row in tested if row["condition"] == primary]
        for step in (first, [row for row in tested if row["condition"] != primary]):
            adjusted = np.maximum(
                gate, np.minimum(1, len(settings) * holm([row["p"] for row in step]))
            )
            for row, p in zip(step, adjusted.tolist(), strict=True):
                word = verdict(p, row["difference"], within_margin=row["within_margin"])
                word = "unmeasured" if row.get("unmeasured") and word not in PASSED else word
                row |= {"tests": len(settings) * len(step), "p_adjusted": p, "verdict": word}
                row["by_format"] = word in PASSED and _may_be_format(row)
                gate = p if row["condition"] == primary else gate


def _may_be_format(row: Row) -> bool:
    """Whether the part of a difference among answered samples is the smaller one, and may be 0."""
    return bool(row["answered_low"] <= 0 <= row["answered_high"]) and 2 * abs(
        row["answered_difference"]
    ) < abs(row["difference"])


def _compare_pair(old: Outcomes, new: Outcomes, *, margin: float) -> Row:
    """A condition against another."""
    refuse_unpaired(old, new)
    # the samples of a pair have the same examples and instruction
    right, before = new.right_by_prompt, old.right_by_prompt
    samples = old.samples_by_prompt
    most = int(samples.max())
    gained, lost = (
        np.sum([count_flips(*pair, k=most) for pair in zip(before, right, strict=True)], axis=0)
        * most
        / old.k
    )
    change = estimate_over_draws(old.by_draw(right - before), old.by_draw(samples), old.clusters)
    answered = estimate_over_draws(
        old.by_draw(right * old.graded_by_prompt - before * new.graded_by_prompt),
        old.by_draw(samples**2),
        old.clusters,
    )
    low, high = change.interval()
    answered_low, answered_high = answered.interval()
    equivalence_low, equivalence_high = change.interval(1 - 2 * ALPHA)
    share = margin / 100
    return {
        "draws": len(np.unique(old.draws)),
        "difference": 100 * change.difference,
        "low": 100 * low,
        "high": 100 * high,
        "p": change.p,
        "answered_difference": 100 * answered.difference,
        "answered_low": 100 * answered_low,
        "answered_high": 100 * answered_high,
        "wrong_to_right": float(gained),
        "right_to_wrong": float(lost),
        "equivalence_low": 100 * equivalence_low,
        "equivalence_high": 100 * equivalence_high,
        "within_margin": -share < equivalence_low
        and equivalence_high < share
        and change.clusters >= fewest_problems(share),
    }


def _measure_again(
    old: Sequence[Outcomes],
    new: Sequence[Outcomes],
    changed_completions: Mapping[tuple[Setting, str], tuple[int, int]],
) -> Row:
    """What running both sides again changes. Nothing where a side was run once."""
    if min(len(old), len(new)) < 2:
        return {}
    for again in (old[1], new[1]):
        refuse_unpaired(old[0], again)
    moved = (new[1].right - old[1].right) - (new[0].right - old[0].right)
    row = {"aa_difference": 100 * float(moved.mean()) / old[0].k}
    sides = [(side[0].setting, side[0].condition) for side in (old, new)]
    if all(side in changed_completions for side in sides):
        changed, samples = zip(*(changed_completions[side] for side in sides), strict=True)
        row |= {"aa_changed": sum(changed), "aa_samples": sum(samples)}
    return row


def _why_unmeasured(
    row: Row, table: Sequence[Row], reference_conditions: Mapping[str, Mapping[str, Any]]
) -> str | None:
    """The reason why a row could not have shown equivalence; None without one. `table` has all rows of its setting."""
    by_name = {one["condition"]: one for one in table}
    if "difference" not in row or row["baseline"] not in by_name:
        return None
    sides = [by_name[row["baseline"]], row]
    if min(one["graded"] for one in sides) < 100 * FEWEST_GRADED:
        return "fewer than half of the samples of one side have a graded answer"
    if all(one["accuracy_low"] <= 0 or one["accuracy_high"] >= 100 for one in sides):
        return "both accuracies are at the end of the scale"
    kinds = {name: fields["kind"] for name, fields in reference_conditions.items()}
    controls = [row for name, row in by_name.items() if kinds.get(name) == POSITIVE_CONTROL]
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
            raise ComparisonError(
                f"{where}: no baseline condition {baseline!r} among {', '.join(arms)}."
            )
    known = {name for arms in settings.values() for name in arms}
    if unknown := [name for pair in contrasts for name in pair if name not in known]:
        near = list_near(unknown[0], sorted(known))
        raise ComparisonError(f"There is no condition {unknown[0]!r}: expected one of {near}.")
