"""Whether the probe's numbers can be believed: checks that cost one prompt each."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from attention_probe.capture import Capture, capture

if TYPE_CHECKING:
    from attention_probe.loading import LoadedModel
    from attention_probe.token_table import TokenTable

SAMPLED_QUERIES = 64


def curve_error(loaded: LoadedModel, exact: LoadedModel, token_ids: Int[Tensor, "batch seq"]) -> float:
    """Largest difference between the column means of two copies of a model, such as one in another dtype."""
    return _largest(capture(loaded, token_ids), capture(exact, token_ids))


def eager_error(
    loaded: LoadedModel,
    token_ids: Int[Tensor, "batch seq"],
    *,
    attention_mask: Int[Tensor, "batch seq"] | None = None,
    table: TokenTable | None = None,
) -> float:
    """Largest difference between captured column means and those of eager `output_attentions`, over layers and heads.

    Keeps whole attention matrices for the loaded layers, so the prompt should be an ordinary one. With `table` ours is
    what looking projections up gives, eager's never is.

    Raises:
        ModelError: the model gives no attention weights.
    """
    ours = capture(loaded, token_ids, attention_mask=attention_mask, table=table)
    return _largest(ours, capture(loaded, token_ids, attention_mask=attention_mask, eager=True))


def identity_error(
    loaded: LoadedModel, token_ids: Int[Tensor, " seq"], filler: tuple[int, int], *, table: TokenTable | None = None
) -> float:
    """Largest error of A_with = (1 - m) A_gap in Layer 1, over heads, keys and a sample of later queries.

    A_gap is the prompt without its filler but with the positions as they are with it, and m the mass that a query
    gives to the filler. In the first layer queries and keys depend on token and position alone, so softmax makes the
    identity exact: what is measured is rounding, and whether spans, positions and masks are right. A sliding window
    shorter than the prompt breaks it, as it counts tokens and not positions.

    Args:
        loaded: A model whose layer 0 is loaded.
        token_ids: One prompt, with its filler.
        filler: Half-open span of the filler.
        table: The first layer's projections, if they are looked up.

    Raises:
        ValueError: no token follows the filler.
    """
    start, end = filler
    length = len(token_ids)
    if not 0 <= start < end < length:
        raise ValueError(f"The filler span {filler} must leave a token after it, among {length}.")
    original = torch.cat([torch.arange(start), torch.arange(end, length)])
    chosen = torch.linspace(end, length - 1, min(SAMPLED_QUERIES, length - end)).round().long()
    # A set of one query: its mean of a column is that query's weight.
    queries = torch.zeros(1, len(chosen), length, dtype=torch.bool)
    queries[0, torch.arange(len(chosen)), chosen] = True
    inside = torch.zeros(1, 1, length, dtype=torch.bool)
    inside[..., start:end] = True
    with_filler = capture(loaded, token_ids[None], layers=[0], query_sets=queries, key_regions=inside, table=table)[0]
    gap = capture(
        loaded,
        token_ids[None, original],
        layers=[0],
        position_ids=original[None],
        query_sets=queries[..., original],
        table=table,
    )[0]
    lam = 1 - with_filler.region_mass[0, :, chosen.to(with_filler.region_mass.device), 0].T
    expected = lam[..., None] * gap.column_mean[0]
    found = with_filler.column_mean[0][..., original.to(expected.device)]
    return float((found - expected).abs().nan_to_num().max())


def _largest(ours: Capture, theirs: Capture) -> float:
    pairs = [(ours[layer].column_mean, theirs[layer].column_mean) for layer in ours.layers]
    return max(float((one - other).abs().nan_to_num().max()) for one, other in pairs)
