"""The summary: what the table of comparisons says, in sentences and with no word more than its tests allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from harness.leaderboard import LABELS
from harness.report.tables import interval, p_value, signed


def summarise(rows: Sequence[Mapping[str, Any]], *, greedy: bool) -> list[str]:
    """Sentences over all comparisons, for rows of `statistics.compare` with None for what is missing.

    Args:
        rows: The rows.
        greedy: Whether all completions are greedy, so that running the baseline again draws nothing anew.
    """
    tested = [row for row in rows if row["verdict"] != "baseline"]
    if not tested:
        return ["There is one condition only, so nothing is compared."]
    counts = Counter(str(row["verdict"]) for row in tested)
    margin = points(tested[0]["margin"])
    spoken = {
        "better": "{} better",
        "worse": "{} worse",
        "equivalent": f"{{}} equivalent within {margin}",
        "inconclusive": "{} inconclusive: neither a difference nor its absence is shown",
    }
    said = "; ".join(form.format(counts[verdict]) for verdict, form in spoken.items() if counts[verdict])
    start = "One comparison" if len(tested) == 1 else f"{len(tested)} comparisons"
    return [f"{start} with the baseline: {said}.", *_about_noise(rows, greedy)]


def describe(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence a condition of one model and layout, the baseline first."""
    base = next(row for row in rows if row["verdict"] == "baseline")
    samples = "one sample each" if base["k"] == 1 else f"{base['k']} samples each"
    found = [
        f"{label(base['condition'])} (baseline): {base['accuracy']:.1f} % right"
        f"{interval(base['accuracy_low'], base['accuracy_high'])}, {base['n']} problems, {samples}."
    ]
    for row in rows:
        if row is base:
            continue
        flips = f"{row['wrong_to_right']:g} wrong to right, {row['right_to_wrong']:g} right to wrong"
        found.append(
            f"{label(row['condition'])}: {row['accuracy']:.1f} % right, {signed(row['difference'])} points"
            f"{interval(row['low'], row['high'], sign=True)}, adjusted p {p_value(row['p_adjusted'])}; {flips}: "
            f"{judgement(row)}."
        )
    return found


def judgement(row: Mapping[str, Any]) -> str:
    """The verdict, with the margin that it speaks of."""
    if row["verdict"] == "equivalent":
        return f"equivalent within {points(row['margin'])}"
    if row["verdict"] in ("better", "worse") and row["within_margin"]:
        return f"{row['verdict']}, though by less than {points(row['margin'])}"
    return str(row["verdict"])


def points(margin: float) -> str:
    """A margin with its unit."""
    return f"{margin:g} point{'s' * (margin != 1)}"


def label(condition: Any) -> str:
    """What people call a condition."""
    return LABELS.get(str(condition), str(condition))


def _about_noise(rows: Sequence[Mapping[str, Any]], greedy: bool) -> list[str]:
    floors = [row for row in rows if row["verdict"] == "baseline" and row["aa_p"] is not None]
    if not floors:
        return ["The baseline was run once, so there is no noise floor (A/A) to set these differences beside."]
    said = "; ".join(
        f"{row['model']}, {row['layout']}: {signed(row['aa_difference'])} points, "
        f"{row['aa_discordance']:.1f} % of problems flipped"
        for row in floors
    )
    sentences = [f"The baseline against itself (A/A): {said}."]
    if greedy:
        sentences.append("Decoding is greedy, so A/A measures only what the engine does not repeat exactly.")
    return sentences
