"""The self-check: one prompt of every probe is also computed in other ways."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_probe.measure.prompt_fields import MeasurementOptions
from attention_probe.model.attention_function import switch_attention
from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture_attention, find_softmax_layers
from attention_probe.model.first_layers import LoadedModel
from attention_probe.prompts.token_roles import TokenizedPrompt

PREFERRED_PROMPT_TOKENS = 2048
"""The self-check stores full attention matrices, so it prefers a prompt of at most this length."""

SumsByLayer = Mapping[int, Tensor]
"""By layer [head, key], the sum of each key's weights over all later queries."""


def self_check(
    loaded_model: LoadedModel,
    prompts: Sequence[TokenizedPrompt],
    options: MeasurementOptions,
    float32_model: LoadedModel | None,
) -> dict[str, Any]:
    """Compute one prompt in other ways: with eager attention, and in float32 if that is not used.

    Activations are first captured of one token, so that a model without them is refused before a
    folder is created.

    Args:
        loaded_model: The model, ready to run.
        prompts: The prompts of all problems.
        options: What will be recorded.
        float32_model: The same model in float32; None if it is run in float32.

    Returns:
        The largest errors by name, and which prompt was computed.

    Raises:
        ModelError: the model gives no attention, or lacks what is to be recorded.
    """
    # The longest prompt up to the preferred length, or else the shortest one above it: a longer
    # prompt would take much memory, and a shorter one would check less.
    prompt = max(
        prompts,
        key=lambda candidate: (
            len(candidate) <= PREFERRED_PROMPT_TOKENS,
            -abs(len(candidate) - PREFERRED_PROMPT_TOKENS),
        ),
    )
    token_ids = torch.from_numpy(prompt.token_ids.astype(np.int64))
    capture_attention(
        loaded_model, token_ids[:1], request=CaptureRequest(keeps_activations=options.activations)
    )
    sums = captured_sums(loaded_model, token_ids)
    check_results: dict[str, Any] = {
        "condition": prompt.condition,
        "prompt_tokens": len(prompt),
        "eager_error": largest_difference(sums, eager_sums(loaded_model, token_ids)),
    }
    if float32_model is not None:
        check_results["dtype_error"] = largest_difference(
            sums, captured_sums(float32_model, token_ids)
        )
    return check_results


def captured_sums(loaded_model: LoadedModel, token_ids: Tensor) -> SumsByLayer:
    """The sums from the probe's capture."""
    layers = capture_attention(loaded_model, token_ids).layers
    # the first set of queries, because the other one contains each key's own query too
    return {layer: layers[layer].sums[0] for layer in loaded_model.layer_indices}


def eager_sums(loaded_model: LoadedModel, token_ids: Tensor) -> SumsByLayer:
    """The sums from eager `output_attentions`, which keeps full matrices of all layers."""
    model = loaded_model.model
    input_ids = token_ids[None].to(model.device)
    with torch.inference_mode(), switch_attention(model, "eager"):
        attentions = model(input_ids=input_ids, use_cache=False, output_attentions=True).attentions
    layer_indices = [*range(len(attentions))]
    if len(attentions) != len(loaded_model.decoder_layers):
        # models that mix kinds of layers return only the matrices of softmax layers
        layer_indices = find_softmax_layers(loaded_model.config)
    # not strict, because the config also names the layers after the first ones, which were loaded
    attention_by_layer = dict(zip(layer_indices, attentions, strict=False))
    # without the diagonal, because a key's own query does not come after it
    return {
        layer: attention_by_layer[layer][0].float().tril(-1).sum(-2)
        for layer in loaded_model.layer_indices
    }


def largest_difference(sums: SumsByLayer, compared_sums: SumsByLayer) -> float:
    """The largest difference between the two mean weights of a key, over its later queries.

    It is taken over all layers and keys but the last key, which has no later query.
    """
    differences = torch.stack([sums[layer] - compared_sums[layer] for layer in sums])[..., :-1]
    later_query_counts = torch.arange(differences.shape[-1], 0, -1, device=differences.device)
    return float((differences / later_query_counts).abs().max())
