"""Would another text have changed accuracy as much as the tested filler did?

Other texts are fillers that a run makes for this question, in families: of sentences, or of random
tokens. Other texts of one family are asked about the same problems, with the same draws of
examples, as the tested filler. The range of their observed differences from the baseline predicts
that of one more such text. The tested filler lies above, among or below it. All noise stays in the
range, because the tested difference has its noise too.
"""

import math
from collections import defaultdict
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
    outcomes_by_setting: Mapping[Setting, OutcomesByCondition],
    conditions: Mapping[str, Condition],
    reference_conditions: ReferenceConditions,
    baseline: str,
) -> pandas.DataFrame:
    """Each condition with a filler beside the range of other texts: a row for each family.

    The texts of a family have the length and placement of the condition's filler.

    Args:
        outcomes_by_setting: From `outcomes.group_by_setting`, split by model and layout alone, with
            the run's own instruction, because other texts are asked with no other.
        conditions: The conditions of the config, by name.
        reference_conditions: By name.
        baseline: The condition that the others are compared with.
    """
    text_names_by_condition_and_family = _group_texts(conditions, reference_conditions)
    rows = []
    for setting, outcomes_by_condition in outcomes_by_setting.items():
        outcomes_by_name = {
            name: replicates[0] for name, replicates in outcomes_by_condition.items()
        }
        for (condition, family), text_names in text_names_by_condition_and_family.items():
            text_outcomes = [
                outcomes_by_name[name] for name in text_names if name in outcomes_by_name
            ]
            if condition in outcomes_by_name and text_outcomes:
                row = {**dict(setting), "condition": condition, "kind": family.replace("_", " ")}
                row |= _compare_with_texts(
                    outcomes_by_name[condition], outcomes_by_name[baseline], text_outcomes
                )
                rows.append(row)
    return pandas.DataFrame(rows, columns=list(TEXT_COLUMNS))


def _group_texts(
    conditions: Mapping[str, Condition], reference_conditions: ReferenceConditions
) -> dict[tuple[str, str], list[str]]:
    """The names of the other texts of each condition with a filler, by condition and family.

    Texts that were made for one condition belong to all conditions whose filler has the same
    location: length, placement and other changes. In logs the location is unknown, so there they
    belong only to the condition for which they were made.

    In the fields of a text, `of` is this condition, and `family` is the family of the text.
    """
    location_by_condition: dict[str, Any] = {
        name: (condition.filler_tokens, condition.describe()["placement"], condition.changes_text)
        for name, condition in conditions.items()
        if condition.filler_tokens
    }
    fields_by_text = {
        name: fields
        for name, fields in reference_conditions.items()
        if fields["kind"] == OTHER_TEXT
    }
    for fields in fields_by_text.values():
        # The condition of a log is not in `conditions`. Its name stands for its location, so no
        # other condition has the same one.
        location_by_condition.setdefault(fields["of"], fields["of"])
    text_names_by_condition_and_family = defaultdict(list)
    for condition_name, location in location_by_condition.items():
        for text_name, fields in fields_by_text.items():
            if location_by_condition[fields["of"]] == location:
                text_names_by_condition_and_family[condition_name, fields["family"]].append(
                    text_name
                )
    return text_names_by_condition_and_family


def _compare_with_texts(
    condition_outcomes: Outcomes, baseline_outcomes: Outcomes, text_outcomes: Sequence[Outcomes]
) -> Row:
    """The columns of a condition beside the texts of one family.

    Args:
        condition_outcomes: Those of the condition.
        baseline_outcomes: Those of the baseline.
        text_outcomes: Those of each other text.
    """
    # [text] the tested filler is the first of them
    right_totals = np.array(
        [outcomes.right_counts.sum() for outcomes in (condition_outcomes, *text_outcomes)]
    )
    baseline_total = baseline_outcomes.right_counts.sum()
    sample_total = baseline_outcomes.sample_counts.sum()
    # divided last, so that equal numbers of right samples give equal differences
    effect, *effects = (100 * (right_totals - baseline_total) / sample_total).tolist()
    row: Row = {"texts": len(text_outcomes), "effects": effects, "effect": effect}
    row |= place_effect(effect, np.array(effects), 100 * baseline_total / sample_total)
    if len(text_outcomes) >= FEWEST_TEXTS:
        # [text, problem]: each text is what `estimate_crossed` calls a prompt
        changes = condition_outcomes.right_counts - np.array(
            [outcomes.right_counts for outcomes in text_outcomes]
        )
        difference = estimate_crossed(
            changes,
            np.broadcast_to(condition_outcomes.sample_counts, changes.shape),
            condition_outcomes.clusters,
        )
        row |= to_points(difference, ("difference", "new_low", "new_high"))
        row["new_p"] = difference.p
        row |= estimate_spread(np.array(effects), text_outcomes)
    return row


def add_places(comparison: pandas.DataFrame, text_frame: pandas.DataFrame) -> pandas.DataFrame:
    """The comparison with the place of each condition among other texts.

    A place is shown only if it is the same for all families.

    Args:
        comparison: From `baseline_comparison.compare_outcomes`.
        text_frame: From `text_table`.
    """
    key_columns = ["model", "layout", "condition"]
    place_groups = text_frame.groupby(key_columns)["place"]
    places = (
        place_groups.first().where(place_groups.nunique() == 1, NOT_SHOWN).rename("other_texts")
    )
    # the comparison has this column, but it is still empty
    return comparison.drop(columns="other_texts").merge(places, "left", on=key_columns)


def place_effect(effect: float, effects: Floats, baseline_accuracy: float) -> Row:
    """Place an observed difference in the range of the differences of texts.

    The range is the prediction interval of one more observation of a normal distribution. For given
    problems and draws, the differences of the texts are independent of each other.

    Args:
        effect: The difference of the tested filler from the baseline, in points.
        effects: [text] Those of the texts.
        baseline_accuracy: The baseline's accuracy in percent.

    Returns:
        `rank`, `place`, and if there is a range `range_low`, `range_high` and `as_extreme`.
        Otherwise `reason`.

    Source:
        Hahn and Meeker (1991), Statistical Intervals, section 4.7.
    """
    row: Row = {"rank": 1 + (effects >= effect).sum(), "place": NOT_SHOWN}
    if len(effects) < FEWEST_TEXTS:
        return row | {"reason": f"fewer than {FEWEST_TEXTS} texts"}
    if not np.ptp(effects):
        return row | {"reason": "all texts have the same accuracy"}
    prediction_error = math.sqrt(effects.var(ddof=1) * (1 + 1 / len(effects)))
    half_length = stdtrit(len(effects) - 1, 1 - ALPHA / 2) * prediction_error
    mean = effects.mean()
    low = mean - half_length
    high = mean + half_length
    row |= {"range_low": low, "range_high": high}
    if baseline_accuracy + low <= 0 or baseline_accuracy + high >= 100:
        return row | {"reason": "the range reaches 0 or 100 % accuracy"}
    # the chance of a gain of at least this size, or for a loss, of a loss of at least this size
    t_statistic = (mean - effect) / prediction_error
    row["as_extreme"] = 100 * stdtr(len(effects) - 1, -t_statistic if effect < 0 else t_statistic)
    row["place"] = "among"
    if effect > high:
        row["place"] = "above"
    elif effect < low:
        row["place"] = "below"
    return row


def estimate_spread(effects: Floats, text_outcomes: Sequence[Outcomes]) -> Row:
    """The spread of the true differences of texts.

    The variance of the observed differences contains their noise: the error of a text's difference
    from the mean of the texts, for new problems and new draws of examples. The spread is what
    remains: the root of observed variance - noise variance. All texts have the same noise, so the
    ends of the spread's interval (the Q-profile) are the roots of degrees of freedom * observed
    variance / quantile of chi-squared - noise variance.

    Args:
        effects: [text] The observed differences from the baseline, in points.
        text_outcomes: Outcomes of the texts, on the same problems and draws.

    Source:
        Viechtbauer (2007), doi:10.1002/sim.2514.
    """
    right_counts = np.array([outcomes.right_by_draw for outcomes in text_outcomes])
    sample_counts = text_outcomes[0].samples_by_draw
    # too few draws say nothing about new draws, so they count as a single one
    if len(sample_counts) < FEWEST_DRAWS:
        right_counts = right_counts.sum(axis=1, keepdims=True)
        sample_counts = sample_counts.sum(axis=0, keepdims=True)
    squared_error_sum = 0.0
    for deviation in right_counts - right_counts.mean(axis=0):
        standard_error, _ = measure_error(deviation, sample_counts, text_outcomes[0].clusters)
        squared_error_sum += (100 * standard_error) ** 2
    # divided by the degrees of freedom, because a text is part of the mean, so its difference from
    # the mean varies less than the text does
    degrees_of_freedom = len(text_outcomes) - 1
    noise_variance = squared_error_sum / degrees_of_freedom
    # the formula of an end with the degrees of freedom as quantile is that of the spread itself
    quantiles = chdtri(degrees_of_freedom, [ALPHA / 2, 1 - ALPHA / 2])
    divisors = np.array([degrees_of_freedom, *quantiles])
    variances = np.maximum(0, degrees_of_freedom * effects.var(ddof=1) / divisors - noise_variance)
    spread, low, high = np.sqrt(variances).tolist()
    return {"spread": spread, "spread_low": low, "spread_high": high}
