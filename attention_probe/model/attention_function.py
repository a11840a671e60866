"""The probe's attention function: a model's normal output, with each requested layer reduced.

Hugging Face models look up their attention function and their mask in one registry each. Ours are
in both under one name. The function computes the weights of a few queries at a time and reduces
them (`attention_statistics`). The mask is a rule that is evaluated for one block at a time. So
neither the weights nor the mask of a full prompt, whose size is the square of its length, are ever
in memory. The `Capture` travels with the call, as a keyword argument that models pass through to
their attention. The pass ends as soon as the capture is complete.

Source: https://huggingface.co/docs/transformers/en/attention_interface
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from attention_probe.model.attention_statistics import Capture, Reduction
from harness.errors import ModelError

MOST_BLOCK_BYTES_BY_DEVICE = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Largest size of a block of weights, by type of device."""
FEWEST_BLOCK_QUERIES = 16
"""The fewest queries of a block, also of long prompts."""
MOST_BLOCK_QUERIES_BY_DEVICE = {"cpu": 64, "cuda": 1024}
"""The most queries of a block, by type of device."""

ATTENTION_NAME = "mless_capture"
"""The name of the probe's functions in both registries."""


@dataclass(frozen=True)
class CausalMask:
    """Which keys each query may see, as a rule, because a stored mask would be quadratic in size.

    Attributes:
        is_plain: Whether every query sees itself and all keys before it, so that the rule is not
            needed.
        window: Keys at least this far back are never seen; None if there is no limit.
        rule: Returns a block of the boolean mask.
    """

    is_plain: bool
    window: int | None
    rule: Callable[..., Tensor]

    def block(self, queries: slice, keys: slice) -> Tensor:
        """The mask of a block [1, 1, query, key]: true where a query sees a key."""
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
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    **arguments: Any,
) -> CausalMask:
    """The registered mask function: the rule of Hugging Face, not yet evaluated.

    Args:
        q_length: The number of queries.
        kv_length: The number of keys.
        local_size: The size of a sliding window or chunk; None if there is no limit.
        allow_is_causal_skip: Whether a plain causal mask needs no rule.
        arguments: All others, which `sdpa_mask` gets unchanged.

    Raises:
        ModelError: queries may see later keys.
    """
    # with a skip `sdpa_mask` would return None instead of a plain causal mask
    rule = partial(sdpa_mask, **arguments, allow_is_causal_skip=False)
    is_plain = allow_is_causal_skip and (local_size is None or kv_length <= local_size)
    mask = CausalMask(is_plain=is_plain, window=local_size, rule=rule)
    if not is_plain:
        # one key is enough: only the last query may see the last key
        last_key = slice(q_length - 1, q_length)
        if mask.block(slice(0, q_length - 1), last_key).any():
            raise ModelError("This model is not causal: it lets tokens see later ones.")
    return mask


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: CausalMask | Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    capture: Capture | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The registered attention function: the normal output; a requested layer is also reduced.

    Its tensors are [1, head, token, unit], because a pass has one prompt. Keys and values have
    fewer heads than queries (KV heads), and consecutive query heads share one. The output is
    [1, token, head, unit]. It is not computed in the layer where the pass ends: that is the last
    requested layer, unless hooks of the layer have yet to record something.

    Args:
        module: The model's attention module, which knows its layer.
        query: The queries.
        key: The keys.
        value: The values.
        attention_mask: The mask that `causal_mask` made.
        scaling: The factor of dot products; None for 1 / sqrt(head_dim).
        softcap: See `weight_blocks`.
        s_aux: The sinks of `weight_blocks`, under the name that Hugging Face has for them.
        capture: The request, which gets the layer's numbers.

    Raises:
        ModelError: the model does not call this function as Hugging Face's models do.
        CaptureFinished: the capture is complete, so the forward pass need not go on.
    """
    layer_index = getattr(module, "layer_idx", None)
    if capture is None or layer_index is None or not isinstance(attention_mask, CausalMask):
        raise ModelError(
            f"{type(module).__name__} calls its attention without a layer or a mask: "
            "it cannot be probed."
        )
    head_count, token_count, head_dim = query.shape[1:]
    score_factor = head_dim**-0.5 if scaling is None else scaling
    reduction = Reduction(capture.request, query) if layer_index in capture.layer_indices else None
    ends_pass = layer_index == capture.layer_indices[-1] and not capture.has_pending_hooks
    output = value.new_empty(1, token_count, head_count, value.shape[-1])
    for queries, keys, weights in weight_blocks(
        query[0], key[0], attention_mask, score_factor, softcap, s_aux
    ):
        if not ends_pass:
            output[0, queries] = _weigh_values(weights, value[0, :, keys])
        # after the output, because `add` changes the weights
        if reduction is not None:
            reduction.add(weights, queries, keys)
    if reduction is not None:
        capture.layers[layer_index] = reduction.finish()
        # ends the pass by CaptureFinished, which `capture_attention` catches
        capture.stop_if_complete()
    return output, None


AttentionInterface.register(ATTENTION_NAME, attend)
# Without a mask function of the same name, the attention function would always get None: padding
# and sliding windows would then be ignored silently.
AttentionMaskInterface.register(ATTENTION_NAME, causal_mask)


def _weigh_values(weights: Tensor, value: Tensor) -> Tensor:
    """The output [query, head, unit] of weights [head, query, key] and values [KV head, key, unit].

    The query heads of a KV head are consecutive, so one product has all their queries.
    """
    grouped_weights = weights.reshape(len(value), -1, weights.shape[-1])
    product = torch.bmm(grouped_weights.to(value.dtype), value)
    return product.view(len(weights), -1, value.shape[-1]).transpose(0, 1)


def weight_blocks(
    query: Tensor,
    key: Tensor,
    mask: CausalMask,
    score_factor: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Attention weights of a few queries at a time, over the keys up to the last of these queries.

    All blocks use the same memory. Queries are grouped by the KV head that they share, so that keys
    are never repeated.

    Args:
        query: [head, token, unit] The queries.
        key: [KV head, token, unit] The keys.
        mask: Which keys each query may see.
        score_factor: The factor of dot products, usually 1 / sqrt(head_dim).
        softcap: Scores are squashed into (-softcap, softcap), as in Gemma 2; None for no limit.
        sinks: [head] A learnt score of each head that takes weight and has no value, as in gpt-oss.

    Yields:
        The block's queries, its keys, and its weights [head, query, key], which the next block
        overwrites.
    """
    head_count, token_count, head_dim = query.shape
    most_queries = _count_block_queries(head_count * token_count, query.device)
    # room for the largest possible block, whose queries see all keys
    buffer = query.new_empty(head_count * min(most_queries, token_count) * token_count)
    for first_query in range(0, token_count, most_queries):
        queries = slice(first_query, min(first_query + most_queries, token_count))
        # query q sees the keys from q - window + 1 to q, or from 0 without a window
        first_key = 0 if mask.window is None else max(0, first_query - mask.window + 1)
        keys = slice(first_key, queries.stop)
        query_count = queries.stop - first_query
        key_count = keys.stop - first_key
        # [KV head, query of any of its heads, unit or key]
        grouped_queries = query[:, queries].reshape(len(key), -1, head_dim)
        scores = buffer[: head_count * query_count * key_count].view(len(key), -1, key_count)
        # scores = score_factor * queries @ keys; `beta=0` ignores what the memory contains
        torch.baddbmm(
            scores, grouped_queries, key[:, keys].mT, beta=0, alpha=score_factor, out=scores
        )
        # Softmax in float32, as in eager attention. This copies only if the model has another type.
        scores = scores.view(head_count, query_count, key_count).float()
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap)
        _hide_keys(scores, mask, queries, keys)
        yield queries, keys, _softmax(scores, sinks)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Weights [head, query, key], in the memory of the scores unless there are sinks."""
    if sinks is None:
        return torch.softmax(scores, -1, out=scores)
    sink_scores = sinks.float().view(-1, 1, 1).expand(-1, scores.shape[1], 1)
    # the last weight is the sink's and is dropped, so the others add up to less than 1
    return torch.softmax(torch.cat([scores, sink_scores], -1), -1)[..., :-1]


def _hide_keys(scores: Tensor, mask: CausalMask, queries: slice, keys: slice) -> None:
    """Set the scores of keys that a query may not see to -inf, in place."""
    if mask.is_plain:
        # only the last keys, as many as there are queries, can come after one of the queries
        query_count = queries.stop - queries.start
        hidden_keys = scores.new_full((query_count, query_count), -torch.inf).triu_(1)
        scores[..., -query_count:] += hidden_keys
    else:
        scores.masked_fill_(~mask.block(queries, keys)[0], -torch.inf)


def _count_block_queries(weights_per_query: int, device: torch.device) -> int:
    """The number of queries in a block, whose weights are in float32.

    It is the number that MOST_BLOCK_BYTES_BY_DEVICE allows, but at least FEWEST_BLOCK_QUERIES and
    at most MOST_BLOCK_QUERIES_BY_DEVICE.

    Args:
        weights_per_query: The number of weights that a query has in all heads together.
        device: Where the model runs.
    """
    # every accelerator counts as a GPU
    device_kind = "cpu" if device.type == "cpu" else "cuda"
    # a weight in float32 has 4 bytes
    affordable_count = MOST_BLOCK_BYTES_BY_DEVICE[device_kind] // (4 * weights_per_query)
    return max(
        FEWEST_BLOCK_QUERIES, min(MOST_BLOCK_QUERIES_BY_DEVICE[device_kind], affordable_count)
    )


@contextmanager
def silence_transformers(*, keep_progress_bars: bool = True) -> Iterator[None]:
    """Silence transformers' warnings, and also its progress bars unless `keep_progress_bars`.

    The probe itself checks what these warnings are about. At the end both are as they were before.
    """
    previous_verbosity = logging.get_verbosity()
    had_progress_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not keep_progress_bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(previous_verbosity)
        if had_progress_bars:
            logging.enable_progress_bar()


@contextmanager
def switch_attention(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Give the model another attention implementation, and restore the previous one at the end."""
    # transformers has a public setter, but no public getter
    previous_name = model.config._attn_implementation
    with silence_transformers():
        model.set_attn_implementation(name)
    try:
        yield
    finally:
        with silence_transformers():
            model.set_attn_implementation(previous_name)
