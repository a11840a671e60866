"""The arithmetic of interventions on tensors. The same functions serve vLLM and Hugging Face.

They compute token by token, so an answer does not depend on batches, chunks or caches.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.engines.interventions.user_functions import load_change

OUTWARD_QUANTILE = 0.995
"""Activations move outward up to this quantile: p1 of the study's ARM for Qwen2.5-Math-1.5B and
Qwen2.5-7B."""

RequestIntervention = Mapping[str, Any]
"""The intervention on a request, as the config's intervention resolves it."""


@dataclass(frozen=True)
class Fillers:
    """The fillers of several sequences, as tensors [sequence, 1, 1] on the device.

    Attributes:
        start: The index of the filler's first token.
        end: The index of the first token after it in the prompt, which is `start` for a phantom.
        kept_start: The index of the first token of it that counts as an original token.
        kept_end: The index of the first token after these.
        phantom_sizes: The number of its phantom keys.
        scale: Whether original tokens have less weight because of the filler.
        bias: Whether the filler's values are added.
        first_token_log: The logarithm of how many times the first token counts.
        padded_size: The largest number of phantom keys. All sequences are padded to it.
    """

    start: Tensor
    end: Tensor
    kept_start: Tensor
    kept_end: Tensor
    phantom_sizes: Tensor
    scale: Tensor
    bias: Tensor
    first_token_log: Tensor
    padded_size: int


def tabulate_fillers(interventions: Sequence[RequestIntervention], device: torch.device) -> Fillers:
    """The fillers of interventions that change attention; of the kind `sink` they are empty.

    Args:
        interventions: One for each sequence of the batch, in their order; equal ones may recur.
        device: The device of the tensors.
    """
    # without a count the first token counts once: only a sink has one
    logs = [math.log(intervention.get("count", 1)) for intervention in interventions]
    rows = []
    for intervention in interventions:
        phantom_size, start = len(intervention.get("phantom", ())), intervention.get("start", 0)
        end = start + (0 if phantom_size else intervention.get("size", 0))
        switches = intervention.get("scale", True), intervention.get("bias", True)
        rows.append((start, end, *intervention.get("kept", (0, 0)), phantom_size, *switches))
    integers = copy_to(device, rows).T[:, :, None, None]
    start, end, kept_start, kept_end, phantom_sizes, scale, bias = integers
    return Fillers(
        start=start,
        end=end,
        kept_start=kept_start,
        kept_end=kept_end,
        phantom_sizes=phantom_sizes,
        scale=scale.bool(),
        bias=bias.bool(),
        first_token_log=copy_to(device, np.array(logs, np.float32))[:, None, None],
        padded_size=max(len(intervention.get("phantom", ())) for intervention in interventions),
    )


def copy_to(device: torch.device, numbers: Any) -> Tensor:
    """Numbers of lists or of an array, on the device.

    A copy from pinned memory is queued. Other copies wait until the device has no work left.
    """
    tensor = torch.from_numpy(np.asarray(numbers))  # numpy reads a list in a third of torch's time
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def attend_with_fillers(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    factor: float,
    indices: Tensor,
    fillers: Fillers,
) -> Tensor:
    """The output of causal attention with switches of the filler: `scale x original + bias`.

    The arguments are those of `weigh`, and `value`, in the shape of `key`. The result is
    [sequence, token, head, unit] in float32.
    """
    weights = weigh(query, key, factor, indices, fillers)
    # b sequence, h KV head, g query head of this KV head, t query, l key, d unit
    return torch.einsum("bhgtl,bhld->bthgd", weights, _heads_first(value)).flatten(2, 3)


def weigh(query: Tensor, key: Tensor, factor: float, indices: Tensor, fillers: Fillers) -> Tensor:
    """The weights of that attention, computed in float32.

    Where `scale` is off, original tokens have the weights that they would have without the filler.
    Where `bias` is off, the filler's values are not added. Queries before the filler's end are
    unchanged. Tokens that are kept are original tokens.

    Args:
        query: [sequence, token, head, unit], of any dtype.
        key: [sequence, position, head for keys, unit]; the last `fillers.padded_size` positions are
            phantoms, which are not in the prompt.
        factor: The factor of scores.
        indices: [sequence, token] The index of each query in its sequence.
        fillers: The sequences' fillers.

    Returns:
        [sequence, head for keys, head of these, token, position] in float32.
    """
    # [sequence, token, 1], against [position]
    indices = indices[:, :, None]
    positions = torch.arange(key.shape[1] - fillers.padded_size, device=query.device)
    phantoms = torch.arange(fillers.padded_size, device=query.device)
    is_after = indices >= fillers.end
    is_phantom = (phantoms < fillers.phantom_sizes) & is_after
    is_kept = (positions >= fillers.kept_start) & (positions < fillers.kept_end)
    is_inside = (positions >= fillers.start) & (positions < fillers.end) & is_after & ~is_kept
    is_visible = torch.cat([positions <= indices, is_phantom], -1)[:, None, None]
    is_filler = torch.cat([is_inside, is_phantom], -1)
    is_dropped = (is_filler & ~fillers.bias)[:, None, None]
    is_filler = is_filler[:, None, None]
    # Hidden without both terms: the other weights may be 0 where it has nearly all attention.
    is_visible &= fillers.scale[:, None, None] | ~is_dropped
    first_token_log = fillers.first_token_log[:, None]
    weights = plain_weights(query, key, factor, is_visible, first_token_log)
    weights = weights.masked_fill_(is_dropped, 0)
    original_sum = weights.masked_fill(is_filler, 0).sum(-1, keepdim=True)
    # Without `scale`, the original tokens share a sum of 1, as they would without the filler.
    divisor = torch.where(fillers.scale[:, None, None], 1, original_sum)
    return torch.where(is_filler, weights, weights / divisor)


def plain_weights(
    query: Tensor,
    key: Tensor,
    factor: float,
    is_visible: Tensor,
    first_token_log: Tensor | float = 0.0,
) -> Tensor:
    """The weights of attention in which queries see some keys, in the shape of those of `weigh`.

    `is_visible` broadcasts to this shape. `first_token_log` is added to the first key's scores.
    """
    queries = query.float().view(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = torch.einsum("bthgd,bhld->bhgtl", queries, _heads_first(key)).mul_(factor)
    scores[..., 0] += first_token_log
    return scores.masked_fill_(~is_visible, -torch.inf).softmax(-1)


def _heads_first(states: Tensor) -> Tensor:
    """[sequence, head, position, unit] in float32, in this order in memory for einsum."""
    return states.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def change_activations(
    activations: Tensor, positions: Tensor, intervention: RequestIntervention
) -> Tensor:
    """Activations [token, unit] of an MLP, changed by an intervention; positions [token]."""
    kind = intervention["kind"]
    if kind == "function":
        changed: Tensor = load_change(intervention["file"])(
            activations, positions, **intervention["arguments"]
        )
    else:
        changed = redistribute(
            activations.float(),
            positions,
            intervention["share"],
            sham=intervention["sham"],
            seed=intervention["seed"],
        )
    return changed.to(activations.dtype)


def redistribute(
    activations: Tensor, positions: Tensor, share: float, *, sham: str | None = None, seed: int
) -> Tensor:
    """Move the activations [token, unit] nearest to zero outward; they keep their sign.

    Of each token this `share` of its activations moves to a random fraction of the token's large
    quantile; negative activations move to a fraction of its smallest activation. A sham moves as
    many other activations by the same norm for each token: `random` ones outward, or the largest
    ones `inward`.

    Source:
        ARM of Shi et al., arXiv 2510.01032, with the statistics of a token in place of a prompt.
    """
    units = activations.shape[-1]
    small_count = max(1, round(share * units))
    sizes, fractions = activations.abs(), draw(positions, units, seed)
    # [token, unit] each token has its own threshold, because prompts come in chunks
    is_small = sizes <= sizes.kthvalue(small_count, -1, keepdim=True).values
    ends = torch.where(
        activations >= 0,
        activations.kthvalue(int(OUTWARD_QUANTILE * units), -1, keepdim=True).values,
        activations.amin(-1, keepdim=True),
    )
    steps = torch.where(is_small, ends * fractions - activations, 0)
    if sham is not None:
        ranks = sizes if sham == "inward" else draw(positions, units, seed + 1)
        is_moved = ranks > ranks.kthvalue(units - small_count, -1, keepdim=True).values
        sham_steps = torch.where(is_moved, activations.sign() * (0.5 + fractions), 0)
        if sham == "inward":
            sham_steps = -sham_steps
        norms = sham_steps.norm(dim=-1, keepdim=True)
        # activations that are zero have no sign, so a token may have none that a sham can move
        steps = sham_steps * (steps.norm(dim=-1, keepdim=True) / norms).nan_to_num()
    return activations + steps


def draw(positions: Tensor, units: int, seed: int) -> Tensor:
    """Random numbers [token, unit] in [0, 1), the same in all batches, chunks and engines.

    They depend on the seed, the position and the unit alone.
    """
    unit = torch.arange(units, device=positions.device)
    # an integer hash, because torch's generators give other numbers on other devices
    mixed = (positions[:, None] + 1) * 40503 + unit * 104729 + (seed + 1) * 12345
    for shift in (13, 16, 11):
        mixed = ((mixed ^ (mixed >> shift)) * 1274126177) & 0x7FFFFFFF
    # float32 represents 24 bits exactly
    return (mixed & 0xFFFFFF).float() / 2**24


def add_gap(positions: Tensor, start: Tensor | int, size: Tensor | int) -> Tensor:
    """Positions of prompts without a filler, moved as if the filler were there, at `start`."""
    return positions + torch.where(positions >= start, size, 0)
