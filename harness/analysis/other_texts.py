"""Would another text have changed accuracy as much as the tested filler did?

Other texts of one family are asked about the same problems, with the same draws of examples, as the
tested filler. The range of their observed differences from the baseline predicts that of one more
such text. The tested filler lies above, among or below it. All noise stays in the range, because
the tested difference has its noise too.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas
from scipy.special import chdtri, stdtr, stdtrit

from harness.analysis.crossed_effects import estimate_crossed, measure_error, to_points
from harness.analysis.outcomes import Outcomes, OutcomesByCondition, Setting
from harness.array_types import Floats
from harness.constants import ALPHA, FEWEST_DRAWS, FEWEST_TEXTS, NOT_SHOWN, Row
from harness.experiment.conditions import OTHER_TEXT, Condition, ReferenceConditions

TEXT_COLUMNS = {
    "model": "the model's label",
    "layout": "raw, chat or as_published",
    "condition": "the condition",
    "kind": "family of the other texts: sentences or random tokens",
    "texts": "other texts of the same length at the same placement",
    "effects": "difference of each of them from the baseline",
    "effect": "the condition's difference from the baseline",
    "range_low": "lower end of the 95 % range of the difference of one more text here",
    "range_high": "upper end",
    "place": "above, among or below this range, or not shown",
    "reason": "why the place is not shown",
    "rank": "rank among the texts and the condition; 1 has the highest accuracy",
    "as_extreme": "percent of new texts that would gain at least as much; lose, for a loss",
    "difference": "accuracy minus the mean accuracy with these texts",
    "new_low": "lower end of its 95 % interval for new texts and new problems",
    "new_high": "upper end",
    "new_p": "p-value that belongs to this interval",
    "spread": "standard deviation of the texts' true differences, without noise",
    "spread_low": "lower end of its 95 % interval",
    "spread_high": "upper end",
}
"""Meaning of each column of `text_table`."""


def text_table(
    by_setting: Mapping[Setting, OutcomesByCondition],
    conditions: Mapping[str, Condition],
    reference_conditions: ReferenceConditions,
    baseline: str,
) -> pandas.DataFrame:
    """Each condition with a filler beside the range of other texts: a row for each family.

    The texts of a family have the length and placement of the condition's filler.

    Args:
        by_setting: From `outcomes.group_by_setting`, split by model and layout alone, under
            the instruction of the run, because other texts have no other.
        conditions: The conditions of the config, by name.
        reference_conditions: By name.
        baseline: The condition that the others are compared with.
    """
    locations: dict[str, Any] = {}
    families: dict[tuple[str, Any], list[str]] = {}
    for name, condition in conditions.items():
        if condition.filler_tokens:
            placement = condition.describe()["placement"]
            locations[name] = condition.filler_tokens, placement, condition.other_changes
    for name, fields in reference_conditions.items():
        if fields["kind"] == OTHER_TEXT:
            # conditions of logs are not in `conditions`, so the name takes the place of these
            location = locations.setdefault(fields["of"], fields["of"])
            families.setdefault((fields["family"], location), []).append(name)
    rows: list[Row] = []
    for setting, by_condition in by_setting.items():
        for name, location in locations.items():
            for (kind, family_location), text_names in families.items():
                texts = [by_condition[text][0] for text in text_names if text in by_condition]
                if location == family_location and name in by_condition and texts:
                    row = {**dict(setting), "condition": name, "kind": kind.replace("_", " ")}
                    old, new = by_condition[baseline][0], by_condition[name][0]
                    rows.append(row | _compare_with_texts(new, old, texts))
    return pandas.DataFrame(rows, columns=list(TEXT_COLUMNS))


def _compare_with_texts(tested: Outcomes, baseline: Outcomes, texts: Sequence[Outcomes]) -> Row:
    """The columns of a condition beside one family."""
    right = np.array([outcomes.right.sum() for outcomes in (baseline, tested, *texts)])
    samples = baseline.samples.sum()
    # divided last, so that equal numbers of right samples give equal differences
    effect, *effects = (100 * (right[1:] - right[0]) / samples).tolist()
    row: Row = {"texts": len(texts), "effects": effects, "effect": effect}
    row |= place_effect(effect, np.array(effects), 100 * right[0] / samples)
    if len(texts) >= FEWEST_TEXTS:
        changes = np.array([tested.right - text.right for text in texts])
        samples_by_text = np.broadcast_to(tested.samples, changes.shape)
        difference = estimate_crossed(changes, samples_by_text, tested.clusters)
        row |= to_points(difference, ("difference", "new_low", "new_high"))
        row["new_p"] = difference.p
        row |= estimate_spread(np.array(effects), texts)
    return row


def place_contrasts(comparison: pandas.DataFrame, texts: pandas.DataFrame) -> pandas.DataFrame:
    """Add the place among other texts to the rows of a comparison.

    A place is shown only if it is the same for all families.

    Args:
        comparison: From `baseline_comparison.compare_outcomes`.
        texts: From `text_table`.
    """
    keys = ["model", "layout", "condition"]
    families = texts.groupby(keys)["place"]
    places = families.first().where(families.nunique() == 1, NOT_SHOWN).rename("other_texts")
    return comparison.drop(columns="other_texts").merge(places, "left", on=keys)


def place_effect(effect: float, effects: Floats, baseline: float) -> Row:
    """Place an observed difference in the range of the differences of texts.

    The range is the prediction interval of one more observation of a normal distribution. For given
    problems and draws, the differences of the texts are independent of each other.

    Args:
        effect: The difference of the tested filler from the baseline, in points.
        effects: [text] Those of the texts.
        baseline: The baseline's accuracy in percent.

    Returns:
        `rank`, `place`, and if there is a range `range_low`, `range_high` and `as_extreme`.
        Otherwise `reason`.

    Source:
        Hahn and Meeker (1991), Statistical Intervals, section 4.7.
    """
    row: Row = {"rank": 1 + int((effects >= effect).sum()), "place": NOT_SHOWN}
    if len(effects) < FEWEST_TEXTS:
        return row | {"reason": f"fewer than {FEWEST_TEXTS} texts"}
    if not np.ptp(effects):
        return row | {"reason": "all texts have the same accuracy"}
    prediction_error = math.sqrt(effects.var(ddof=1) * (1 + 1 / len(effects)))
    reach = float(stdtrit(len(effects) - 1, 1 - ALPHA / 2)) * prediction_error
    low, high = float(effects.mean()) - reach, float(effects.mean()) + reach
    row |= {"range_low": low, "range_high": high}
    if baseline + low <= 0 or baseline + high >= 100:
        return row | {"reason": "the range reaches 0 or 100 % accuracy"}
    t = (effects.mean() - effect) / prediction_error
    row["as_extreme"] = 100 * float(stdtr(len(effects) - 1, -t if effect < 0 else t))
    row["place"] = "among"
    if not low <= effect <= high:
        row["place"] = "above" if effect > high else "below"
    return row


def estimate_spread(effects: Floats, texts: Sequence[Outcomes]) -> Row:
    """The spread of the true differences of texts.

    The variance of the observed differences contains their noise: the error of a text's difference
    from the mean of the texts, for new problems and new draws of examples. The spread is what
    remains. Its interval is the Q-profile; all texts have the same noise.

    Args:
        effects: [text] The observed differences from the baseline, in points.
        texts: Outcomes of the texts, on the same problems and draws.

    Source:
        Viechtbauer (2007), doi:10.1002/sim.2514.
    """
    counts = np.array([outcomes.right_by_draw for outcomes in texts])
    samples = texts[0].samples_by_draw
    # with fewer draws results hold for these draws, as everywhere
    if len(samples) < FEWEST_DRAWS:
        counts, samples = counts.sum(axis=1, keepdims=True), samples.sum(axis=0, keepdims=True)
    changes = counts - counts.mean(axis=0)
    errors = [100 * measure_error(change, samples, texts[0].clusters)[0] for change in changes]
    # divided by the degrees of freedom, because a text is part of the mean, so its difference from
    # the mean varies less than the text does
    freedom = len(errors) - 1
    noise = sum(error**2 for error in errors) / freedom
    # for the estimate itself and the ends of its interval
    quantiles = np.array([freedom, *chdtri(freedom, [ALPHA / 2, 1 - ALPHA / 2])])
    variances = np.maximum(0, freedom * effects.var(ddof=1) / quantiles - noise)
    spread, low, high = np.sqrt(variances).tolist()
    return {"spread": spread, "spread_low": low, "spread_high": high}
