"""The way without our attention function: whole attention matrices, as Hugging Face's eager attention shows them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attention_probe.model.attention_function import switched_attention
from attention_probe.model.attention_statistics import Capture, Reduction
from harness.constants import EAGER_QUERIES
from harness.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from attention_probe.model.load_first_layers import LoadedModel


def run_eager(loaded: LoadedModel, inputs: dict[str, Any], found: Capture) -> None:
    """Fill `found` by one pass that keeps whole attention matrices, as every Hugging Face model can that shows them.

    Raises:
        ModelError: outputs or values are asked, the model does not take eager attention, or a token sees later ones.
    """
    model, asked = loaded.model, found.asked
    if asked.output_region is not None:
        raise ModelError(
            f"{type(model).__name__} does not call the registered attention function, and eager attention shows "
            "weights alone: attention outputs and values cannot be had. Ask for curves, masses and entropies only: "
            "leave out --decompose."
        )
    found.layers.clear()
    accepted = inspect.signature(model.forward).parameters
    known = {name: value for name, value in inputs.items() if name in accepted}
    with switched_attention(model, "eager") as taken:
        if not taken:
            # Falcon under sdpa shows matrices whose mask was added as 0 and 1, so that tokens see later ones.
            raise ModelError(
                f"{type(model).__name__} stays with {model.config._attn_implementation} attention when it is told to "
                'use eager, and what it shows then need not be its weights. Load it with attn_implementation="eager".'
            )
        shown = getattr(model(**known, output_attentions=True), "attentions", None) or ()
    length = inputs["input_ids"].shape[1]
    by_layer = _by_layer(loaded, shown)
    for layer in asked.layers:
        weights = by_layer.get(layer)
        if weights is None or weights.shape[-2:] != (length, length):
            continue
        weights = weights.float()
        reduction = Reduction(asked, weights.shape[1])
        for start in range(0, length, EAGER_QUERIES):
            queries, keys = (
                slice(start, min(start + EAGER_QUERIES, length)),
                slice(0, min(start + EAGER_QUERIES, length)),
            )
            later = weights[:, :, queries].triu(start + 1) > 0
            if bool((later.any(-1).any(1) & asked.real[:, queries]).any()):
                raise ModelError(
                    f"{type(model).__name__} gives weight to later tokens in layer index {layer}: expected none above "
                    "the diagonal. The probe is for causal language models. Choose a causal one."
                )
            block = weights[:, :, queries, keys].clone()
            # A hidden key's weight underflows to exactly 0 in every head.
            reduction.add(block, queries, keys, visible=(block > 0).any(1, keepdim=True))
        found.layers[layer] = reduction.finish()


def _by_layer(loaded: LoadedModel, shown: Sequence[Tensor | None]) -> dict[int, Tensor | None]:
    """The matrices by layer index. Models that mix kinds of layers show only those of softmax layers, in a row."""
    count = len(loaded.decoder_layers)
    places = list(range(count)) if len(shown) == count else [i for i in softmax_layers(loaded.config) if i < count]
    return dict(zip(places, shown, strict=True)) if len(places) == len(shown) else {}


def softmax_layers(config: PretrainedConfig) -> list[int]:
    """Indices of the layers with softmax attention; empty where the config does not tell kinds of layers apart."""
    kinds = getattr(config, "layer_types", None) or ()
    return [i for i, kind in enumerate(kinds) if kind.endswith("attention") and kind != "linear_attention"]
