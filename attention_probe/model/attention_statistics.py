"""Reduces blocks of attention weights to the few numbers that are kept of each layer.

A query is a token that attends, and a key a token that receives attention. A block is the weights
of consecutive queries over consecutive keys, for all heads at once. Each block is reduced and then
overwritten by the next one, so memory grows with the length of the prompt and not with its square.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn


class CaptureFinished(Exception):
    """Ends a forward pass as soon as the capture is complete. `capture_attention` catches it."""


class LayerCapture(NamedTuple):
    """The numbers of one layer's attention. Weights are after softmax, in float32.

    Attributes:
        sums: [query set, head, key] Sum of a key's weights over those queries of a set that come
            after it. In the last set the weight of a token for itself counts too.
        rows: [head, row, key] The weights of the last queries; see `CaptureRequest.row_count`.
    """

    sums: Tensor
    rows: Tensor


class CaptureRequest(NamedTuple):
    """What to keep of a forward pass.

    Attributes:
        query_sets: [query set, token] Sets of queries whose weights are summed. None for two sets
            of all queries.
        keeps_activations: Whether the first MLP's activations are kept.
        keeps_norms: Whether the norms of hidden states are kept.
        row_count: The number of last queries whose weights are kept.
    """

    query_sets: Tensor | None = None
    keeps_activations: bool = False
    keeps_norms: bool = False
    row_count: int = 0


@dataclass
class Capture:
    """The request of one forward pass, and its result, which the pass fills.

    Attributes:
        request: What to keep.
        layer_indices: The requested layers, ascending.
        activations: [token, unit] The first MLP's, after the non-linearity and before the product
            with `up_proj`.
        layers: The results by layer.
        norms: [token] Euclidean norms of the hidden states after each requested layer.
    """

    request: CaptureRequest
    layer_indices: tuple[int, ...]
    activations: Tensor | None = None
    layers: dict[int, LayerCapture] = field(default_factory=dict)
    norms: dict[int, Tensor] = field(default_factory=dict)

    @property
    def has_pending_hooks(self) -> bool:
        """Whether hooks have yet to record the first MLP's activations or the last norms."""
        if self.request.keeps_norms and self.layer_indices[-1] not in self.norms:
            return True
        return self.request.keeps_activations and self.activations is None

    def stop_if_complete(self) -> None:
        """Raise CaptureFinished if all that is requested is captured."""
        if self.layer_indices[-1] in self.layers and not self.has_pending_hooks:
            raise CaptureFinished


class Reduction:
    """Adds up the blocks of one layer's weights, in the order of queries, to its `LayerCapture`.

    Args:
        request: What to keep.
        query: [1, head, token, unit] The queries of the layer.
    """

    def __init__(self, request: CaptureRequest, query: Tensor) -> None:
        _, head_count, self._token_count, _ = query.shape
        self._query_sets = query.new_ones(2, self._token_count, dtype=torch.float32)
        if request.query_sets is not None:
            self._query_sets = request.query_sets.to(self._query_sets)
        # [head, query set, key] over the queries so far
        self._sums = self._query_sets.new_zeros(
            head_count, len(self._query_sets), self._token_count
        )
        self._first_row = self._token_count - request.row_count
        self._rows: list[Tensor] = []
        """[head, row, key] The kept rows of each block; many blocks have none."""

    def add(self, weights: Tensor, queries: slice, keys: slice) -> None:
        """Add a block, which is changed: the weight of each token for itself becomes 0.

        Args:
            weights: [head, query, key] Weights of `queries` over `keys`; keys before the block must
                weigh nothing.
            queries: The queries.
            keys: The keys; the last key belongs to the last query.
        """
        rows = weights[:, max(0, self._first_row - queries.start) :]
        # `pad` adds the keys outside the block, and copies what the next block overwrites
        self._rows.append(nn.functional.pad(rows, (keys.start, self._token_count - keys.stop)))
        query_sets = self._query_sets[:, queries]
        sums = self._sums[..., keys]
        # the weight of a token for itself counts in the rows and in the last set, not in the others
        sums[:, -1:] += query_sets[-1:] @ weights
        # the last keys of a block are the tokens of its queries, so this diagonal is those weights
        weights[..., -weights.shape[-2] :].diagonal(dim1=-2, dim2=-1).zero_()
        sums[:, :-1] += query_sets[:-1] @ weights

    def finish(self) -> LayerCapture:
        """The sums and rows of all blocks that were added."""
        return LayerCapture(sums=self._sums.transpose(0, 1), rows=torch.cat(self._rows, 1))
