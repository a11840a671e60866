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

    from attention_probe.traces import TraceHeader

_FIRST_TOKEN_SINKS = ("llama", "gemma")
"""Families whose first token takes most of the attention; the study leaves it out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One head's average attention weights under one condition.

    Attributes:
        condition: Its name; `mless - wo` for a difference.
        layer: Index from 0.
        head: Index from 0.
        unit: Of mean, low and high.
        definition: Which queries the average is over.
        view: What x is: the original token's position, or the position in the prompt as it was.
        first_token_excluded: Whether x = 0 was left out (nothing was renormalised).
        x: Ascending positions [n] to which at least one prompt contributes.
        mean: [n] the average weight; one prompt's value if there is only one prompt.
        low: [n] lower end of the band, NaN where fewer than two prompts contribute.
        high: [n] upper end.
        count: [n] how many prompts contribute.
        prompts: How many prompts went in.
        filler_region: Full view: what to shade, from half a token before the filler's first position to half a token
            after its last, true of every prompt in the mean. None without filler.
        tokens: [n] the tokens' texts, for one prompt; None for a mean.
        note: What a reader must be told; None if there is nothing.
    """

    condition: str
    layer: int
    head: int
    unit: str
    definition: Definition
    view: View
    first_token_excluded: bool
    x: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    count: NDArray[np.int64]
    prompts: int
    filler_region: tuple[float, float] | None = None
    tokens: tuple[str, ...] | None = None
    note: str | None = None

    def __post_init__(self) -> None:
        columns = (self.mean, self.low, self.high, self.count)
        if any(column.shape != self.x.shape for column in columns) or (np.diff(self.x) <= 0).any():
            raise ValueError("x must ascend, and mean, low, high and count must have its length")

    @property
    def label(self) -> str:
        """For people, counted from 1."""
        return f"Layer {self.layer + 1} Head {self.head + 1}"

    @property
    def in_filler(self) -> NDArray[np.bool_]:
        """[n] whether each position lies in what is to be shaded."""
        start, stop = self.filler_region or (0, 0)
        return (self.x > start) & (self.x < stop)


_COLUMNS = (
    *("condition", "layer", "head", "label", "view", "definition", "first_token_excluded", "x", "tokens", "mean"),
    *("low", "high", "unit", "count", "prompts", "in_filler", "note"),
)


def as_frame(curves: Iterable[Curve]) -> pandas.DataFrame:
    """The curves' numbers, one row per point; `in_filler` marks the shaded ones."""
    import pandas

    frames = [pandas.DataFrame({name: getattr(curve, name) for name in _COLUMNS}) for curve in curves]
    table = pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()
    return table.rename(columns={"tokens": "token"})


def leaves_out_first_token(header: TraceHeader) -> bool:
    """Whether the study leaves the first token out of this family's curves, for the attention that it absorbs."""
    return str(header.options.get("model_type", "")).startswith(_FIRST_TOKEN_SINKS)
