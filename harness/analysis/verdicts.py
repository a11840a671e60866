"""Verdicts: better, worse, equivalent, inconclusive. Equivalence tests, p-values adjusted for several tests, ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from harness.analysis.intervals import score_statistic
from harness.analysis.power import ALPHA

BASELINE, PROMPT_NULL, EXPLORATORY = "baseline", "prompt null", "exploratory"
"""Verdicts of rows that are not tested."""

Row = dict[str, Any]
"""A row of `harness.analysis.compare`. A row without a difference is a baseline."""


def holm(p_values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Adjusted p-values [test]: calling those below alpha real errs anywhere with probability at most alpha.

    Holds however the tests depend on each other, as they do where all compare with one baseline. NaN stays NaN and
    does not count as a test.

    Source:
        Holm (1979), Scandinavian Journal of Statistics 6:65-70, https://www.jstor.org/stable/4615733.
    """
    p = np.asarray(p_values, dtype=float)
    adjusted = np.full(p.shape, np.nan)
    order = np.argsort(p, kind="stable")  # NaN goes last
    order = order[: len(p) - int(np.isnan(p).sum())]
    steps = np.arange(len(order), 0, -1) * p[order]
    adjusted[order] = np.minimum(1, np.maximum.accumulate(steps))
    return adjusted


def verdict(p_adjusted: float, difference: float, *, within_margin: bool, alpha: float = ALPHA) -> str:
    """Better or worse if the test is significant, else equivalent if within the margin, else inconclusive.

    A difference that is both significant and within the margin is called better or worse.
    """
    if p_adjusted < alpha:
        return "better" if difference > 0 else "worse"
    return "equivalent" if within_margin else "inconclusive"


def judge(
    rows: Sequence[Row], *, family: Collection[str] | None, primary: str | None, edits: Collection[str], alpha: float
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
        edits: Conditions that are harmless edits of the prompt; they are not tested.
        alpha: Level of the verdicts.

    Source:
        Serial gatekeeping: Westfall and Krishen (2001), doi:10.1016/S0378-3758(01)00077-5; shares: Bonferroni.
    """
    settings: dict[Any, list[Row]] = {}
    for row in rows:
        if "difference" not in row:
            row["verdict"] = BASELINE
        elif row["condition"] in edits:
            row |= {"family": PROMPT_NULL, "verdict": PROMPT_NULL}
        elif family is not None and row["condition"] not in family:
            row |= {"family": EXPLORATORY, "verdict": EXPLORATORY}
        else:
            row["family"] = "all" if family is None else "registered"
            settings.setdefault((row["model"], row["layout"]) if primary else None, []).append(row)
    for tested in settings.values():
        gate = 0.0
        for step in (
            [row for row in tested if row["condition"] == primary],
            [r for r in tested if r["condition"] != primary],
        ):
            adjusted = np.maximum(gate, np.minimum(1, len(settings) * holm([row["p"] for row in step])))
            for row, p in zip(step, adjusted.tolist(), strict=True):
                word = verdict(p, row["difference"], within_margin=row["within_margin"], alpha=alpha)
                row |= {"tests": len(settings) * len(step), "p_adjusted": p, "verdict": word}
                gate = p if row["condition"] == primary else gate


def prompt_null_p(difference: float, null_differences: npt.ArrayLike) -> float:
    """Rank p-value of a condition's difference among those of M harmless edits [edit], all against one baseline.

    p = (1 + edits at least as far from zero) / (1 + M): with M edits no p-value is below 1 / (1 + M). It asks whether
    the condition does more than any edit that keeps the meaning would, which a difference from one baseline cannot
    tell. NaN without edits.

    Source:
        Monte Carlo test: Davison and Hinkley (1997), Bootstrap Methods and their Application, section 4.2; Phipson
        and Smyth (2010), doi:10.2202/1544-6115.1585. Why prompts need it: Sclar et al. (2024), arXiv:2310.11324.
    """
    others = np.abs(np.asarray(null_differences, dtype=float))
    if not len(others):
        return math.nan
    # sums of the same samples in another order may differ in the last bit
    far = others >= abs(difference) * (1 - 1e-9)
    return (1 + int(far.sum())) / (1 + len(others))


def rank_among_edits(rows: Sequence[Row], edits: Collection[str], baseline: str) -> None:
    """Add the rank p-value among the harmless edits to the rows of one model and layout."""
    others = [row["difference"] for row in rows if row["condition"] in edits]
    for row in rows:
        if others and row["condition"] not in edits and "difference" in row and row["baseline"] == baseline:
            row |= {"null_p": prompt_null_p(row["difference"], others), "null_edits": len(others)}


def equivalence_p(values: npt.ArrayLike, margin: float, *, bounds: tuple[float, float]) -> float:
    """P-value of two one-sided tests: small where the true mean of `values` [problem] is surely within the margin.

    It is below alpha exactly if the score interval of level 1 - 2 alpha lies inside (-margin, margin) and there are
    `fewest_problems`. The latter is for what no interval sees: if a share `margin` of all problems changes wholly and
    no other does, n problems hold none of these with probability (1 - margin)^n, and p is never below that.

    Args:
        values: Each problem's difference.
        margin: Difference that would matter, in the same unit.
        bounds: As for `score_interval`.

    Source:
        Schuirmann (1987), doi:10.1007/BF01068419; with the score statistic: Tango (1998), as in `score_interval`;
        what n problems may miss: the rule of three, Hanley and Lippman-Hand (1983),
        doi:10.1001/jama.1983.03330370053031.
    """
    above = ndtr(-score_statistic(values, -margin, bounds=bounds))
    below = ndtr(score_statistic(values, margin, bounds=bounds))
    missed = (1 - margin) ** np.size(values)
    return float(max(above, below, missed))


def fewest_problems(margin: float, alpha: float = 0.05) -> int:
    """How many problems equivalence within the margin needs: so many that (1 - margin)^n is at most alpha.

    About 3 / margin at 5 percent, the rule of three: see `equivalence_p`.
    """
    return math.ceil(math.log(alpha) / math.log1p(-margin))
