"""What interventions do to tensors. The same functions serve vLLM and Hugging Face, token by token.

So an answer does not depend on how tokens were batched, cut into chunks or cached.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from harness.constants import OUTWARD_QUANTILE


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    factor: float,
    at: Tensor,
    arms: Sequence[Mapping[str, Any]],
    phantoms: int = 0,
) -> Tensor:
    """The output of causal attention, with the parts that a filler has in it switched: `scale x original + bias`.

    Args:
        query: [sequence, token, head, unit], of any dtype; computed with in float32.
        key: [sequence, position, head for keys, unit].
        value: As `key`.
        factor: What scores are multiplied with.
        at: The index of each query in its sequence.
        arms: Of each sequence.
        phantoms: How many there are at most.

    Returns:
        [sequence, token, head, unit] in float32.
    """
    weights = weigh(query, key, factor, at, arms, phantoms)
    return torch.einsum("bhgtl,blhd->bthgd", weights, value.float()).flatten(2, 3)


def weigh(
    query: Tensor, key: Tensor, factor: float, at: Tensor, arms: Sequence[Mapping[str, Any]], phantoms: int = 0
) -> Tensor:
    """The weights of that attention.

    Where `scale` is off, original tokens have the weights that they would have without the filler; where `bias` is
    off, the filler's values are not added. Queries before the filler's end are left as they are.

    Args:
        query: [sequence, token, head, unit], of any dtype; computed with in float32.
        key: [sequence, position, head for keys, unit]; the last `phantoms` are of fillers that are not in the prompt,
            `phantom` of the arm of each sequence says how many it has.
        factor: What scores are multiplied with.
        at: [sequence, token] The index of each query in its sequence.
        arms: Of each sequence, as `experiment.interventions.resolve` gives them.
        phantoms: How many there are at most.

    Returns:
        [sequence, head for keys, head of these, token, position] in float32.
    """

    def column(name: str) -> Tensor:
        return torch.tensor([arm[name] for arm in arms], device=query.device).view(-1, 1, 1)

    there = key.shape[1] - phantoms
    places, extra = torch.arange(there, device=query.device), torch.arange(phantoms, device=query.device)
    sizes = torch.tensor([len(arm.get("phantom", ())) for arm in arms], device=query.device).view(-1, 1, 1)
    start, at = column("start"), at[:, :, None]
    end = torch.where(sizes > 0, start, start + column("size"))
    behind = at >= end
    phantom = (extra < sizes) & behind
    seen = torch.cat([places <= at, phantom], -1)[:, None, None]
    filler = torch.cat([(places >= start) & (places < end) & behind, phantom], -1)[:, None, None]
    weights = plain_weights(query, key, factor, seen)
    original, added = weights.masked_fill(filler, 0), weights.masked_fill(~filler, 0)
    scale, bias = column("scale")[:, :, None, None], column("bias")[:, :, None, None]
    original = torch.where(scale, original, original / original.sum(-1, keepdim=True))
    return original + torch.where(bias, added, 0)


def plain_weights(query: Tensor, key: Tensor, factor: float, seen: Tensor) -> Tensor:
    """The weights of attention as it is, shaped as those of `weigh`; which keys are `seen` broadcasts to them."""
    queries = query.float().view(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = torch.einsum("bthgd,blhd->bhgtl", queries, key.float()).mul_(factor)
    return scores.masked_fill_(~seen, -torch.inf).softmax(-1)


def change_activations(activations: Tensor, positions: Tensor, arm: Mapping[str, Any]) -> Tensor:
    """Activations [token, unit] of an MLP, changed as an arm says; positions [token]."""
    kind = arm["kind"]
    if kind == "function":
        changed = _function(arm["file"])(activations, positions, **arm["arguments"])
    else:
        changed = redistribute(activations.float(), positions, arm["share"], sham=arm["sham"], seed=arm["seed"])
    return changed.to(activations.dtype)


def redistribute(a: Tensor, positions: Tensor, share: float, *, sham: str | None = None, seed: int) -> Tensor:
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
        a >= 0, a.kthvalue(int(OUTWARD_QUANTILE * units), -1, keepdim=True).values, a.amin(-1, keepdim=True)
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


def add_gap(positions: Tensor, arm: Mapping[str, Any]) -> Tensor:
    """Positions of a prompt without its filler, moved from where it would stand as if it were there."""
    return positions + torch.where(positions >= arm["start"], arm["size"], 0) if "phantom" in arm else positions


@cache
def _function(file: str) -> Callable[..., Tensor]:
    spec = importlib.util.spec_from_file_location("mless_intervention", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., Tensor] = module.change
    return found
