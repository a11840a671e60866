"""Reduces blocks of attention weights to the few numbers that are kept of each layer.

A block is the weights of consecutive queries over consecutive keys, for all heads at once. Each
block is reduced and then overwritten by the next one, so memory grows with the length of the prompt
and not with its square.
"""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn


class CaptureFinished(Exception):
    """Ends a forward pass as soon as the capture is complete; it never leaves `capture`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCapture:
    """The numbers of one layer's attention. Weights are after softmax, in float32.

    Attributes:
        sums: Sum of a key's weights over those queries of a set that come after it; in the last set
            also over the key's own query.
        rows: For each prompt, the weights of the queries in `CaptureRequest.rows`.
    """

    sums: Float[Tensor, "batch query_set head key"]
    rows: list[Float[Tensor, "head row key"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureRequest:
    """What to keep of a forward pass.

    Attributes:
        query_sets: Sets of queries whose weights are summed, without those at padding. None for two
            sets of all queries.
        activations: Whether the first MLP's activations are kept.
        rows: Queries whose weights are kept; None for no query.
    """

    query_sets: Bool[Tensor, "batch query_set seq"] | None = None
    activations: bool = False
    rows: Bool[Tensor, "batch seq"] | None = None


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
        batch, self._length = capture.real.shape
        sets = capture.real[:, None].expand(-1, 2, -1)
        if capture.request.query_sets is not None:
            sets = capture.real[:, None] & capture.request.query_sets.to(sets.device)
        self._sets = sets.float()
        self._sums = self._sets.new_zeros(batch, heads, sets.shape[1], self._length)
        self._is_row = capture.request.rows
        self._rows: list[list[Tensor]] = [[] for _ in range(batch)]

    def add(self, weights: Float[Tensor, "batch head q k"], queries: slice, keys: slice) -> None:
        """Add a block. Its diagonal is zeroed for all sets but the last.

        Args:
            weights: Weights of `queries` over `keys`; keys before the block must weigh nothing.
            queries: The queries.
            keys: The keys; the last key belongs to the last query.
        """
        if self._is_row is not None:
            # indexing copies, since the next block overwrites the weights
            padding = (keys.start, self._length - keys.stop)
            for prompt, is_row in enumerate(self._is_row[:, queries].to(weights.device)):
                self._rows[prompt].append(nn.functional.pad(weights[prompt][:, is_row], padding))
        sets, sums = self._sets[:, None, :, queries], self._sums[..., keys]
        sums[:, :, -1:] += sets[:, :, -1:] @ weights
        # In place, so this must come after all sums and rows in which the diagonal counts.
        weights[..., -weights.shape[-2] :].diagonal(dim1=-2, dim2=-1).zero_()
        sums[:, :, :-1] += sets[:, :, :-1] @ weights

    def finish(self) -> LayerCapture:
        """The sums and rows of all blocks."""
        return LayerCapture(
            sums=self._sums.transpose(1, 2),
            rows=[torch.cat(blocks, 1) for blocks in self._rows if blocks],
        )
