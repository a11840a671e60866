"""The self-check: one prompt of every probe is also computed in other ways."""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_probe.measure.measure_prompts import Record
from attention_probe.model.attention_function import switched_attention
from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture, softmax_layers
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.prompts.token_roles import TokenizedPrompt

CHECKED_TOKENS = 2048
"""The self-check stores full attention matrices, so it prefers a prompt of at most this length."""

LayerMeans = Mapping[int, Float[Tensor, "head key"]]
"""By layer, the mean weight of each key over all later queries."""


def self_check(
    loaded: LoadedModel,
    prompts: Sequence[TokenizedPrompt],
    record: Record,
    float32_model: LoadedModel | None = None,
) -> dict[str, Any]:
    """Compute one prompt in other ways: with eager attention, and in float32 if that is not used.

    Activations are first captured of one token, so that a model without them is refused before a
    folder is created.

    Args:
        loaded: The model, ready to run.
        prompts: The prompts of all problems.
        record: What will be recorded.
        float32_model: The same model in float32, if it is run in another type.

    Returns:
        The largest errors by name, and which prompt was computed.

    Raises:
        ModelError: the model gives no attention, or lacks what is to be recorded.
    """
    # prompts within the limit are better, then those nearest to it
    prompt = max(
        prompts,
        key=lambda prompt: (len(prompt) <= CHECKED_TOKENS, -abs(len(prompt) - CHECKED_TOKENS)),
    )
    token_ids = torch.from_numpy(prompt.token_ids.astype(np.int64))
    capture(loaded, token_ids[None, :1], request=CaptureRequest(activations=record.activations))
    means = column_means(loaded, token_ids)
    checks: dict[str, Any] = {
        "condition": prompt.condition,
        "prompt_tokens": len(prompt),
        "eager_error": largest_difference(means, eager_means(loaded, token_ids)),
    }
    if float32_model is not None:
        float32_means = column_means(float32_model, token_ids)
        checks["dtype_error"] = largest_difference(means, float32_means)
    return checks


def column_means(loaded: LoadedModel, token_ids: Int[Tensor, " seq"]) -> LayerMeans:
    """The means from the probe's capture."""
    captured = capture(loaded, token_ids[None])
    # [0, 0]: there is one prompt, and one set of queries with all of them
    return {layer: captured[layer].column_mean[0, 0] for layer in loaded.layers}


def eager_means(loaded: LoadedModel, token_ids: Int[Tensor, " seq"]) -> LayerMeans:
    """The means from eager `output_attentions`, which keeps full matrices of all layers."""
    model = loaded.model
    input_ids = token_ids[None].to(model.device)
    with torch.inference_mode(), switched_attention(model, "eager"):
        output = model(input_ids=input_ids, use_cache=False, output_attentions=True)
    attentions = output.attentions
    indices: range | list[int] = range(len(attentions))
    if len(attentions) != len(loaded.decoder_layers):
        # models that mix kinds of layers return only the matrices of softmax layers
        indices = softmax_layers(loaded.config)
    by_layer = dict(zip(indices, attentions, strict=False))
    # [key] the queries after each key: none after the last one, whose mean is NaN
    later_queries = torch.arange(len(token_ids) - 1, -1, -1, device=model.device)
    return {
        # without the diagonal, because a key's own query does not come after it
        layer: by_layer[layer][0].float().tril(-1).sum(-2) / later_queries
        for layer in loaded.layers
    }


def largest_difference(means: LayerMeans, reference: LayerMeans) -> float:
    """Largest difference over all layers and all keys but the last, which has no later query."""
    errors = [
        (layer_means - reference[layer])[..., :-1].abs().amax()
        for layer, layer_means in means.items()
    ]
    return float(torch.stack(errors).max())
