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

CHECKED_TOKENS = 2048
"""The self-check keeps whole attention matrices, so it takes a prompt no longer than this, if there is one."""


def self_check(
    loaded: LoadedModel,
    prompts: Mapping[str, Mapping[str, TokenizedPrompt]],
    record: Record,
    exact: LoadedModel | None = None,
) -> dict[str, Any]:
    """Compute one prompt by other ways: eager attention, and float32 if that is not used.

    What is recorded beyond the weights is tried on one token, so that a model that lacks it is refused before a folder
    is begun.

    Args:
        loaded: The model, ready to run as it will be recorded.
        prompts: Of every problem by condition.
        record: What will be recorded.
        exact: The same model in float32, if it is run in another type.

    Returns:
        The largest errors by name, and the prompt they are of.

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
    if exact is not None:
        checks["dtype_error"] = largest_difference(means, column_means(exact, token_ids))
    return checks


def column_means(
    loaded: LoadedModel, token_ids: Int[Tensor, " seq"]
) -> dict[int, Float[Tensor, "head key"]]:
    """The probe's mean weight of each key over all later queries, by layer."""
    found = capture(loaded, token_ids[None])
    return {layer: found[layer].column_mean[0, 0] for layer in loaded.layers}


def eager_means(
    loaded: LoadedModel, token_ids: Int[Tensor, " seq"]
) -> dict[int, Float[Tensor, "head key"]]:
    """The same from eager `output_attentions`, whose whole matrices are kept: the prompt should be an ordinary one."""
    model = loaded.model
    with torch.inference_mode(), switched_attention(model, "eager"):
        shown = model(
            input_ids=token_ids[None].to(model.device), use_cache=False, output_attentions=True
        ).attentions
    # models that mix kinds of layers show only those of softmax layers, in a row
    places = (
        range(len(shown))
        if len(shown) == len(loaded.decoder_layers)
        else softmax_layers(loaded.config)
    )
    later = torch.arange(len(token_ids) - 1, -1, -1, device=model.device)
    by_layer = dict(zip(places, shown, strict=False))
    return {layer: by_layer[layer][0].float().tril(-1).sum(-2) / later for layer in loaded.layers}


def largest_difference(
    one: Mapping[int, Float[Tensor, ...]], other: Mapping[int, Float[Tensor, ...]]
) -> float:
    """Largest difference between means by layer of all tokens but the last, which has no later query."""
    errors = [(first - other[layer])[..., :-1].abs().amax() for layer, first in one.items()]
    return float(torch.stack(errors).max())
