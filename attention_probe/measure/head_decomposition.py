"""The effect of a filler on a head: where attention goes, and how the head's output changes.

o_wo, o_with and o_gap are the head's output for a token without filler, with it, and without it
but at the positions that the token has with it. m is the attention on all inserted tokens, and b
is what the inserted tokens add to the output:

    o_with - o_wo  =  (o_gap - o_wo)  +  (-m o_gap)  +  b
    the change        position shift     scale          bias

This is exact in the first layer, where every query and key depends only on a token and its
position. Deeper layers leave a residual, because their inputs have changed too.

Source: the affine map of arXiv 2510.01032, section 3.
"""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attention_probe.prompts.token_roles import TokenizedPrompt
from harness.experiment.built_prompts import TOKEN_REGIONS, index_regions

HeadOutputs = Float[Tensor, "head query head_dim"]
"""The outputs of one prompt's heads, before the output projection."""
REGIONS = (*TOKEN_REGIONS, "inserted")
"""Regions of keys. Each token is in exactly one region, and may also be in `inserted`: the filler
with its separator."""


def key_regions(prompt: TokenizedPrompt) -> Bool[Tensor, "region seq"]:
    """The tokens of each of REGIONS."""
    in_region = index_regions(prompt.roles) == np.arange(len(TOKEN_REGIONS))[:, None]
    return torch.from_numpy(np.vstack([in_region, prompt.inserted]))


def mass_measures(mass: Float[Tensor, "head query region"]) -> dict[str, Float[Tensor, " head"]]:
    """Mean attention of the queries on each of REGIONS."""
    *means, inserted = mass.mean(1).unbind(-1)
    measures = {f"mass_{name}": mean for name, mean in zip(REGIONS, means, strict=False)}
    return measures | {"lambda": 1 - inserted}


def decompose(
    *,
    without: HeadOutputs,
    gap: HeadOutputs,
    with_filler: HeadOutputs,
    bias: HeadOutputs,
    mass: Float[Tensor, "head query"],
) -> tuple[dict[str, Float[Tensor, " head"]], Float[Tensor, " head"]]:
    """The components of the change of a head's output, as means over queries, and the residual.

    Args:
        without: Head outputs o_wo, before the output projection.
        gap: o_gap.
        with_filler: o_with.
        bias: b, the contribution of the inserted tokens to o_with.
        mass: m, the attention on the inserted tokens.

    Returns:
        Measures by name, and |o_with - (1 - m) o_gap - b| / |o_with|, which is 0 in the first layer
        except for rounding.
    """
    # m o_gap [head, query, head_dim]
    scale = mass[..., None] * gap
    # some heads have an output of exactly 0, by which nothing can be divided
    tiny = torch.finfo(without.dtype).tiny
    original, shifted = _norm(without).clamp_min(tiny), _norm(gap).clamp_min(tiny)
    # In float64, and with no smallest length: that of b may be 1e-12.
    shortest = torch.finfo(torch.float64).tiny
    cosine = torch.cosine_similarity(bias.double(), gap.double(), dim=-1, eps=shortest)
    measures = {
        "position_shift": _norm(gap - without) / original,
        "scale": _norm(scale) / original,
        "bias": _norm(bias) / original,
        # a query that sees no inserted token has a bias of zero, which has no direction
        "bias_cosine": cosine.masked_fill(mass == 0, torch.nan),
        "bias_relative_norm": _norm(bias) / shifted,
    }
    residual = _norm(with_filler - (gap - scale) - bias) / _norm(with_filler).clamp_min(tiny)
    return {name: values.nanmean(1) for name, values in measures.items()}, residual.mean(1)


def _norm(vectors: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape"]:
    return vectors.square().sum(-1).sqrt()
