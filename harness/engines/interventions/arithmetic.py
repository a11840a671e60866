"""What interventions do to tensors. The same functions serve vLLM and Hugging Face, token by token.

So an answer does not depend on how tokens were batched, cut into chunks or cached.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

OUTWARD_QUANTILE = 0.995
"""How far activations are moved outward at most: the p1 of the study's ARM for Qwen2.5-Math-1.5B and Qwen2.5-7B."""


Arm = Mapping[str, Any]
"""The intervention on a request, as the config's intervention resolves it."""


@dataclass(frozen=True, slots=True)
class Fillers:
    """The fillers of several sequences, as tensors [sequence, 1, 1] on the device.

    Attributes:
        start: The index of the filler's first token.
        end: The index of the first token after it in the prompt, which is `start` for a phantom.
        phantom_sizes: How many phantom keys it has.
        scale: Whether original tokens have less weight because of the filler.
        bias: Whether the filler's values are added.
        padded_size: The most phantom keys of a sequence. All sequences are padded to it.
    """

    start: Tensor
    end: Tensor
    phantom_sizes: Tensor
    scale: Tensor
    bias: Tensor
    padded_size: int


def tabulate_fillers(arms: Sequence[Arm], device: torch.device) -> Fillers:
    """The fillers of arms, each of which has one."""
    rows = []
    for arm in arms:
        phantom_size = len(arm.get("phantom", ()))
        end = arm["start"] + (0 if phantom_size else arm["size"])
        rows.append((arm["start"], end, phantom_size, arm["scale"], arm["bias"]))
    start, end, phantom_sizes, scale, bias = copy_to(device, rows).T[:, :, None, None]
    padded_size = max(row[2] for row in rows)
    return Fillers(start, end, phantom_sizes, scale.bool(), bias.bool(), padded_size)


def copy_to(device: torch.device, integers: Any) -> Tensor:
    """Integers of lists or of an array, on the device.

    A copy from pinned memory is queued. Any other would wait until the device has no work left.
    """
    tensor = torch.from_numpy(np.asarray(integers))  # a third of torch's time for a list
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    factor: float,
    indices: Tensor,
    fillers: Fillers,
) -> Tensor:
    """The output of causal attention, with a filler's parts switched: `scale x original + bias`.

    Args:
        query: [sequence, token, head, unit], of any dtype; computed with in float32.
        key: [sequence, position, head for keys, unit].
        value: As `key`.
        factor: What scores are multiplied with.
        indices: [sequence, token] The index of each query in its sequence.
        fillers: Of each sequence.

    Returns:
        [sequence, token, head, unit] in float32.
    """
    weights = weigh(query, key, factor, indices, fillers)
    return torch.einsum("bhgtl,bhld->bthgd", weights, _heads_first(value)).flatten(2, 3)


def weigh(query: Tensor, key: Tensor, factor: float, indices: Tensor, fillers: Fillers) -> Tensor:
    """The weights of that attention.

    Where `scale` is off, original tokens have the weights that they would have without the filler; where `bias` is
    off, the filler's values are not added. Queries before the filler's end are left as they are.

    Args:
        query: [sequence, token, head, unit], of any dtype; computed with in float32.
        key: [sequence, position, head for keys, unit]; the last `fillers.padded_size` are
            of fillers that are not in the prompt.
        factor: What scores are multiplied with.
        indices: [sequence, token] The index of each query in its sequence.
        fillers: Of each sequence.

    Returns:
        [sequence, head for keys, head of these, token, position] in float32.
    """
    indices = indices[:, :, None]
    positions = torch.arange(key.shape[1] - fillers.padded_size, device=query.device)
    phantoms = torch.arange(fillers.padded_size, device=query.device)
    is_after = indices >= fillers.end
    is_phantom = (phantoms < fillers.phantom_sizes) & is_after
    is_inside = (positions >= fillers.start) & (positions < fillers.end) & is_after
    is_visible = torch.cat([positions <= indices, is_phantom], -1)[:, None, None]
    is_filler = torch.cat([is_inside, is_phantom], -1)
    is_dropped = (is_filler & ~fillers.bias)[:, None, None]
    is_filler = is_filler[:, None, None]
    weights = plain_weights(query, key, factor, is_visible).masked_fill_(is_dropped, 0)
    original_sum = weights.masked_fill(is_filler, 0).sum(-1, keepdim=True)
    divisor = torch.where(fillers.scale[:, None, None], 1, original_sum)
    return torch.where(is_filler, weights, weights / divisor)


def plain_weights(query: Tensor, key: Tensor, factor: float, is_visible: Tensor) -> Tensor:
    """The weights of attention as it is, shaped as those of `weigh`.

    `is_visible` says which keys each query sees, and broadcasts to this shape.
    """
    queries = query.float().view(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = torch.einsum("bthgd,bhld->bhgtl", queries, _heads_first(key)).mul_(factor)
    return scores.masked_fill_(~is_visible, -torch.inf).softmax(-1)


def _heads_first(states: Tensor) -> Tensor:
    """[sequence, head, position, unit] in float32, in this order in memory, as einsum needs it."""
    return states.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def change_activations(activations: Tensor, positions: Tensor, arm: Arm) -> Tensor:
    """Activations [token, unit] of an MLP, changed as an arm says; positions [token]."""
    kind = arm["kind"]
    if kind == "function":
        changed = _function(arm["file"])(activations, positions, **arm["arguments"])
    else:
        changed = redistribute(
            activations.float(), positions, arm["share"], sham=arm["sham"], seed=arm["seed"]
        )
    return changed.to(activations.dtype)


def redistribute(
    a: Tensor, positions: Tensor, share: float, *, sham: str | None = None, seed: int
) -> Tensor:
    """The `share` of a token's activations [token, unit] nearest to zero move outward and keep their sign.

    Each goes to a drawn part of the way to the token's large quantile, a negative one to its least activation. A sham
    moves as many others by as much (the same norm for each token): `random` ones outward, or the largest `inward`.

    Source:
        ARM of Shi et al., arXiv 2510.01032, with the statistics of one token in place of a whole prompt.
    """
    units = a.shape[-1]
    moved, size, drawn = max(1, round(share * units)), a.abs(), draw(positions, units, seed)
    low = size <= size.kthvalue(moved, -1, keepdim=True).values
    reach = torch.where(
        a >= 0,
        a.kthvalue(int(OUTWARD_QUANTILE * units), -1, keepdim=True).values,
        a.amin(-1, keepdim=True),
    )
    step = torch.where(low, reach * drawn - a, 0)
    if sham is not None:
        rank = size if sham == "inward" else draw(positions, units, seed + 1)
        chosen = rank > rank.kthvalue(units - moved, -1, keepdim=True).values
        other = torch.where(chosen, a.sign() * (0.5 + drawn), 0) * (-1 if sham == "inward" else 1)
        step = other * (step.norm(dim=-1, keepdim=True) / other.norm(dim=-1, keepdim=True))
    return a + step


def draw(positions: Tensor, units: int, seed: int) -> Tensor:
    """Numbers [token, unit] in [0, 1) from seed, position and unit alone: the same in every batch, chunk and engine."""
    unit = torch.arange(units, device=positions.device)
    mixed = (positions[:, None] + 1) * 40503 + unit * 104729 + (seed + 1) * 12345
    for shift in (13, 16, 11):
        mixed = ((mixed ^ (mixed >> shift)) * 1274126177) & 0x7FFFFFFF
    return (mixed & 0xFFFFFF).float() / 2**24


def add_gap(positions: Tensor, start: Tensor | int, size: Tensor | int) -> Tensor:
    """Positions of prompts without a filler, moved as if it were there, at `start`."""
    return positions + torch.where(positions >= start, size, 0)


@cache
def _function(file: str) -> Callable[..., Tensor]:
    spec = importlib.util.spec_from_file_location("mless_intervention", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    change: Callable[..., Tensor] = module.change
    return change
