"""What is said of each difference in a word, once all tests of its family are in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from harness.statistics.multiplicity import holm
from harness.statistics.null import prompt_null_p
from harness.statistics.power import ALPHA

BASELINE, PROMPT_NULL = "baseline", "prompt null"
"""Verdicts of rows that are not judged."""

Row = dict[str, Any]
"""A row of `harness.statistics.compare`; one without a difference is a baseline."""


def verdict(p_adjusted: float, difference: float, *, within_margin: bool, alpha: float = ALPHA) -> str:
    """Better or worse if the test says so, else equivalent if the interval does, else inconclusive.

    A difference can be both real and within the margin: then it is called by its direction, and `within_margin` tells.
    """
    if p_adjusted < alpha:
        return "better" if difference > 0 else "worse"
    return "equivalent" if within_margin else "inconclusive"


def judge(rows: Sequence[Row], *, primary: Collection[str], edits: Collection[str], alpha: float) -> None:
    """Add to each row its family, the p-value adjusted in it, and the verdict.

    Args:
        rows: All rows of a table: a family runs over models and layouts.
        primary: Conditions of the primary family; if there are none, all tests are one family.
        edits: Conditions that are harmless edits of the prompt; they are not tested.
        alpha: Level of the verdicts.
    """
    tested = []
    for row in rows:
        if "difference" not in row:
            row["verdict"] = BASELINE
        elif row["condition"] in edits:
            row |= {"family": PROMPT_NULL, "verdict": PROMPT_NULL}
        else:
            row["family"] = "all" if not primary else "primary" if row["condition"] in primary else "secondary"
            tested.append(row)
    for name in dict.fromkeys(row["family"] for row in tested):
        family = [row for row in tested if row["family"] == name]
        for row, adjusted in zip(family, holm([row["p"] for row in family]).tolist(), strict=True):
            word = verdict(adjusted, row["difference"], within_margin=row["within_margin"], alpha=alpha)
            row |= {"tests": len(family), "p_adjusted": adjusted, "verdict": word}


def rank_among_edits(rows: Sequence[Row], edits: Collection[str]) -> None:
    """Add to the rows of one model and layout how far each condition stands out from the harmless edits there."""
    others = [row["difference"] for row in rows if row["condition"] in edits]
    for row in rows:
        if others and row["condition"] not in edits and "difference" in row:
            row |= {"null_p": prompt_null_p(row["difference"], others), "null_edits": len(others)}
