"""The report's summary: the table of comparisons in sentences that claim no more than its tests allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from harness.display.words import NOISE, flips, interval, judgement, label, number, p_value, points, signed


def summarise(rows: Sequence[Mapping[str, Any]], *, greedy: Collection[str] = ()) -> list[str]:
    """Sentences about all comparisons together.

    Args:
        rows: The rows of `analysis.compare`, with None for missing values.
        greedy: Models that decoded greedily.
    """
    tested = [row for row in rows if row["verdict"] != "baseline"]
    if not tested:
        return ["There is one condition only, so nothing is compared."]
    return [
        *(
            _count(family, [row for row in tested if row["family"] == family])
            for family in _FAMILIES
            if any(row["family"] == family for row in tested)
        ),
        *_about_noise(rows, greedy),
    ]


_FAMILIES = {
    "registered": "{}, registered beforehand",
    "all": "{}, not registered beforehand",
    "exploratory": "{} besides",
}


def _count(family: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence that counts the verdicts of each kind."""
    counts = Counter(str(row["verdict"]) for row in rows)
    spoken = {
        "better": "{} better",
        "worse": "{} worse",
        "equivalent": f"{{}} equivalent within {points(rows[0]['margin'])}",
        "inconclusive": "{} inconclusive: neither a difference nor its absence is shown",
        "exploratory": "{} exploratory: not registered beforehand, so not judged",
    }
    said = "; ".join(form.format(counts[verdict]) for verdict, form in spoken.items() if counts[verdict])
    if len(rows) == 1:
        said = said.removeprefix("1 ")
    comparisons = "One comparison" if len(rows) == 1 else f"{len(rows)} comparisons"
    return f"{_FAMILIES[family].format(comparisons)}: {said}."


def describe(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per condition of one model and layout, the baseline first."""
    base = next(row for row in rows if row["verdict"] == "baseline")
    samples = "one sample each" if base["k"] == 1 else f"{base['k']} samples each"
    found = [
        f"{label(base['condition'])} (baseline): {number(base['accuracy'])} % right "
        f"{interval(base['accuracy_low'], base['accuracy_high'])}, {base['n']} problems, {samples}."
    ]
    for row in rows:
        if row is base:
            continue
        tested = "" if row["p_adjusted"] is None else f", adjusted p {p_value(row['p_adjusted'])}"
        found.append(
            f"{label(row['condition'])}: {number(row['accuracy'])} % right, {signed(row['difference'])} points "
            f"{interval(row['low'], row['high'], sign=True)}{tested}; flips {flips(row)}: "
            f"{judgement(row)}."
        )
    return found


def _about_noise(rows: Sequence[Mapping[str, Any]], greedy: Collection[str]) -> list[str]:
    floors = [row for row in rows if row["verdict"] == "baseline" and row["aa_p"] is not None]
    if not floors:
        return ["The baseline was run once, so there is no noise floor (A/A) to set these differences beside."]
    said = "; ".join(
        f"{row['model']}, {row['layout']}: {signed(row['aa_difference'])} points, "
        f"{number(row['aa_discordance'])} % of problems flipped ({NOISE[row['model'] in greedy]})"
        for row in floors
    )
    return [f"The baseline against itself (A/A): {said}."]
