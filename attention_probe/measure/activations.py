"""How far from zero the first MLP's activations lie, against thresholds taken without filler.

The activations are a = act(gate_proj(x)) of the first decoder layer: after the non-linearity, before the product with
up_proj(x). They are compared over the same original tokens without and with filler. What "near zero" means, and the
bins of the histogram, are taken from the prompt without filler and stay as they are for its other conditions: else a
spread that grows would move its own yardstick.

Source: https://arxiv.org/abs/2510.01032, the activation redistribution module and its analysis of sparsity
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from attention_probe.measure.definitions import Quantity
from attention_probe.measure.token_classes import CLASSES, classify
from harness.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

FACTORS = (0.1, 0.13, 0.32)
"""The c of the study: for Qwen2.5-Math-7B, Qwen2.5-Math-1.5B and Llama-3.1-8B-Instruct."""

NORMAL_CONSISTENCY = 1.4826
"""Times the MAD, this is the standard deviation if values are normal."""

BINS = 100
COVERED = 0.99
"""Share of the activations without filler that the equal bins cover; what is larger shares one more bin. The largest of
millions of values is an outlier, and bins up to it would leave all but a few of them in the first."""

BLOCK_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is taken from the prompt without filler, and frozen for its other conditions.

    Attributes:
        width: Neurons of the MLP.
        factors: The values of c.
        mad: Median of | |a| - m |, with m the median of |a|.
        top: Upper end of the equal bins of |a|, which begin at 0.
        bins: How many equal bins.
    """

    width: int
    factors: tuple[float, ...]
    mad: float
    top: float
    bins: int

    def __post_init__(self) -> None:
        if not self.factors or min(self.factors) <= 0 or self.bins < 1:
            raise ValueError(f"factors must be positive and bins at least 1, got {self.factors} and {self.bins}")
        if not (np.isfinite(self.mad) and np.isfinite(self.top)):
            raise _not_finite()

    @classmethod
    def of(
        cls, activations: Float[Tensor, "token width"], *, factors: Sequence[float] = FACTORS, bins: int = BINS
    ) -> Reference:
        """From the chosen tokens of the prompt without filler. Holds one copy of the activations in float32.

        Raises:
            ValueError: there is no token.
            ModelError: a value is not finite.
        """
        _check_shape(activations)
        magnitude = np.empty(tuple(activations.shape), dtype=np.float32)
        for rows, block in _magnitudes(activations):
            magnitude[rows] = block
        flat = magnitude.ravel()
        median, top = np.quantile(flat, [0.5, COVERED], overwrite_input=True)
        np.abs(np.subtract(flat, median, out=flat), out=flat)
        return cls(
            width=activations.shape[1],
            factors=tuple(factors),
            mad=float(np.median(flat, overwrite_input=True)),
            top=float(top),
            bins=bins,
        )

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Below which |a| is near zero, for each factor: 1.4826 * MAD * c."""
        return tuple(NORMAL_CONSISTENCY * self.mad * factor for factor in self.factors)


def _near_zero(factor: float, name: str = "") -> str:
    return f"near_zero_{name}_c{factor:g}" if name else f"near_zero_c{factor:g}"


def activation_measures(factors: Sequence[float] = FACTORS) -> dict[str, Quantity]:
    """Every number that `measure` gives, by name, with its unit and definition."""
    share = "share of activations"
    found = {
        _near_zero(c): Quantity(share, f"|a| below 1.4826 MAD c, c = {c:g}; NaN if MAD is 0, as where most a are 0.")
        for c in factors
    }
    found |= {
        "l1": Quantity("activation", "Sum of |a| over a token's neurons; mean over the tokens."),
        "l2": Quantity("activation", "Root of the sum of a^2 over a token's neurons; mean over the tokens."),
        "gini": Quantity(
            "0 to 1",
            f"Gini coefficient of the counts of the histogram of |a|: {BINS} equal bins from 0 to the {COVERED:.0%} "
            "quantile without filler, and one for what is larger. 0 is as many in every bin, near 1 all in one bin. "
            "NaN if that quantile is 0.",
        ),
    }
    found |= {
        _near_zero(c, name): Quantity(share, f"{_near_zero(c)} over the tokens that are {name}; NaN if there are none.")
        for c in factors
        for name in CLASSES
    }
    found |= {f"tokens_{name}": Quantity("tokens", f"How many of the tokens are {name}.") for name in CLASSES}
    found |= {
        f"threshold_c{c:g}": Quantity("activation", f"1.4826 MAD c, c = {c:g}, of the prompt without filler.")
        for c in factors
    }
    return found


ACTIVATION_MEASURES = activation_measures()
"""For the study's three values of c. MAD is the median of | |a| - m | and m the median of |a|, both over all chosen
tokens and neurons of the prompt without filler."""


def measure(activations: Float[Tensor, "token width"], reference: Reference, tokens: Sequence[str]) -> dict[str, float]:
    """The numbers of ACTIVATION_MEASURES for the chosen tokens of one prompt.

    Args:
        activations: After the non-linearity, on any device and of any floating type; read in blocks of tokens.
        reference: From the same problem without filler.
        tokens: The text of these tokens; see `token_classes`.

    Raises:
        ValueError: shapes do not fit each other.
        ModelError: a value is not finite.
    """
    _check_shape(activations)
    count, width = activations.shape
    if width != reference.width or len(tokens) != count:
        raise ValueError(
            f"activations of {count} tokens and width {width} do not fit {len(tokens)} tokens and a reference of width "
            f"{reference.width}"
        )
    near_zero = np.empty((len(reference.factors), count), dtype=np.float64)  # share of each token's neurons
    norms = np.empty((2, count), dtype=np.float64)
    histogram = np.zeros(reference.bins + 1, dtype=np.int64)
    for rows, block in _magnitudes(activations):
        for row, threshold in enumerate(reference.thresholds):
            near_zero[row, rows] = np.count_nonzero(block < threshold, axis=1) / width
        norms[0, rows] = block.sum(axis=1, dtype=np.float64)
        norms[1, rows] = np.sqrt(np.einsum("ij,ij->i", block, block, dtype=np.float64))
        counts, _ = np.histogram(block, bins=reference.bins, range=(0, reference.top or 1))
        histogram[:-1] += counts
        histogram[-1] += block.size - counts.sum()
    if not np.isfinite(norms).all():
        raise _not_finite()
    if reference.mad == 0:
        near_zero[:] = np.nan
    classes = classify(tokens)
    found = {_near_zero(c): float(shares.mean()) for c, shares in zip(reference.factors, near_zero, strict=True)}
    found |= {
        "l1": float(norms[0].mean()),
        "l2": float(norms[1].mean()),
        "gini": _gini(histogram) if reference.top else np.nan,
    }
    for c, shares in zip(reference.factors, near_zero, strict=True):
        for index, name in enumerate(CLASSES):
            chosen = shares[classes == index]
            found[_near_zero(c, name)] = float(chosen.mean()) if len(chosen) else np.nan
    found |= {f"tokens_{name}": float(np.count_nonzero(classes == i)) for i, name in enumerate(CLASSES)}
    found |= {f"threshold_c{c:g}": t for c, t in zip(reference.factors, reference.thresholds, strict=True)}
    return found


def _not_finite() -> ModelError:
    return ModelError(
        "The first MLP's activations are not all finite: expected numbers, got infinity or NaN, as where float16 "
        "overflows. Probe with --dtype float32, or without --activations."
    )


def _check_shape(activations: Tensor) -> None:
    if activations.ndim != 2 or 0 in activations.shape:
        raise ValueError(f"activations must be [token, width], neither of them 0; got {list(activations.shape)}")


def _magnitudes(activations: Tensor) -> Iterator[tuple[slice, NDArray[np.float32]]]:
    """|a| in float32 on the host, some tokens at a time."""
    for start in range(0, len(activations), BLOCK_ROWS):
        rows = slice(start, min(start + BLOCK_ROWS, len(activations)))
        yield rows, activations[rows].detach().abs().float().cpu().numpy()


def _gini(counts: NDArray[np.int64]) -> float:
    """Half the mean difference between two bins, over the mean bin."""
    ordered = np.sort(counts).astype(np.float64)
    rank = 2 * np.arange(1, len(ordered) + 1) - len(ordered) - 1
    return float(rank @ ordered / (len(ordered) * ordered.sum()))
