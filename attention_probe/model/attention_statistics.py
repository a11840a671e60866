"""From blocks of attention weights to the few numbers that are kept of each layer.

A block is the weights of some consecutive queries over some consecutive keys, for all heads at once. Each block is
reduced and then overwritten by the next one. What is kept grows with the length of the prompt, never with its square.
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Done(Exception):
    """Ends a forward pass that has given all that was asked; it never leaves `capture`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCapture:
    """The numbers of one layer's attention. Weights are after softmax, in float32.

    Attributes:
        column_mean: Mean weight that the queries of a set give to a key, over those queries that come after the key;
            NaN where there is no such query, and at padding.
        column_count: How many queries that mean is over.
        region_mass: Sum of a query's weights over each region of keys; NaN at padding. Sinks count for no region.
        region_output: Sum over the keys of `output_region` of weight times value; None unless asked.
        output: The whole attention output of each head, before the output projection; None unless asked.
    """

    column_mean: Float[Tensor, "batch query_set head key"]
    column_count: Int[Tensor, "batch query_set key"]
    region_mass: Float[Tensor, "batch head query region"]
    region_output: Float[Tensor, "batch head query head_dim"] | None
    output: Float[Tensor, "batch head query head_dim"] | None

    def not_finite(self, real: Bool[Tensor, "batch seq"]) -> list[int]:
        """Heads with NaN or infinity where a number must be: at tokens, and in a mean over one query or more.

        Args:
            real: Which positions are no padding.
        """
        due = (self.column_count > 0)[:, :, None]
        broken = (~self.column_mean.isfinite() & due).flatten(3).any(-1).any(1)
        for part in (self.region_mass, self.region_output, self.output):
            if part is not None:
                broken |= (~part.isfinite() & real[:, None, :, None]).flatten(2).any(-1)
        return [int(head) for head in broken.any(0).nonzero()]


@dataclass(slots=True, kw_only=True)
class Capture:
    """What is asked of one forward pass, and what it gave. The pass itself fills it.

    Attributes:
        real: Which positions are no padding.
        asked: Indices of the layers asked, ascending.
        query_sets: Sets of queries whose weights are averaged. Padding is left out of them.
        key_regions: Sets of keys whose mass is taken.
        output_region: Region whose part of each head's output is kept, with the whole output.
        chunk: Queries in one block; None for as many as fit the caches.
        waits_for_activations: Whether the first MLP's activations are asked and not there yet.
        activations: These, after the non-linearity and before the product with `up_proj`; None unless asked.
        layers: Every layer asked, by its index.
    """

    real: Bool[Tensor, "batch seq"]
    asked: tuple[int, ...]
    query_sets: Bool[Tensor, "batch query_set seq"]
    key_regions: Bool[Tensor, "batch region seq"]
    output_region: int | None
    chunk: int | None
    waits_for_activations: bool
    activations: Float[Tensor, "batch seq width"] | None = None
    layers: dict[int, LayerCapture] = field(default_factory=dict)

    def __getitem__(self, layer: int) -> LayerCapture:
        return self.layers[layer]

    def stop_if_done(self) -> None:
        """Raise Done once the last layer asked is there, and the activations if they are asked."""
        if self.asked[-1] in self.layers and not self.waits_for_activations:
            raise Done


class Reduction:
    """Takes one layer's blocks of weights, in any order, and gives its `LayerCapture`.

    Args:
        asked: What to keep.
        heads: Query heads of the layer.
        values: Its value vectors.
    """

    def __init__(
        self, asked: Capture, heads: int, values: Float[Tensor, "batch kv_head key head_dim"]
    ) -> None:
        batch, length = asked.real.shape
        self._asked = asked
        self._sets = (asked.query_sets & asked.real[:, None]).float()
        self._regions = asked.key_regions.float()
        self._values = None
        if asked.output_region is not None:
            self._values = values
            self._columns = (
                asked.key_regions[:, asked.output_region].any(0).nonzero()[:, 0]
            )  # in any of the prompts

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=asked.real.device)

        self._sums = zeros(batch, heads, self._sets.shape[1], length)
        self._mass = zeros(batch, heads, length, self._regions.shape[1])
        self._output = (
            None if self._values is None else zeros(batch, heads, length, self._values.shape[-1])
        )

    def add(self, weights: Float[Tensor, "batch head q k"], queries: slice, keys: slice) -> None:
        """Take in a block. Its diagonal is zeroed in place, because a key's own query does not come after it.

        Args:
            weights: Weights of `queries` over `keys`; keys before the block must weigh nothing.
            queries: Which queries.
            keys: Which keys; the last one is the last query.
        """
        mass = torch.matmul(self._regions[..., keys], weights.flatten(1, 2).mT).mT
        self._mass[:, :, queries] = mass.reshape(*weights.shape[:3], mass.shape[-1])
        if (
            self._output is not None
            and self._values is not None
            and self._asked.output_region is not None
        ):
            region = self._asked.output_region
            columns = self._columns[(self._columns >= keys.start) & (self._columns < keys.stop)]
            part = (
                weights[..., columns - keys.start] * self._regions[:, None, None, region, columns]
            )
            values = self._values[:, :, None, columns].to(part.dtype)
            kv_heads = values.shape[1]
            grouped = torch.unflatten(part, 1, (kv_heads, part.shape[1] // kv_heads))
            self._output[:, :, queries] = torch.matmul(grouped, values).flatten(1, 2)
        weights[..., -weights.shape[-2] :].diagonal(dim1=-2, dim2=-1).zero_()
        self._sums[..., keys].add_(torch.matmul(self._sets[:, None, :, queries], weights))

    def finish(
        self, output: Float[Tensor, "batch head query head_dim"] | None = None
    ) -> LayerCapture:
        """The means and counts over all blocks.

        Args:
            output: Each head's whole output; needed only for `output_region`.
        """
        real = self._asked.real
        later = self._sets.flip(-1).cumsum(-1).flip(-1) - self._sets
        count = later * real[:, None]
        mean = (
            self._sums.transpose(1, 2) / count[:, :, None]
        )  # 0 / 0, where there is no later query, is NaN
        padding = ~real[:, None, :, None]
        return LayerCapture(
            column_mean=mean.masked_fill(~real[:, None, None], torch.nan),
            column_count=count.long(),
            region_mass=self._mass.masked_fill(padding, torch.nan),
            region_output=None
            if self._output is None
            else self._output.masked_fill(padding, torch.nan),
            output=None if self._output is None else output,
        )
