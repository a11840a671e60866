"""What a filler does to a head, in numbers: where attention goes, and how the head's output changes.

With o_wo, o_with and o_gap the head's output for one token without filler, with it, and without it but at the positions
that the token has with it, m the attention on all that was inserted, and b what the inserted tokens add to the output:

    o_with - o_wo  =  (o_gap - o_wo)  +  (-m o_gap)  +  b
    the change        position shift     scale          bias

This is exact in the first layer, where every query and key depends on a token and its position alone. Deeper layers
leave a residual, because what they get from the layers below has changed too.

Source: the affine map of arXiv 2510.01032, section 3.
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_probe.prompts.token_roles import TokenizedPrompt

REGIONS = ("first", "instruction", "filler", "problem", "completion", "other", "inserted")
"""Regions of keys. All but the last share out the prompt; `inserted` is the filler with its separator."""


def key_regions(prompt: TokenizedPrompt) -> Bool[Tensor, "region seq"]:
    """Which tokens belong to which of REGIONS."""
    first = np.arange(len(prompt)) == 0
    named = [prompt.has_role(role) & ~first for role in REGIONS[1:5]]
    other = ~np.logical_or.reduce([first, *named])
    return torch.from_numpy(np.stack([first, *named, other, prompt.inserted]))


def mass_measures(mass: Float[Tensor, "head query region"]) -> dict[str, Float[Tensor, " head"]]:
    """Mean attention on each region over the given queries, which are of REGIONS."""
    means = dict(zip(REGIONS, mass.mean(1).unbind(-1), strict=True))
    return {
        **{f"mass_{name}": means[name] for name in REGIONS[:-1]},
        "lambda": 1 - means["inserted"],
    }


def decompose(
    *,
    without: Float[Tensor, "head query head_dim"],
    gap: Float[Tensor, "head query head_dim"],
    with_filler: Float[Tensor, "head query head_dim"],
    bias: Float[Tensor, "head query head_dim"],
    mass: Float[Tensor, "head query"],
) -> tuple[dict[str, Float[Tensor, " head"]], Float[Tensor, " head"]]:
    """The parts of the change of a head's output, as means over the same queries, and the residual beside them.

    Args:
        without: Head outputs o_wo, before the output projection.
        gap: o_gap.
        with_filler: o_with.
        bias: b, the inserted tokens' part of o_with.
        mass: m, their attention.

    Returns:
        Measures by name, and |o_with - (1 - m) o_gap - b| / |o_with|, which is 0 in the first layer but for rounding.
    """
    scale = mass[..., None] * gap

    def size(part: Tensor) -> Tensor:
        return part.square().sum(-1).sqrt()

    tiny = torch.finfo(without.dtype).tiny
    original, shifted = size(without).clamp_min(tiny), size(gap).clamp_min(tiny)
    measures = {
        "position_shift": size(gap - without) / original,
        "scale": size(scale) / original,
        "bias": size(bias) / original,
        # a query that sees nothing of what was inserted has no bias to point anywhere
        "bias_cosine": (_direction(bias) * _direction(gap))
        .sum(-1)
        .masked_fill(mass == 0, torch.nan),
        "bias_relative_norm": size(bias) / shifted,
    }
    residual = size(with_filler - (gap - scale) - bias) / size(with_filler).clamp_min(tiny)
    return {name: values.nanmean(1) for name, values in measures.items()}, residual.mean(1)


def _direction(vectors: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
    """Vectors of length 1, in float64: b may be 1e-12 long, and torch's cosine takes anything below 1e-8 for longer."""
    return torch.nn.functional.normalize(
        vectors.double(), dim=-1, eps=torch.finfo(torch.float64).tiny
    )
