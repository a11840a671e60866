"""Verdicts: better, worse, equivalent, inconclusive. Equivalence tests, p-values adjusted for several tests."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from harness.analysis.intervals import score_statistic
from harness.analysis.power import ALPHA

BASELINE, EXPLORATORY, APART = "baseline", "exploratory", "set apart"
"""Verdicts of rows that are not tested, beside the kinds of yardsticks."""

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
    rows: Sequence[Row],
    *,
    family: Collection[str] | None,
    primary: str | None,
    yardsticks: Mapping[str, str],
    behind: Mapping[str, float],
    alpha: float,
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
        behind: By layout, the p-value of the pooled primary contrast, which is tested before all of these. Empty if
            none is.
        alpha: Level of the verdicts.

    Source:
        Serial gatekeeping: Westfall and Krishen (2001), doi:10.1016/S0378-3758(01)00077-5; shares: Bonferroni.
    """
    settings: dict[Any, list[Row]] = {}
    for row in rows:
        if "difference" not in row:
            row["verdict"] = BASELINE
        elif kind := row.get("verdict") or yardsticks.get(row["condition"]):
            row |= {"family": kind, "verdict": kind}
        elif family is not None and row["condition"] not in family:
            row |= {"family": EXPLORATORY, "verdict": EXPLORATORY}
        else:
            row["family"] = "all" if family is None else "registered"
            settings.setdefault((row["model"], row["layout"]) if primary else None, []).append(row)
    for tested in settings.values():
        gate = behind.get(str(tested[0]["layout"]), 0.0)
        for step in (
            [row for row in tested if row["condition"] == primary],
            [r for r in tested if r["condition"] != primary],
        ):
            adjusted = np.maximum(gate, np.minimum(1, len(settings) * holm([row["p"] for row in step])))
            for row, p in zip(step, adjusted.tolist(), strict=True):
                word = verdict(p, row["difference"], within_margin=row["within_margin"], alpha=alpha)
                row |= {"tests": len(settings) * len(step), "p_adjusted": p, "verdict": word}
                gate = p if row["condition"] == primary else gate


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
