"""The sparsity of the first MLP's activations, with thresholds from the prompt without filler.

The activations are a = act(gate_proj(x)) of the first decoder layer: after the non-linearity,
before the product with up_proj(x). They are compared over the same original tokens without and with
filler. The threshold of "near zero" and the bins of the histogram are taken from the prompt without
filler and used for its other conditions too. Otherwise a larger spread would move its own
threshold.

They are also counted by the class of a token: a digit, an operator, a conjunction, or other.
Tokens are read in their text, not alone: `frac` is an operator after a backslash, an `if` that is
split into two tokens is a conjunction, and the `and` inside `operand` is not. A token with several
classes, such as `^2`, counts in the first of TOKEN_CLASSES.

LaTeX commands that name an operation or a relation (`\\frac`, `\\cdot`, `\\le`) are operators,
like `/`, `*` and `<` in plain text. Commands that only set or name something (`\\left`, `\\pi`,
`\\text`) are other. Only the command's letters get the class. In many tokenizers the backslash is a
separate token, whose activations cannot depend on the following letters. So it is other, and a
command counts the same with every tokenizer.

Some characters are read from context: the hyphen or slash inside words (`two-digit`, `$x$-axis`)
and the mark after a word (`Great!`) are not operators; `^\\circ` is a unit; in [asy] drawings only
the digits count.

Source: https://arxiv.org/abs/2510.01032, the activation redistribution module and its analysis of
sparsity
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import yaml

from harness.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NEAR_ZERO_FACTORS = (0.1, 0.13, 0.32)
"""The values of c in the source's analysis of MATH-500: |a| below 1.4826 MAD c is near zero."""
NORMAL_CONSISTENCY = 1.4826
"""Multiplied by the median absolute deviation, it estimates the standard deviation of normal
values."""
ACTIVATION_BINS = 100
"""Equal bins of the histogram of |a|, up to its COVERED_QUANTILE: the maximum of millions of values
would be an outlier."""
COVERED_QUANTILE = 0.99

TOKEN_CLASSES = ("digits", "operators", "conjunctions", "other")
"""In the order of precedence."""

LEXICON_PATH = Path(__file__).with_name("token_classes.yaml")

_OTHER_INDEX = TOKEN_CLASSES.index("other")
_LEXEME_PATTERN = re.compile(
    r"""
      \[asy\].*?\[/asy\]                                           # a drawing
    | \^\s*\{?\s*\\circ(?![A-Za-z])                                # degrees
    | \\(?P<commands>[A-Za-z]+)                                    # a LaTeX command such as \frac
    | \\[^A-Za-z]                                                  # an escape such as \% or \\
    | (?<=[\w})])\$-(?=[a-z]{2})                                     # $x$-axis
    | (?P<words>[A-Za-z]+)(?:(?<=[a-z]{3})(?:[-/](?=[a-z]{2})|!))?  # with a hyphen or mark of prose
    | (?P<characters>[^\w\s])                                      # any other sign
    """,
    re.VERBOSE | re.DOTALL,
)
"""The lexemes of a text. A named alternative is a kind of entries in the lexicon. Alternatives
without a name consume text that stays `other`, so that no named alternative matches within it."""


class BaselineStatistics(NamedTuple):
    """Threshold and bins of the prompt without filler, which its other conditions share.

    Attributes:
        mad: Median absolute deviation: the median of | |a| - m |, with m the median of |a|.
        histogram_end: Upper end of the equal bins of |a|, which begin at 0.
    """

    mad: float
    histogram_end: float

    @classmethod
    def of(cls, activations: Tensor) -> BaselineStatistics:
        """The reference of activations [token, unit] of the problem, in the prompt without filler.

        Raises:
            ModelError: a value is not finite.
        """
        magnitudes = _read_magnitudes(activations).ravel()
        # the quantiles overwrite their input, because a copy of millions of values takes memory
        median, histogram_end = np.quantile(
            magnitudes, [0.5, COVERED_QUANTILE], overwrite_input=True
        )
        mad = np.median(np.abs(magnitudes - median), overwrite_input=True)
        return cls(mad=float(mad), histogram_end=float(histogram_end))


def activation_unit(name: str) -> str:
    """The unit of a number of `measure_activations`, which follows from the name's first word."""
    unit_by_prefix = {"near": "share of activations", "gini": "0 to 1", "tokens": "tokens"}
    return unit_by_prefix.get(name.partition("_")[0], "activation")


def measure_activations(
    activations: Tensor, baseline_statistics: BaselineStatistics, tokens: Sequence[str]
) -> tuple[dict[str, float], NDArray[np.int32]]:
    """The numbers of one prompt's tokens, and the histogram of |a|.

    MAD is the median of | |a| - m | and m the median of |a|, both over all tokens and neurons of
    the prompt without filler. The numbers, with c one of NEAR_ZERO_FACTORS and KIND one of
    TOKEN_CLASSES:

    - `near_zero_cC`: the share of |a| below 1.4826 MAD c; NaN if MAD is 0, as where most a are 0.
    - `near_zero_KIND_cC`: the same over the tokens of that class; NaN if there are none.
    - `threshold_cC`: 1.4826 MAD c. `tokens_KIND`: the number of tokens of that class.
    - `l1`, `l2`: sum of |a| over a token's neurons, and root of the sum of a^2; means over tokens.
    - `gini`: Gini coefficient of the histogram's counts, near 1 if all are in one bin; NaN without
      bins.
    - `histogram_top`: upper end of the equal bins, the COVERED_QUANTILE of |a| without filler.

    The histogram has 100 equal bins from 0 to the reference's end, and a last one for larger
    values. If the end is 0 there are no bins, and all counts are 0.

    Args:
        activations: [token, unit] After the non-linearity, on any device and of any floating type.
        baseline_statistics: Of the same problem without filler.
        tokens: The text of these tokens; see `classify`.

    Raises:
        ModelError: a value is not finite.
    """
    magnitudes = _read_magnitudes(activations)
    bin_counts = np.zeros(ACTIVATION_BINS + 1, dtype=np.int32)
    if baseline_statistics.histogram_end:
        bin_counts[:-1], _ = np.histogram(
            magnitudes, bins=ACTIVATION_BINS, range=(0, baseline_statistics.histogram_end)
        )
        bin_counts[-1] = magnitudes.size - bin_counts.sum()
    # sums over the neurons of each token, without a second array of this size
    squares = np.einsum("ij,ij->i", magnitudes, magnitudes, dtype=np.float64)
    measures = {
        "l1": float(magnitudes.sum(axis=1, dtype=np.float64).mean()),
        "l2": float(np.sqrt(squares).mean()),
        "gini": gini(bin_counts),
        "histogram_top": baseline_statistics.histogram_end,
    }
    measures |= _measure_near_zero(magnitudes, baseline_statistics, classify(tokens))
    return measures, bin_counts


def _measure_near_zero(
    magnitudes: NDArray[np.float32],
    baseline_statistics: BaselineStatistics,
    token_classes: NDArray[np.int8],
) -> dict[str, float]:
    """Thresholds, shares of |a| below them, and numbers of tokens: see `measure_activations`.

    A share is of all tokens, or of those of one class.
    """
    measures = {}
    for factor in NEAR_ZERO_FACTORS:
        threshold = NORMAL_CONSISTENCY * baseline_statistics.mad * factor
        # the share of each token's neurons; NaN with a threshold of 0, which no value is below
        token_shares = np.full(len(magnitudes), np.nan)
        if baseline_statistics.mad:
            token_shares = (magnitudes < threshold).mean(axis=1)
        measures[f"threshold_c{factor:g}"] = threshold
        measures[f"near_zero_c{factor:g}"] = float(token_shares.mean())
        for index, class_name in enumerate(TOKEN_CLASSES):
            class_shares = token_shares[token_classes == index]
            measures[f"near_zero_{class_name}_c{factor:g}"] = (
                float(class_shares.mean()) if len(class_shares) else np.nan
            )
    for index, class_name in enumerate(TOKEN_CLASSES):
        measures[f"tokens_{class_name}"] = float(np.count_nonzero(token_classes == index))
    return measures


def _read_magnitudes(activations: Tensor) -> NDArray[np.float32]:
    """|a| in float32 on the host.

    Raises:
        ModelError: a value is not finite.
    """
    magnitudes = activations.detach().abs().float().cpu().numpy()
    if not np.isfinite(magnitudes).all():
        raise ModelError(
            "The first MLP's activations are infinite or NaN: probe with --dtype float32."
        )
    return magnitudes


def gini(counts: NDArray[np.int32]) -> float:
    """Half the mean difference between two bins, over the mean bin; NaN if all are empty."""
    sorted_counts = np.sort(counts).astype(np.float64)
    if not sorted_counts.any():
        return np.nan
    # For sorted x the sum of x[j] - x[i] over all pairs i < j is the sum of (2 i - n - 1) x[i].
    coefficients = 2 * np.arange(1, len(sorted_counts) + 1) - len(sorted_counts) - 1
    return float(coefficients @ sorted_counts / (len(sorted_counts) * sorted_counts.sum()))


@cache
def _read_lexicon() -> dict[tuple[str, str], int]:
    """The class of every entry (kind, lexeme), as an index into TOKEN_CLASSES.

    The kinds are `characters`, `words` in small letters, and `commands` of LaTeX.
    """
    lexicon = yaml.safe_load(LEXICON_PATH.read_text(encoding="utf-8"))
    class_by_entry = {}
    for class_name, lexemes_by_kind in lexicon.items():
        for kind, lexemes in lexemes_by_kind.items():
            for lexeme in lexemes:
                class_by_entry[kind, lexeme] = TOKEN_CLASSES.index(class_name)
    return class_by_entry


def classify(tokens: Sequence[str]) -> NDArray[np.int8]:
    """The class of each token, as an index into TOKEN_CLASSES.

    It is the first of the classes of its characters; `other` for a token without characters.

    Args:
        tokens: The text of consecutive tokens, blanks included: joined they are the text.
    """
    character_classes = iter(_classify_characters("".join(tokens)))
    class_indices = [
        min(islice(character_classes, len(token)), default=_OTHER_INDEX) for token in tokens
    ]
    return np.array(class_indices, dtype=np.int8)


def _classify_characters(text: str) -> list[int]:
    """The class of each character, as an index into TOKEN_CLASSES.

    The characters of a lexeme have the class of its entry in the lexicon, or `other` without one.
    Digits have their own class everywhere, also in text that otherwise stays `other`.
    """
    class_by_entry = _read_lexicon()
    class_indices = [_OTHER_INDEX] * len(text)
    for match in _LEXEME_PATTERN.finditer(text):
        kind = match.lastgroup
        if kind is None:  # text that stays `other`
            continue
        lexeme = match[kind].lower() if kind == "words" else match[kind]
        start, end = match.span(kind)
        class_index = class_by_entry.get((kind, lexeme), _OTHER_INDEX)
        class_indices[start:end] = [class_index] * (end - start)
    for index, character in enumerate(text):
        if character.isdecimal():
            class_indices[index] = TOKEN_CLASSES.index("digits")
    return class_indices
