"""The rows of a step that interventions change, and those whose attention is recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from harness.engines.interventions.arithmetic import (
    AttentionChanges,
    Change,
    copy_to,
    tabulate_changes,
)


class Recording:
    """The attention that the tokens of a prompt receive, summed while its queries come in chunks.

    A preempted prompt comes again, from its start or from the tokens in the cache; no query is
    added twice.

    Attributes:
        sets: Sets of queries [set, token]; see `Request.query_sets`.
        query_count: The number of queries that have come.
        sums: [layer, set, head, key] The sums over these queries, on the device.
    """

    def __init__(self, sets: Sequence[Sequence[int]], layer_count: int) -> None:
        self.sets, self.query_count = np.array(sets, dtype=np.float32), 0
        self.sums = torch.empty(layer_count, 0)
        self._keys: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return int(self.sets.shape[1])

    def keys(self, layer: int, key: Tensor, index: int) -> Tensor:
        """The prompt's keys from its start to the end of `key`, whose first token is at `index`.

        They are stored until the prompt is complete.
        """
        stop = index + len(key)
        if not index and stop == len(self):
            return key
        if layer not in self._keys:
            self._keys[layer] = key.new_zeros(len(self), *key.shape[1:])
        self._keys[layer][index:stop] = key
        return self._keys[layer][:stop]

    def add(self, index: int, sums: Tensor) -> None:
        """Add the sums [set, head, key] of some queries in a layer; they have none for later keys.

        `index` is that of the layer among those that are recorded.
        """
        if not self.sums.numel():
            self.sums = sums.new_zeros(len(self.sums), *sums.shape[:2], len(self))
        # queries of an earlier chunk see no later keys, so their sums are shorter
        self.sums[index, ..., : sums.shape[-1]] += sums


@dataclass(slots=True)  # a frozen one takes three times as long, and a step makes hundreds
class Chunk:
    """The tokens of a step that belong to a request with an intervention or a recording.

    Attributes:
        row: The row of the first token in the batch.
        token_count: The number of tokens.
        index: The index of the first token in its sequence.
        request: The request's index in the batch.
        changes: The changes of the request's intervention.
        recording: The prompt's recording if any tokens are queries that have not come before.
        first_query: The index of the first such query.
    """

    row: int
    token_count: int
    index: int
    request: int
    changes: Sequence[Change]
    recording: Recording | None
    first_query: int


class RecordedQueries:
    """Queries of a chunk whose attention is recorded at once, from `first` up to `stop`.

    Attributes:
        rows: The rows of the queries in the batch.
        indices: [query] The index of each query in its sequence.
        sets: [set, query] Whether the query is in the set.
    """

    def __init__(self, chunk: Chunk, first: int, stop: int, device: torch.device) -> None:
        assert chunk.recording
        self.chunk, self.first, self.stop = chunk, first, stop
        start = chunk.row - chunk.index
        self.rows = slice(start + first, start + stop)
        self.indices = torch.arange(first, stop, device=device)
        self.sets = copy_to(device, chunk.recording.sets[:, first:stop])


class Group:
    """Requests with the same target that are changed together, with the same number of tokens.

    While the same requests decode, only their rows and indices change.

    Attributes:
        lists: The changes of each request, up to the one that is made.
        changes: The change of each request, of the same target in the same layers.
        phantoms: Keys and values [request, token, head, unit], once a layer has needed them.
        rows: [request, token] The rows of the tokens in the batch.
        indices: [request, token] The index of each token in its sequence.
    """

    rows: Tensor
    indices: Tensor

    def __init__(self, lists: Sequence[Sequence[Change]]) -> None:
        self.lists = lists
        self.changes = [changes[-1] for changes in lists]
        self.phantoms: Sequence[Tensor] = ()

    @cached_property
    def attention_changes(self) -> AttentionChanges:
        """The changes as tensors, if they are of attention."""
        return tabulate_changes(self.changes, self.rows.device)

    def start_step(self, chunks: Sequence[Chunk], device: torch.device) -> None:
        """Set the tokens of a step; all layers use the same tensors."""
        columns = [(chunk.row, chunk.index, chunk.request) for chunk in chunks]
        first_rows, first_indices, self._requests = copy_to(device, columns).T
        tokens = torch.arange(chunks[0].token_count, device=device)
        self.rows = first_rows[:, None] + tokens
        self.indices = first_indices[:, None] + tokens
        self._length = max(chunk.index for chunk in chunks) + chunks[0].token_count
        self._block_table: Tensor | None = None

    def slots(self, block_table: Tensor, block_size: int) -> Tensor:
        """[request, position] The slots of the keys of all positions in the layers of this table.

        Layers with sliding windows have another table than those without.
        """
        if self._block_table is not block_table:
            self._block_table = block_table
            positions = torch.arange(self._length, device=block_table.device)
            blocks = block_table[self._requests].long()[:, positions // block_size]
            # vLLM's cache has pages: the table names the block of each position
            self._slots = blocks * block_size + positions % block_size
        return self._slots
