"""Reduces blocks of attention weights to the few numbers that are kept of each layer.

A block is the weights of consecutive queries over consecutive keys, for all heads at once. Each
block is reduced and then overwritten by the next one, so memory grows with the length of the prompt
and not with its square.
"""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class CaptureFinished(Exception):
    """Ends a forward pass as soon as the capture is complete; it never leaves `capture`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCapture:
    """The numbers of one layer's attention. Weights are after softmax, in float32.

    Attributes:
        column_mean: Mean weight of a key over those queries of a set that come after it; NaN where
            there is no such query, and at padding.
        column_count: The number of these queries.
        region_mass: Sum of a query's weights over each region of keys; NaN at padding. Attention
            sinks are in no region.
        rows: For each prompt, the weights of the queries in `CaptureRequest.rows`.
    """

    column_mean: Float[Tensor, "batch query_set head key"]
    column_count: Int[Tensor, "batch query_set key"]
    region_mass: Float[Tensor, "batch head query region"]
    rows: list[Float[Tensor, "head row key"]]

    def heads_not_finite(self, real: Bool[Tensor, "batch seq"]) -> list[int]:
        """Heads with NaN or infinity at a token, or in a mean over at least one query.

        Args:
            real: Which positions are not padding.
        """
        has_queries = (self.column_count > 0)[:, :, None]
        broken = (~self.column_mean.isfinite() & has_queries).flatten(3).any(-1).any(1)
        broken |= (~self.region_mass.isfinite() & real[:, None, :, None]).flatten(2).any(-1)
        return [int(head) for head in broken.any(0).nonzero()]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What to keep of a forward pass.

    Attributes:
        query_sets: Sets of queries whose weights are averaged, without those at padding. None for
            one set of all queries.
        key_regions: Regions of keys whose mass is summed; None for no region.
        activations: Whether the first MLP's activations are kept.
        rows: Queries whose weights are kept; None for no query.
        chunk: Queries in one block; None for as many as fit the caches.
    """

    query_sets: Bool[Tensor, "batch query_set seq"] | None = None
    key_regions: Bool[Tensor, "batch region seq"] | None = None
    activations: bool = False
    rows: Bool[Tensor, "batch seq"] | None = None
    chunk: int | None = None


@dataclass(slots=True, kw_only=True)
class Capture:
    """The request of one forward pass, and its result, which the pass fills.

    Attributes:
        request: What to keep.
        real: Which positions are not padding.
        layer_indices: The requested layers, ascending.
        activations: The first MLP's, after the non-linearity and before the product with `up_proj`.
        layers: The results by layer.
    """

    request: CaptureRequest
    real: Bool[Tensor, "batch seq"]
    layer_indices: tuple[int, ...]
    activations: Float[Tensor, "batch seq width"] | None = None
    layers: dict[int, LayerCapture] = field(default_factory=dict)

    def __getitem__(self, layer: int) -> LayerCapture:
        return self.layers[layer]

    @property
    def waits_for_activations(self) -> bool:
        """Whether the first MLP's activations are requested and not recorded."""
        return self.request.activations and self.activations is None

    def stop_if_complete(self) -> None:
        """Raise CaptureFinished if the last layer is captured, and requested activations too."""
        if self.layer_indices[-1] in self.layers and not self.waits_for_activations:
            raise CaptureFinished


class Reduction:
    """Adds up the blocks of one layer's weights, in any order, to its `LayerCapture`.

    Args:
        capture: What to keep, and which positions are padding.
        heads: Query heads of the layer.
    """

    def __init__(self, capture: Capture, heads: int) -> None:
        request, self._real = capture.request, capture.real
        batch, length = self._real.shape
        sets, regions = self._real[:, None], self._real.new_zeros(batch, 0, length)
        if request.query_sets is not None:
            sets = sets & request.query_sets.to(sets.device)
        if request.key_regions is not None:
            regions = request.key_regions.to(sets.device)
        self._sets, self._regions = sets.float(), regions.float()
        self._sums = self._sets.new_zeros(batch, heads, self._sets.shape[1], length)
        self._mass = self._sets.new_zeros(batch, heads, length, self._regions.shape[1])
        self._is_row = request.rows
        self._rows: list[list[Tensor]] = [[] for _ in range(batch)]

    def add(self, weights: Float[Tensor, "batch head q k"], queries: slice, keys: slice) -> None:
        """Add a block. Its diagonal is zeroed, because a key's own query does not come after it.

        Args:
            weights: Weights of `queries` over `keys`; keys before the block must weigh nothing.
            queries: The queries.
            keys: The keys; the last key belongs to the last query.
        """
        # [batch, region, key] x [batch, key, head x query], then [batch, head x query, region]
        mass = torch.matmul(self._regions[..., keys], weights.flatten(1, 2).mT).mT
        self._mass[:, :, queries] = mass.reshape(*weights.shape[:3], mass.shape[-1])
        if self._is_row is not None:
            # indexing copies, since the next block overwrites the weights
            padding = (keys.start, self._real.shape[1] - keys.stop)
            for prompt, is_row in enumerate(self._is_row[:, queries].to(weights.device)):
                self._rows[prompt].append(nn.functional.pad(weights[prompt][:, is_row], padding))
        # In place, so this must come after all sums and rows in which the diagonal counts.
        weights[..., -weights.shape[-2] :].diagonal(dim1=-2, dim2=-1).zero_()
        self._sums[..., keys].add_(torch.matmul(self._sets[:, None, :, queries], weights))

    def finish(self) -> LayerCapture:
        """The means and counts over all blocks."""
        # [batch, query_set, key] the queries of each set that come after a key
        later_queries = self._sets.flip(-1).cumsum(-1).flip(-1) - self._sets
        count = later_queries * self._real[:, None]
        # 0 / 0, where a key has no later query, is NaN
        mean = self._sums.transpose(1, 2) / count[:, :, None]
        return LayerCapture(
            column_mean=mean.masked_fill(~self._real[:, None, None], torch.nan),
            column_count=count.long(),
            region_mass=self._mass.masked_fill(~self._real[:, None, :, None], torch.nan),
            rows=[torch.cat(blocks, 1) for blocks in self._rows if blocks],
        )
