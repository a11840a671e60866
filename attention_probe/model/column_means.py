"""From blocks of attention weights to the few numbers that are kept.

A block is the weights of some consecutive queries over some consecutive keys, all heads at once. Blocks come one after
another and are forgotten; what grows with the prompt is one row a key or one row a query, never a square.
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCapture:
    """What one layer's attention came to. Weights are after softmax, in float32.

    Attributes:
        column_mean: Mean weight that the set's queries give to a key, over queries strictly later than it; NaN where
            there is no such query, and at padding.
        column_count: How many queries that mean is over: all later ones of the set.
        visible_count: How many of them can see the key at all: fewer where a sliding window has passed it.
        region_mass: Sum of a query's weights over each region of keys; NaN at padding. Sinks count for no region.
        region_entropy: Entropy in nats of the weights renormalised within the region; NaN where the mass is 0, at
            padding, and for regions whose entropy was not asked.
        region_output: Sum over the keys of `output_region` of weight times value; None unless asked.
        output: The whole attention output of each head, before the output projection; None unless asked.
        values: The value vectors; None unless asked.
    """

    column_mean: Float[Tensor, "batch query_set head key"]
    column_count: Int[Tensor, "batch query_set key"]
    visible_count: Int[Tensor, "batch query_set key"]
    region_mass: Float[Tensor, "batch head query region"]
    region_entropy: Float[Tensor, "batch head query region"]
    region_output: Float[Tensor, "batch head query head_dim"] | None
    output: Float[Tensor, "batch head query head_dim"] | None
    values: Float[Tensor, "batch kv_head key head_dim"] | None

    @property
    def visible_mean(self) -> Float[Tensor, "batch query_set head key"]:
        """`column_mean` over only the queries that can see the key; NaN where none can."""
        share = self.column_count / self.visible_count.clamp_min(1)
        return (self.column_mean * share[:, :, None]).masked_fill(self.visible_count[:, :, None] == 0, torch.nan)

    def not_finite(self, real: Bool[Tensor, "batch seq"]) -> list[int]:
        """Heads with NaN or infinity where a number is due: at tokens, and in a mean over one query or more.

        Args:
            real: Which positions are no padding.
        """
        due = (self.column_count > 0)[:, :, None]
        broken = (~self.column_mean.isfinite() & due).flatten(3).any(-1).any(1)
        for part in (self.region_mass, self.region_output, self.output):
            if part is not None:
                broken |= (~part.isfinite() & real[:, None, :, None]).flatten(2).any(-1)
        return [int(head) for head in broken.any(0).nonzero()]


@dataclass(frozen=True, slots=True)
class Region:
    """A set of keys as the span that holds it in every row, and a mask only where the span holds more."""

    start: int
    end: int
    mask: Bool[Tensor, "batch span"] | None

    @classmethod
    def of(cls, keys: Bool[Tensor, "batch key"]) -> Region:
        """The smallest span, and whether every row fills it."""
        found = keys.any(0).nonzero()
        if not len(found):
            return cls(0, 0, None)
        start, end = int(found[0]), int(found[-1]) + 1
        mask = keys[:, start:end]
        return cls(start, end, None if bool(mask.all()) else mask)

    def within(self, weights: Float[Tensor, "batch head q k"], first: int) -> Float[Tensor, "batch head q span"]:
        """The region's part of a block whose keys begin at `first`; keys that the block lacks weigh nothing."""
        start, end = max(self.start, first), min(self.end, first + weights.shape[-1])
        part = weights[..., start - first : max(start, end) - first]
        if self.mask is None or not part.shape[-1]:
            return part
        return part * self.mask[:, None, None, start - self.start : end - self.start]


@dataclass(frozen=True, slots=True, kw_only=True)
class Readout:
    """What to keep of every layer asked.

    Attributes:
        real: Which positions are no padding.
        query_sets: Queries whose weights are averaged, one or more sets; padding is left out by itself.
        key_regions: Spans or other sets of keys.
        entropy_regions: Regions whose entropy is wanted; it costs a logarithm a weight.
        output_region: Region whose part of the attention output is wanted.
        output: Whether to keep the whole attention output.
        values: Whether to keep the value vectors.
    """

    real: Bool[Tensor, "batch seq"]
    query_sets: Bool[Tensor, "batch query_set seq"]
    key_regions: Bool[Tensor, "batch region seq"]
    entropy_regions: frozenset[int]
    output_region: int | None
    output: bool
    values: bool

    def __post_init__(self) -> None:
        batch, length = self.real.shape
        for name, given in (("query_sets", self.query_sets), ("key_regions", self.key_regions)):
            if given.dtype != torch.bool or given.ndim != 3 or (given.shape[0], given.shape[2]) != (batch, length):
                raise ValueError(
                    f"{name} must be boolean [{batch}, any, {length}], as the tokens are; got {given.dtype} "
                    f"{list(given.shape)}."
                )
        asked = self.entropy_regions | ({self.output_region} if self.output_region is not None else set())
        outside = sorted(asked - set(range(self.key_regions.shape[1])))
        if outside:
            raise ValueError(f"Regions {outside} are asked for, and there are {self.key_regions.shape[1]}, from 0.")

    def regions(self) -> tuple[Region, ...]:
        """Each region as a span."""
        return tuple(Region.of(keys) for keys in self.key_regions.unbind(1))


class Reduction:
    """Takes one layer's blocks, in any order, and gives its `LayerCapture`."""

    def __init__(self, readout: Readout, regions: tuple[Region, ...], heads: int, head_dim: int) -> None:
        batch, length = readout.real.shape
        self._readout, self._regions = readout, regions
        self._sets = (readout.query_sets & readout.real[:, None]).float()

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, device=readout.real.device)

        self._sums = zeros(batch, heads, self._sets.shape[1], length)
        self._hidden = zeros(*self._sets.shape)
        self._mass = zeros(batch, heads, length, len(regions))
        self._entropy = torch.full_like(self._mass, torch.nan)
        self._bias = None if readout.output_region is None else zeros(batch, heads, length, head_dim)

    def add(
        self,
        weights: Float[Tensor, "batch head q k"],
        queries: slice,
        keys: slice,
        *,
        visible: Bool[Tensor, "batch 1 q k"] | None = None,
        values: Float[Tensor, "batch kv_head key head_dim"] | None = None,
    ) -> None:
        """Take in a block. Its diagonal is zeroed in place: a key's own query is not a later one.

        Args:
            weights: Weights of `queries` over `keys`; keys before the block must weigh nothing.
            queries: Which queries.
            keys: Which keys; the last one is the last query.
            visible: Who sees whom, where this is more than who comes first; None if every query sees all before it.
            values: Value vectors of all keys, if a region's output is asked.
        """
        for index, region in enumerate(self._regions):
            part = region.within(weights, keys.start)
            mass = part.sum(-1)
            self._mass[:, :, queries, index] = mass
            if index in self._readout.entropy_regions:
                logs = part.clamp_min(torch.finfo(part.dtype).tiny).log_().mul_(part)
                self._entropy[:, :, queries, index] = torch.log(mass) - logs.sum(-1) / mass
            if self._bias is not None and index == self._readout.output_region and values is not None:
                start = max(region.start, keys.start)
                held = values[:, :, None, start : start + part.shape[-1]].to(part.dtype)
                batch, heads, _, span = part.shape
                grouped = part.reshape(batch, held.shape[1], heads // held.shape[1], queries.stop - queries.start, span)
                self._bias[:, :, queries] = torch.matmul(grouped, held).flatten(1, 2)
        count = queries.stop - queries.start
        weights[..., -count:].diagonal(dim1=-2, dim2=-1).zero_()
        sets = self._sets[:, :, queries]
        self._sums[..., keys].add_(torch.matmul(sets[:, None], weights))
        if visible is not None:
            # Counted as what is not seen, so that keys before the block, seen by nobody in it, can be counted too.
            later = torch.ones(count, keys.stop - keys.start, dtype=torch.bool, device=weights.device)
            later = later.tril(diagonal=keys.stop - keys.start - count - 1)
            self._hidden[..., keys] += torch.matmul(sets, (later & ~visible[:, 0]).float())
            self._hidden[..., : keys.start] += sets.sum(-1, keepdim=True)

    def finish(
        self, *, output: Float[Tensor, "batch head query head_dim"] | None, values: Tensor | None
    ) -> LayerCapture:
        """The means and counts over all blocks."""
        real = self._readout.real
        later = self._sets.flip(-1).cumsum(-1).flip(-1) - self._sets
        count = later * real[:, None]
        visible = (later - self._hidden) * real[:, None]
        mean = self._sums.transpose(1, 2) / count[:, :, None]  # 0 / 0, where there is no later query, is NaN
        padding = ~real[:, None, :, None]
        return LayerCapture(
            column_mean=mean.masked_fill(~real[:, None, None], torch.nan),
            column_count=count.long(),
            visible_count=visible.long(),
            region_mass=self._mass.masked_fill(padding, torch.nan),
            region_entropy=self._entropy.masked_fill(padding, torch.nan),
            region_output=None if self._bias is None else self._bias.masked_fill(padding, torch.nan),
            output=output if self._readout.output else None,
            values=values if self._readout.values else None,
        )


def blocks(length: int, size: int) -> Iterable[slice]:
    """Consecutive spans of `size` that cover `length`."""
    return (slice(start, min(start + size, length)) for start in range(0, length, size))
