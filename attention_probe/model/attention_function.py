"""The attention function in Hugging Face's registry: a model's normal output, with each asked layer reduced on the way.

Hugging Face models ask one registry for their attention function and another for their mask. Ours are in both under one
name. The function computes the weights of a few queries at a time and reduces them (`attention_statistics`). The mask
stays a rule that is evaluated for one block at a time. So neither the weights nor the mask of a whole prompt, which are
squares of its length, are ever in memory. What is asked travels with the call, as a keyword argument that models hand
through to their attention. The pass ends as soon as the last thing asked is there.

Source: https://huggingface.co/docs/transformers/en/attention_interface
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from attention_probe.model.attention_statistics import Capture, Reduction
from harness.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

BLOCK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""How large a block of weights may get before it takes fewer queries."""

ATTENTION = "mless_capture"
"""Our name in both registries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalMask:
    """Which keys each query may see, as a rule: a stored mask would be a square.

    Attributes:
        plain: Whether every query sees everything before it, so that there is no rule to evaluate.
        window: Keys this far back or further are never seen; None if there is no limit.
        rule: Gives a block of the boolean mask for `q_length`, `q_offset`, `kv_length` and `kv_offset`.
    """

    plain: bool
    window: int | None
    rule: Callable[..., Tensor]

    def block(self, queries: slice, keys: slice) -> Bool[Tensor, "batch 1 q k"]:
        """Which query sees which key within a block."""
        return self.rule(
            q_length=queries.stop - queries.start,
            q_offset=queries.start,
            kv_length=keys.stop - keys.start,
            kv_offset=keys.start,
        )


def causal_mask(
    *,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **arguments: Any,
) -> CausalMask:
    """The registered mask function: Hugging Face's own rule, not yet evaluated.

    Raises:
        ModelError: queries may see later keys.
    """
    kept = {
        name: arguments[name]
        for name in arguments.keys() & {"batch_size", "mask_function", "use_vmap", "device"}
    }
    rule = partial(sdpa_mask, attention_mask=attention_mask, allow_is_causal_skip=False, **kept)
    # Padding on the right comes after every real query; what padding itself attends to is never looked at.
    late_padding = attention_mask is None or not bool(
        (attention_mask[:, 1:] & ~attention_mask[:, :-1]).any()
    )
    plain = (
        allow_is_causal_skip and late_padding and (local_size is None or kv_length <= local_size)
    )
    mask = CausalMask(plain=plain, window=local_size, rule=rule)
    if not plain and bool(mask.block(slice(0, q_length - 1), slice(q_length - 1, q_length)).any()):
        raise ModelError("This model is not causal: it lets tokens see later ones.")
    return mask


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
    capture: Capture | None = None,
    **_: Any,
) -> tuple[Float[Tensor, "batch query head head_dim"], None]:
    """The registered attention function: the normal output, reduced on the way if its layer is asked."""
    layer = getattr(module, "layer_idx", None)
    if capture is None or layer is None or not isinstance(attention_mask, CausalMask):
        raise ModelError(
            f"{type(module).__name__} calls its attention without a layer or a mask: it cannot be probed."
        )
    batch, heads, length, head_dim = query.shape
    reduction = Reduction(capture, heads, value) if layer in capture.asked else None
    output = None
    if (
        layer != capture.asked[-1]
        or capture.output_region is not None
        or capture.waits_for_activations
    ):
        output = value.new_empty(batch, length, heads, value.shape[-1])
    flat_value = value.reshape(batch * value.shape[1], length, -1)
    for queries, keys, weights in weight_blocks(
        query,
        key,
        attention_mask,
        scaling=head_dim**-0.5 if scaling is None else scaling,
        softcap=softcap,
        sinks=s_aux,
        size=capture.chunk or _block_size(batch * heads * length, query.device),
    ):
        if output is not None:
            rows = weights.reshape(len(flat_value), -1, keys.stop - keys.start).to(value.dtype)
            mixed = torch.bmm(rows, flat_value[:, keys])
            output[:, queries] = mixed.view(batch, heads, -1, value.shape[-1]).transpose(1, 2)
        if reduction is not None:
            reduction.add(weights, queries, keys)
    if reduction is not None:
        capture.layers[layer] = reduction.finish(None if output is None else output.transpose(1, 2))
        capture.stop_if_done()
    assert output is not None  # the last layer asked either stopped the pass or was needed further
    return output, None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, causal_mask)


def weight_blocks(
    query: Float[Tensor, "batch head query head_dim"],
    key: Float[Tensor, "batch kv_head key head_dim"],
    mask: CausalMask,
    *,
    scaling: float,
    softcap: float | None,
    sinks: Float[Tensor, " head"] | None,
    size: int,
) -> Iterator[tuple[slice, slice, Float[Tensor, "batch head q k"]]]:
    """Attention weights of `size` queries at a time, over the keys up to the last of them.

    Each block overwrites the one before it. Queries are grouped by the KV head that they share, so that keys are never
    repeated.
    """
    batch, heads, length, head_dim = query.shape
    kv_heads = key.shape[1]
    flat_key = key.reshape(batch * kv_heads, length, head_dim)
    buffer = query.new_empty(batch * heads * min(size, length) * length)
    lowest = torch.finfo(
        torch.float32
    ).min  # not -inf: a row of padding, which sees nothing, must stay finite
    for start in range(0, length, size):
        queries = slice(start, min(start + size, length))
        count = queries.stop - queries.start
        first = 0 if mask.window is None else max(0, queries.start - mask.window + 1)
        keys = slice(first, queries.stop)
        span = keys.stop - keys.start
        scores = buffer[: batch * heads * count * span].view(batch * kv_heads, -1, span)
        grouped = query[:, :, queries].reshape(batch * kv_heads, -1, head_dim)
        torch.baddbmm(scores, grouped, flat_key[:, keys].mT, beta=0, alpha=scaling, out=scores)
        scores = scores.view(batch, heads, count, span).float()
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        if mask.plain:
            scores[..., -count:] += torch.full((count, count), lowest, device=scores.device).triu_(
                1
            )
        else:
            visible = mask.block(queries, keys)
            scores += torch.zeros(visible.shape, device=scores.device).masked_fill_(
                ~visible, lowest
            )
        if sinks is not None:
            sink = sinks.float().view(1, heads, 1, 1).expand(batch, heads, count, 1)
            weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
        else:
            weights = torch.softmax(scores, -1, out=scores)
        yield queries, keys, weights


def _block_size(row: int, device: torch.device) -> int:
    """Queries in a block, so that a block of `row` float32 weights for each stays within its bounds."""
    most = 64 if device.type == "cpu" else 1024
    return max(16, min(most, BLOCK_BYTES.get(device.type, BLOCK_BYTES["cuda"]) // (4 * row)))


@contextmanager
def quiet(*, progress: bool = True) -> Iterator[None]:
    """Silence transformers' warnings, and its progress bars too unless `progress`.

    What matters of the warnings is checked by us, and said in our words.
    """
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def switched_attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Give the model another attention implementation, and put its own back afterwards."""
    before = (
        model.config._attn_implementation
    )  # transformers sets it publicly, and shows it nowhere else
    with quiet():
        model.set_attn_implementation(name)
    try:
        yield
    finally:
        with quiet():
            model.set_attn_implementation(before)
