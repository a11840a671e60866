"""Whether the probe's numbers can be believed: one prompt of each probe computed in other ways."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_probe.measure.measure_prompts import Record
from attention_probe.model.attention_function import switched_attention
from attention_probe.model.capture import capture, softmax_layers
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.prompts.token_roles import TokenizedPrompt
from harness.constants import CHECKED_TOKENS, SAMPLED_QUERIES


def self_check(
    loaded: LoadedModel,
    prompts: Mapping[str, Mapping[str, TokenizedPrompt]],
    record: Record,
    exact: LoadedModel | None = None,
) -> dict[str, Any]:
    """Compute one prompt by other ways: eager attention, the first layer's identity, and float32 if that is not used.

    What is recorded beyond the weights is tried on one token, so that a model that lacks it is refused before a folder
    is begun.

    Args:
        loaded: The model, ready to run as it will be recorded.
        prompts: Of every problem by condition.
        record: What will be recorded.
        exact: The same model in float32, if it is run in another type.

    Returns:
        The largest errors by name, the prompt they are of, and notices of what could not be checked.

    Raises:
        ModelError: the model gives no attention, or not what is to be recorded.
    """
    longest = [max(by_condition.values(), key=len) for by_condition in prompts.values()]
    prompt = max(longest, key=lambda p: (len(p) <= CHECKED_TOKENS, -abs(len(p) - CHECKED_TOKENS)))
    token_ids = torch.from_numpy(prompt.token_ids.astype(np.int64))
    capture(
        loaded,
        token_ids[None, :1],
        key_regions=torch.ones(1, 1, 1, dtype=torch.bool),
        output_region=0 if record.decompose else None,
        activations=record.activations,
    )
    means = column_means(loaded, token_ids)
    checks: dict[str, Any] = {
        "condition": prompt.condition,
        "prompt_tokens": len(prompt),
        "eager_error": largest_difference(means, eager_means(loaded, token_ids)),
    }
    notices = []
    inserted = np.flatnonzero(prompt.inserted)
    span = (int(inserted[0]), int(inserted[-1]) + 1) if len(inserted) else (0, 0)
    if 0 in loaded.layers and 0 < len(inserted) == span[1] - span[0] and span[1] < len(prompt):
        error = identity_error(loaded, token_ids, span)
        if error is not None:
            checks["identity_error"] = error
        else:
            notices.append("Layer 1 identity not checked: the sliding window hides a token from all after the filler.")
    if exact is not None:
        checks["dtype_error"] = largest_difference(means, column_means(exact, token_ids))
    return checks | {"notices": notices}


def column_means(loaded: LoadedModel, token_ids: Int[Tensor, " seq"]) -> dict[int, Float[Tensor, "head key"]]:
    """The probe's mean weight of each key over all later queries, by layer."""
    found = capture(loaded, token_ids[None])
    return {layer: found[layer].column_mean[0, 0] for layer in loaded.layers}


def eager_means(loaded: LoadedModel, token_ids: Int[Tensor, " seq"]) -> dict[int, Float[Tensor, "head key"]]:
    """The same from eager `output_attentions`, whose whole matrices are kept: the prompt should be an ordinary one."""
    model = loaded.model
    with torch.inference_mode(), switched_attention(model, "eager"):
        shown = model(input_ids=token_ids[None].to(model.device), use_cache=False, output_attentions=True).attentions
    # models that mix kinds of layers show only those of softmax layers, in a row
    places = range(len(shown)) if len(shown) == len(loaded.decoder_layers) else softmax_layers(loaded.config)
    later = torch.arange(len(token_ids) - 1, -1, -1, device=model.device)
    by_layer = dict(zip(places, shown, strict=False))
    return {layer: by_layer[layer][0].float().tril(-1).sum(-2) / later for layer in loaded.layers}


def identity_error(loaded: LoadedModel, token_ids: Int[Tensor, " seq"], filler: tuple[int, int]) -> float | None:
    """Largest error of A_with = (1 - m) A_gap in Layer 1, over heads, keys and a sample of later queries.

    A_gap is the prompt without its filler but with the positions as they are with it, and m the mass that a query
    gives to the filler. In the first layer queries and keys depend on token and position alone, so softmax makes the
    identity exact: what is measured is rounding, and whether spans, positions and masks are right. It counts positions
    where a sliding window counts tokens, so only queries are taken from which no window hides an earlier token.

    Args:
        loaded: A model whose layer 0 is loaded.
        token_ids: One prompt, with its filler.
        filler: Half-open span of the filler.

    Returns:
        The error; None if a window hides an earlier token from every query after the filler.

    Raises:
        ModelError: the model cannot be probed.
    """
    start, end = filler
    length = len(token_ids)
    original = torch.cat([torch.arange(start), torch.arange(end, length)])
    chosen = torch.linspace(end, length - 1, min(SAMPLED_QUERIES, length - end)).round().long()
    # A set of one query: its mean of a column is that query's weight.
    queries = torch.zeros(1, len(chosen), length, dtype=torch.bool)
    queries[0, torch.arange(len(chosen)), chosen] = True
    inside = torch.zeros(1, 1, length, dtype=torch.bool)
    inside[..., start:end] = True
    with_filler = capture(loaded, token_ids[None], layers=[0], query_sets=queries, key_regions=inside)[0]
    sees_all = chosen < (with_filler.window or length)  # the gap hides no more: its tokens are fewer
    if not sees_all.any():
        return None
    gap = capture(
        loaded,
        token_ids[None, original],
        layers=[0],
        position_ids=original[None],
        query_sets=queries[..., original],
    )[0]
    lam = 1 - with_filler.region_mass[0, :, chosen.to(with_filler.region_mass.device), 0].T
    expected = lam[..., None] * gap.column_mean[0]
    found = with_filler.column_mean[0][..., original.to(expected.device)]
    # only the tokens before a query have a weight
    return float((found - expected)[sees_all.to(found.device)].nan_to_num().abs().max())


def largest_difference(one: Mapping[int, Float[Tensor, ...]], other: Mapping[int, Float[Tensor, ...]]) -> float:
    """Largest difference between means by layer of all tokens but the last, which has no later query."""
    errors = [(first - other[layer])[..., :-1].abs().amax() for layer, first in one.items()]
    return float(torch.stack(errors).max())
