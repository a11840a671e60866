"""The attention function in Hugging Face's registry: the normal output, and each asked layer reduced on the way.

Hugging Face models ask a registry for their attention function and another for their mask. Ours are in both under one
name: the function computes the weights of a few queries at a time and reduces them (`column_means`); the mask stays a
rule, evaluated a block at a time. What is asked travels with the call, as a keyword argument that models hand through
to their attention. The pass ends as soon as the last thing asked is recorded.

Source: https://huggingface.co/docs/transformers/en/attention_interface
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from attention_probe.model.column_means import LayerCapture, Readout, Reduction, Region
from attention_probe.model.weight_blocks import CausalMask, block_size, causal_mask, weight_blocks

ATTENTION = "mless_capture"
"""Our name in both registries."""


@dataclass(slots=True, kw_only=True)
class Pass:
    """One forward pass: what is asked of it, and what it has given so far."""

    readout: Readout
    regions: tuple[Region, ...]
    layers: tuple[int, ...]
    chunk: int | None
    activations_asked: bool
    recorded: dict[int, LayerCapture] = field(default_factory=dict)
    activations: Tensor | None = None

    def stop_if_done(self) -> None:
        """Raise Done once the last layer asked is recorded, and what else is asked."""
        if self.layers[-1] in self.recorded and (self.activations is not None or not self.activations_asked):
            raise Done


class Done(Exception):
    """Nothing that is asked comes later; ends the forward pass, and never leaves `capture`."""


class OutOfReach(Exception):
    """The architecture calls our function without what it needs; leads to the eager fallback."""


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    value: Float[Tensor, "batch kv_head key head_dim"],
    attention_mask: CausalMask | Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Float[Tensor, " head"] | None = None,
    capture: Pass | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "batch query head head_dim"], None]:
    """The registered attention function: the normal output, reduced on the way if its layer is asked."""
    layer = getattr(module, "layer_idx", None)
    if capture is None or layer is None or not isinstance(attention_mask, CausalMask):
        raise OutOfReach
    batch, heads, length, head_dim = query.shape
    asked = layer in capture.layers
    last = layer == capture.layers[-1]
    wants_output = not last or capture.readout.output or (capture.activations_asked and capture.activations is None)
    output = value.new_empty(batch, length, heads, value.shape[-1]) if wants_output else None
    flat_value = value.reshape(batch * value.shape[1], length, -1)
    reduction = Reduction(capture.readout, capture.regions, heads, value.shape[-1]) if asked else None
    size = capture.chunk or block_size(batch * heads * length, query.device)
    for queries, keys, weights, visible in weight_blocks(
        query,
        key,
        attention_mask,
        scaling=head_dim**-0.5 if scaling is None else scaling,
        softcap=softcap,
        sinks=s_aux,
        size=size,
    ):
        if output is not None:
            rows = weights.reshape(len(flat_value), -1, keys.stop - keys.start).to(value.dtype)
            mixed = torch.bmm(rows, flat_value[:, keys])
            output[:, queries] = mixed.view(batch, heads, -1, value.shape[-1]).transpose(1, 2)
        if reduction is not None:
            reduction.add(weights, queries, keys, visible=visible, values=value)
    if reduction is not None:
        kept = output.transpose(1, 2) if output is not None else None
        capture.recorded[layer] = reduction.finish(output=kept, values=value)
        capture.stop_if_done()
    assert output is not None  # the last layer asked either stopped the pass or was needed further
    return output, None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, causal_mask)
