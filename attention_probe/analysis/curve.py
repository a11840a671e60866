"""One head's average attention weights over a prompt: the numbers, their band, and what they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from attention_probe.choices import View
from harness.choices import Definition

if TYPE_CHECKING:
    import pandas

DRAWS, SEED, BAND = 2000, 1234, 0.95

_FIRST_TOKEN_SINKS = ("llama", "gemma")
"""Families whose first token takes most of the attention; the study leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One head's average attention weights under one condition.

    Attributes:
        condition: Its name; `mless - wo` for a difference.
        layer: From 0.
        head: From 0.
        definition: Over which queries.
        view: What x is: the original token's position, or the position in the prompt as it was.
        first_token_excluded: Whether x = 0 was left out (nothing was renormalised).
        x: Ascending positions [n] to which at least one prompt contributes.
        mean: [n] share of a query's attention; one prompt's value if there is only one prompt.
        low: [n] lower end of the band, NaN where fewer than two prompts contribute; None for one prompt.
        high: [n] upper end.
        count: [n] how many prompts contribute.
        prompts: How many prompts went in.
        filler_region: Full view: what to shade, from half a token before the filler's first position to half a token
            after its last, true of every prompt in the mean. None without filler.
        tokens: [n] the tokens' texts, for one prompt; None for a mean.
        note: What a reader must be told, if anything.
    """

    condition: str
    layer: int
    head: int
    definition: Definition
    view: View
    first_token_excluded: bool
    x: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64] | None
    high: NDArray[np.float64] | None
    count: NDArray[np.int64]
    prompts: int
    filler_region: tuple[float, float] | None = None
    tokens: tuple[str, ...] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        columns = [self.x, self.mean, self.count, *(c for c in (self.low, self.high) if c is not None)]
        if any(column.shape != self.x.shape for column in columns) or (np.diff(self.x) <= 0).any():
            raise ValueError("x must ascend, and mean, low, high and count must have its length")

    @property
    def label(self) -> str:
        """For people, counted from 1."""
        return f"Layer {self.layer + 1} Head {self.head + 1}"


def bootstrap_band(
    table: NDArray[np.float64], *, draws: int = DRAWS, seed: int = SEED
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile bootstrap band of the columns' means, rows (prompts) resampled whole.

    Args:
        table: [prompt, x]; NaN where a prompt has no value.
        draws: How often the prompts are drawn anew.
        seed: Of the drawing.

    Returns:
        Lower and upper end [x], NaN where fewer than two prompts have a value.
    """
    there = np.isfinite(table)
    size = len(table)
    weights = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=draws).astype(np.float64)
    counts = weights @ there
    with np.errstate(invalid="ignore"):
        means = (weights @ np.where(there, table, 0.0)) / counts
    low, high = np.full((2, table.shape[1]), np.nan)
    ends = [(1 - BAND) / 2, (1 + BAND) / 2]
    whole = counts.all(axis=0)
    low[whole], high[whole] = np.quantile(means[:, whole], ends, axis=0)
    for column in np.flatnonzero(~whole & (there.sum(axis=0) > 1)):  # some draws have no prompt here
        low[column], high[column] = np.quantile(means[counts[:, column] > 0, column], ends)
    low[there.sum(axis=0) < 2] = high[there.sum(axis=0) < 2] = np.nan
    return low, high


def as_frame(curves: Iterable[Curve]) -> pandas.DataFrame:
    """The curves' numbers, one row a point; `in_filler` marks the shaded ones."""
    import pandas

    frames = []
    for curve in curves:
        start, stop = curve.filler_region or (0, 0)
        frames.append(
            pandas.DataFrame(
                {
                    "condition": curve.condition,
                    "layer": curve.layer,
                    "head": curve.head,
                    "label": curve.label,
                    "view": curve.view,
                    "definition": curve.definition,
                    "first_token_excluded": curve.first_token_excluded,
                    "x": curve.x,
                    "token": list(curve.tokens) if curve.tokens else None,
                    "mean": curve.mean,
                    "low": np.nan if curve.low is None else curve.low,
                    "high": np.nan if curve.high is None else curve.high,
                    "count": curve.count,
                    "prompts": curve.prompts,
                    "in_filler": (curve.x > start) & (curve.x < stop),
                    "note": curve.note,
                }
            )
        )
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def leaves_out_first_token(model_type: str) -> bool:
    """Whether the study leaves the first token out of this family's curves, for the attention that it absorbs."""
    return model_type.startswith(_FIRST_TOKEN_SINKS)
