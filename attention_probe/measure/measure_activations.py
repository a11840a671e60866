"""How far from zero the first MLP's activations lie, against thresholds taken without filler.

The activations are a = act(gate_proj(x)) of the first decoder layer: after the non-linearity, before the product with
up_proj(x). They are compared over the same original tokens without and with filler. What "near zero" means, and the
bins of the histogram, are taken from the prompt without filler and used for its other conditions too. Otherwise a
spread that grows would move its own threshold.

They are counted by what kind of thing a token is, too: a digit, an operator, a conjunction, or other.
Tokens are read in their text, not one by one: `frac` is an operator where a backslash stands before it, `if` split
into two tokens is a conjunction still, and `and` inside `operand` is none. Of a token that holds several kinds, such as
`^2`, the first of CLASSES counts.

LaTeX commands that name an operation or a relation (`\\frac`, `\\cdot`, `\\le`) are operators: they are what `/`, `*`
and `<` would be in plain text. Commands that only set or name things (`\\left`, `\\pi`, `\\text`) are other. The class
goes to the command's letters alone: many tokenizers give the backslash a token of its own, whose activations cannot
know what follows it, so it is other, and a command counts the same with every tokenizer.

Read from context, because the character alone misleads: the hyphen or slash inside words (`two-digit`, `$x$-axis`) and
the mark after a word (`Great!`) are no operators; `^\\circ` is a unit; in [asy] drawings only the digits count.

Source: https://arxiv.org/abs/2510.01032, the activation redistribution module and its analysis of sparsity
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml
from jaxtyping import Float, Int8, Int32

from harness.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NEAR_ZERO_FACTORS = (0.1, 0.13, 0.32)
"""The study's values of c on MATH-500: |a| below 1.4826 MAD c is near zero."""
NORMAL_CONSISTENCY = 1.4826
"""Makes the median absolute deviation of normal values their standard deviation."""
ACTIVATION_BINS = 100
"""Equal bins of the histogram of |a|, up to its COVERED quantile: the largest of millions of values is an outlier."""
COVERED = 0.99


CLASSES = ("digits", "operators", "conjunctions", "other")
"""In the order of precedence."""

LEXICON = Path(__file__).with_name("token_classes.yaml")

_OTHER = CLASSES.index("other")
_LEXEMES = re.compile(
    r"""
      \[asy\].*?\[/asy\]
    | \^\s*\{?\s*\\circ(?![A-Za-z])
    | \\(?P<commands>[A-Za-z]+)
    | \\[^A-Za-z]                                                  # an escape such as \% or \\
    | (?<=[\w})])\$-(?=[a-z]{2})                                     # $x$-axis
    | (?P<words>[A-Za-z]+)((?<=[a-z]{3})([-/](?=[a-z]{2})|!))?      # with a hyphen or mark of prose
    | (?P<characters>[^\w\s])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What is taken from the prompt without filler, and frozen for its other conditions.

    Attributes:
        mad: Median of | |a| - m |, with m the median of |a|.
        top: Upper end of the equal bins of |a|, which begin at 0.
    """

    mad: float
    top: float

    @classmethod
    def of(cls, activations: Float[Tensor, "token width"]) -> Reference:
        """From the chosen tokens of the prompt without filler.

        Raises:
            ModelError: a value is not finite.
        """
        magnitude = _magnitude(activations).ravel()
        median, top = np.quantile(magnitude, [0.5, COVERED], overwrite_input=True)
        return cls(
            mad=float(np.median(np.abs(magnitude - median), overwrite_input=True)), top=float(top)
        )


_SHARE = "share of activations"
ACTIVATION_UNITS = {f"near_zero_c{c:g}": _SHARE for c in NEAR_ZERO_FACTORS}
ACTIVATION_UNITS |= {
    "l1": "activation",
    "l2": "activation",
    "gini": "0 to 1",
    "histogram_top": "activation",
}
for _c in NEAR_ZERO_FACTORS:
    ACTIVATION_UNITS |= {f"near_zero_{name}_c{_c:g}": _SHARE for name in CLASSES} | {
        f"threshold_c{_c:g}": "activation"
    }
ACTIVATION_UNITS |= {f"tokens_{name}": "tokens" for name in CLASSES}
"""Every number that `measure_activations` gives, with its unit."""


def measure_activations(
    activations: Float[Tensor, "token width"], reference: Reference, tokens: Sequence[str]
) -> tuple[dict[str, float], Int32[np.ndarray, " bin"]]:
    """The numbers of the chosen tokens of one prompt, and the histogram of |a|.

    MAD is the median of | |a| - m | and m the median of |a|, both over all chosen tokens and neurons of the prompt
    without filler. The numbers, with c one of NEAR_ZERO_FACTORS and KIND one of CLASSES:

    - `near_zero_cC`: the share of |a| below 1.4826 MAD c; NaN if MAD is 0, as where most a are 0.
    - `near_zero_KIND_cC`: the same over the tokens of that kind; NaN if there are none.
    - `threshold_cC`: 1.4826 MAD c. `tokens_KIND`: how many tokens are of that kind.
    - `l1`, `l2`: sum of |a| over a token's neurons, and root of the sum of a^2; means over the tokens.
    - `gini`: Gini coefficient of the histogram's counts, near 1 where all are in one bin; NaN without bins.
    - `histogram_top`: where the equal bins end, the COVERED quantile of |a| of the prompt without filler.

    The histogram has 100 equal bins from 0 to the reference's top, and a last one for what is larger. Where the top is
    0 there are no bins, and all counts are 0.

    Args:
        activations: After the non-linearity, on any device and of any floating type.
        reference: From the same problem without filler.
        tokens: The text of these tokens; see `classify`.

    Raises:
        ModelError: a value is not finite.
    """
    magnitude = _magnitude(activations)
    counts = np.zeros(ACTIVATION_BINS + 1, dtype=np.int32)
    if reference.top:
        counts[:ACTIVATION_BINS], _ = np.histogram(
            magnitude, bins=ACTIVATION_BINS, range=(0, reference.top)
        )
        counts[ACTIVATION_BINS] = magnitude.size - counts.sum()
    squares = np.einsum("ij,ij->i", magnitude, magnitude, dtype=np.float64)
    found = {
        "l1": float(magnitude.sum(axis=1, dtype=np.float64).mean()),
        "l2": float(np.sqrt(squares).mean()),
        "gini": gini(counts),
        "histogram_top": reference.top,
    }
    classes = classify(tokens)
    for c in NEAR_ZERO_FACTORS:
        threshold = NORMAL_CONSISTENCY * reference.mad * c
        near_zero = (
            (magnitude < threshold).mean(axis=1)
            if reference.mad
            else np.full(len(magnitude), np.nan)
        )
        found[f"threshold_c{c:g}"] = threshold
        found[f"near_zero_c{c:g}"] = float(near_zero.mean())
        for index, name in enumerate(CLASSES):
            chosen = near_zero[classes == index]
            found[f"near_zero_{name}_c{c:g}"] = float(chosen.mean()) if len(chosen) else np.nan
    found |= {
        f"tokens_{name}": float(np.count_nonzero(classes == i)) for i, name in enumerate(CLASSES)
    }
    return found, counts


def _magnitude(activations: Tensor) -> NDArray[np.float32]:
    """|a| in float32 on the host.

    Raises:
        ModelError: a value is not finite.
    """
    magnitude: NDArray[np.float32] = activations.detach().abs().float().cpu().numpy()
    if not np.isfinite(magnitude).all():
        raise ModelError(
            "The first MLP's activations are infinite or NaN: probe with --dtype float32."
        )
    return magnitude


def gini(counts: Int32[np.ndarray, " bin"]) -> float:
    """Half the mean difference between two bins, over the mean bin; NaN if all are empty."""
    ordered = np.sort(counts).astype(np.float64)
    if not ordered.any():
        return float("nan")
    rank = 2 * np.arange(1, len(ordered) + 1) - len(ordered) - 1
    return float(rank @ ordered / (len(ordered) * ordered.sum()))


@cache
def _read_lexicon() -> dict[tuple[str, str], int]:
    """The class of every entry of the lexicon. An entry is a character, a word in small letters, or a LaTeX command."""
    lexicon = yaml.safe_load(LEXICON.read_text(encoding="utf-8"))
    return {
        (kind, entry): CLASSES.index(name)
        for name, kinds in lexicon.items()
        for kind, entries in kinds.items()
        for entry in entries
    }


def classify(tokens: Sequence[str]) -> Int8[np.ndarray, " token"]:
    """The class of each token, as an index into CLASSES.

    Args:
        tokens: The text of consecutive tokens, blanks included: joined they are the text.
    """
    of_character = _classify_characters("".join(tokens))
    classes, start = [], 0
    for token in tokens:
        classes.append(min(of_character[start : start + len(token)], default=_OTHER))
        start += len(token)
    return np.array(classes, dtype=np.int8)


def _classify_characters(text: str) -> list[int]:
    lexicon = _read_lexicon()
    classes = [_OTHER] * len(text)
    for found in _LEXEMES.finditer(text):
        for kind, entry in found.groupdict().items():
            if entry is not None:
                known = lexicon.get((kind, entry.lower() if kind == "words" else entry), _OTHER)
                classes[slice(*found.span(kind))] = [known] * len(entry)
    for place, character in enumerate(text):
        if character.isdecimal():
            classes[place] = CLASSES.index("digits")
    return classes
