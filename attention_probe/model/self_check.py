"""Whether the probe's numbers can be believed: checks that cost one prompt each."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from attention_probe.model.capture import Capture, capture
from harness.errors import ModelError

if TYPE_CHECKING:
    from attention_probe.model.load_first_layers import LoadedModel
    from attention_probe.model.token_table import TokenTable

SAMPLED_QUERIES = 64


def curve_error(loaded: LoadedModel, exact: LoadedModel, token_ids: Int[Tensor, "batch seq"]) -> float:
    """Largest difference between the column means of two copies of a model, such as one in another dtype."""
    return largest_difference(capture(loaded, token_ids), capture(exact, token_ids))


def eager_error(
    loaded: LoadedModel,
    token_ids: Int[Tensor, "batch seq"],
    *,
    attention_mask: Int[Tensor, "batch seq"] | None = None,
    table: TokenTable | None = None,
) -> float | None:
    """Largest difference between captured column means and those of eager `output_attentions`, over layers and heads.

    Keeps whole attention matrices for the loaded layers, so the prompt should be an ordinary one. With `table` ours is
    what looking projections up gives, eager's never is.

    Returns:
        The difference; None where the captured ones are eager's own, and would be compared with themselves.

    Raises:
        ModelError: the model gives no attention weights, or not finite ones.
    """
    ours = capture(loaded, token_ids, attention_mask=attention_mask, table=table)
    if ours.eager:
        return None
    return largest_difference(ours, capture(loaded, token_ids, attention_mask=attention_mask, eager=True))


def identity_error(
    loaded: LoadedModel, token_ids: Int[Tensor, " seq"], filler: tuple[int, int], *, table: TokenTable | None = None
) -> float | None:
    """Largest error of A_with = (1 - m) A_gap in Layer 1, over heads, keys and a sample of later queries.

    A_gap is the prompt without its filler but with the positions as they are with it, and m the mass that a query
    gives to the filler. In the first layer queries and keys depend on token and position alone, so softmax makes the
    identity exact: what is measured is rounding, and whether spans, positions and masks are right. It counts positions
    where a sliding window counts tokens, so only queries are taken from which no window hides an earlier token.

    Args:
        loaded: A model whose layer 0 is loaded.
        token_ids: One prompt, with its filler.
        filler: Half-open span of the filler.
        table: The first layer's projections, if they are looked up.

    Returns:
        The error; None if a window hides an earlier token from every query after the filler.

    Raises:
        ModelError: the model takes no positions.
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
    unhidden = [(one.visible_count == one.column_count).all(-1)[0] for one in (with_filler, gap)]
    sees_all = unhidden[0] & unhidden[1]
    if not bool(sees_all.any()):
        return None
    lam = 1 - with_filler.region_mass[0, :, chosen.to(with_filler.region_mass.device), 0].T
    expected = lam[..., None] * gap.column_mean[0]
    found = with_filler.column_mean[0][..., original.to(expected.device)]
    earlier = gap.column_count[0, :, None] > 0  # a query's weight is a mean for the tokens before it alone
    return float((found - expected).masked_fill(~earlier, 0)[sees_all].abs().max())


def largest_difference(one: Capture, other: Capture) -> float:
    """Largest difference between two captures' column means, where there are any: the last token has no later query.

    Raises:
        ModelError: a mean is undefined in one capture and not in the other.
    """
    errors = []
    for layer in one.layers:
        first, second = one[layer].column_mean, other[layer].column_mean
        undefined = first.isnan()
        if not torch.equal(undefined, second.isnan()):
            raise ModelError(
                f"The self-check finds other tokens without a mean in two captures of layer {layer} (labelled Layer "
                f"{layer + 1}): expected the same ones, as the same queries are averaged. Its numbers cannot be used."
            )
        errors.append((first - second).masked_fill(undefined, 0).abs().max())
    return float(torch.stack(errors).max())
