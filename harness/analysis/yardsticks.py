"""A condition beside what harmless rewordings and other fillers do; rewordings that break the format."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness.analysis.paired_tests import sign_flip_test
from harness.analysis.power import ALPHA
from harness.analysis.verdicts import holm

if TYPE_CHECKING:
    import pandas

FEWEST = 3
"""Fewer of a kind show no spread."""
BREAKS = 0.01
"""The share of samples by which a rewording must change how many can be graded, to break the format."""

Scores = npt.NDArray[np.float64]


def measure_yardsticks(
    rows: Sequence[dict[str, Any]], scores: Mapping[str, Scores], yardsticks: Mapping[str, str], *, baseline: str
) -> None:
    """Add to the rows of one model and layout how they compare with rewordings and with other fillers.

    Args:
        rows: All of them. Those with another baseline, those of yardsticks and the baseline's own are left as they are;
            a rewording that has a verdict already, which sets it apart, does not count.
        scores: Of each condition [problem]: the share of right samples.
        yardsticks: The kind of each condition that the others are held against.
        baseline: The condition that the rewordings reword. It counts as one of the wordings.
    """
    kinds: dict[str, list[str]] = {"rewording": [baseline], "other filler": []}
    for row in rows:
        if (name := row["condition"]) in yardsticks and "verdict" not in row:
            kinds.setdefault(yardsticks[name], []).append(name)
    for row in rows:
        if row["baseline"] != baseline or row["condition"] in (baseline, *yardsticks):
            continue
        for name, kind, fewest in (("wording", "rewording", FEWEST + 1), ("filler", "other filler", FEWEST)):
            if len(kinds[kind]) >= fewest:
                row |= _held_against(name, scores[row["condition"]], [scores[one] for one in kinds[kind]])


def _held_against(name: str, mine: Scores, others: Sequence[Scores]) -> dict[str, Any]:
    """The columns of `comparison.COLUMNS` about yardsticks of one kind."""
    accuracies = [float(one.mean()) for one in others]
    return {
        f"{name}s": len(others),
        f"{name}_spread": 100 * float(np.std(accuracies, ddof=1)),
        f"{name}_difference": 100 * float(mine.mean() - np.mean(accuracies)),
    }


def find_broken(frame: pandas.DataFrame, rewordings: Collection[str], *, baseline: str) -> dict[tuple[str, ...], float]:
    """Rewordings that break the format, by model, layout and condition: the change in samples that cannot be graded.

    A rewording breaks the format if it changes their share by at least `BREAKS`, and that is no chance: by a sign-flip
    test over problems, adjusted by Holm over the model's rewordings. Right and wrong answers have no part in it, so
    setting such a rewording apart is no choice by the result.

    Args:
        frame: One row per sample, as of `harness.load_run`. Without its verdicts nothing is found.
        rewordings: The conditions.
        baseline: What they reword.
    """
    if "verdict" not in frame or not rewordings:
        return {}
    first = frame[frame["replicate"] == 0] if "replicate" in frame else frame
    kept = first[first["condition"].isin([baseline, *rewordings])]
    kept = kept.assign(
        condition=kept["condition"].astype(str), ungraded=~kept["verdict"].isin(("correct", "incorrect"))
    )
    broken = {}
    for setting, part in kept.groupby(["model", "layout"], observed=True, sort=False):
        counts = part.pivot_table(
            index="problem_id", columns="condition", values="ungraded", aggfunc="sum", observed=True
        )
        counts = counts.dropna().astype(int)  # `compare` refuses other problems
        changes = counts.drop(columns=baseline).sub(counts[baseline], axis=0)
        p = holm([sign_flip_test(changes[name], rng=np.random.default_rng(0)) for name in changes])
        shares = changes.sum() / (part["condition"] == baseline).sum()
        for name, adjusted in zip(map(str, changes), p, strict=True):
            if adjusted < ALPHA and abs(share := float(shares[name])) >= BREAKS:
                broken[(*map(str, setting), name)] = share
    return broken
