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
        token_count: The number of tokens of the prompt.
        query_count: The number of queries that have come.
        sums: [layer, set, head, key] The sums over these queries, on the device.
    """

    def __init__(self, sets: Sequence[Sequence[int]], layer_count: int) -> None:
        self.sets, self.query_count = np.array(sets, dtype=np.float32), 0
        self.token_count = self.sets.shape[1]
        # `add_sums` replaces it, as it knows the other sizes and the device of the sums
        self.sums = torch.empty(layer_count, 0)
        self._keys_by_layer: dict[int, Tensor] = {}
        """The keys [token, head, unit] of the tokens so far, of prompts in several chunks."""

    def add_keys(self, layer: int, new_keys: Tensor, start: int) -> Tensor:
        """Store the keys of the tokens from `start` on; return all keys of the prompt so far."""
        stop = start + len(new_keys)
        # a prompt in one chunk needs no copy
        if not start and stop == self.token_count:
            return new_keys
        if layer not in self._keys_by_layer:
            self._keys_by_layer[layer] = new_keys.new_zeros(self.token_count, *new_keys.shape[1:])
        self._keys_by_layer[layer][start:stop] = new_keys
        return self._keys_by_layer[layer][:stop]

    def add_sums(self, layer_row: int, new_sums: Tensor) -> None:
        """Add the sums [set, head, key] of some queries in a layer; they have none for later keys.

        `layer_row` is the row of the layer in `sums`.
        """
        if not self.sums.numel():
            self.sums = new_sums.new_zeros(len(self.sums), *new_sums.shape[:2], self.token_count)
        # queries of an earlier chunk see no later keys, so their sums are shorter
        self.sums[layer_row, ..., : new_sums.shape[-1]] += new_sums


@dataclass(slots=True)  # freezing them takes three times as long, and a step makes hundreds
class Chunk:
    """The tokens of a step that belong to a request with an intervention or a recording.

    Attributes:
        first_row: The row of the first token in the batch.
        token_count: The number of tokens.
        first_index: The index of the first token in its sequence.
        request_index: The request's index in the batch.
        changes: The changes of the request's intervention.
        recording: The prompt's recording if any tokens are queries that have not come before.
        first_query: The index of the first such query.
    """

    first_row: int
    token_count: int
    first_index: int
    request_index: int
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
        # the row that the first token of the sequence has or would have
        sequence_row = chunk.first_row - chunk.first_index
        self.rows = slice(sequence_row + first, sequence_row + stop)
        self.indices = torch.arange(first, stop, device=device)
        self.sets = copy_to(device, chunk.recording.sets[:, first:stop])


class Group:
    """Requests with the same number of tokens in a step, for which a change is computed together.

    While the same requests decode, their group is kept, and only its rows and indices change.

    Attributes:
        changes: The change that is made for each request, of the same target in the same layers.
        change_lists: For each request the changes of its intervention from the first to this one.
            Every change of activations starts again from the model's own activations, so the
            earlier changes of a layer are made again before it.
        phantoms: Keys and values [request, token, head, unit] of fillers that are not in the
            prompts, which changed attention adds; empty until a layer needs them.
        rows: [request, token] The rows of the tokens in the batch.
        indices: [request, token] The index of each token in its sequence.
    """

    rows: Tensor
    indices: Tensor

    def __init__(self, change_lists: Sequence[Sequence[Change]]) -> None:
        self.change_lists = change_lists
        self.changes = [change_list[-1] for change_list in change_lists]
        self.phantoms: Sequence[Tensor] = ()

    @cached_property
    def attention_changes(self) -> AttentionChanges:
        """The changes as tensors, if they are of attention."""
        return tabulate_changes(self.changes, self.rows.device)

    def start_step(self, chunks: Sequence[Chunk], device: torch.device) -> None:
        """Set the tokens of a step; all layers use the same tensors."""
        starts = [(chunk.first_row, chunk.first_index, chunk.request_index) for chunk in chunks]
        first_rows, first_indices, self._request_indices = copy_to(device, starts).T
        token_count = chunks[0].token_count  # that of all chunks
        offsets = torch.arange(token_count, device=device)
        self.rows = first_rows[:, None] + offsets
        self.indices = first_indices[:, None] + offsets
        # a position for each token so far, of the longest sequence
        self._position_count = max(chunk.first_index for chunk in chunks) + token_count
        self._block_table: Tensor | None = None

    def slots(self, block_table: Tensor, block_size: int) -> Tensor:
        """[request, position] The slots of the keys of all positions in the layers of this table.

        A slot is the place of one token's keys and values in vLLM's cache. Layers with sliding
        windows have another table than those without.
        """
        if self._block_table is not block_table:
            self._block_table = block_table
            positions = torch.arange(self._position_count, device=block_table.device)
            # vLLM's cache has pages: the table names the block of each position
            blocks = block_table[self._request_indices].long()[:, positions // block_size]
            self._slots = blocks * block_size + positions % block_size
        return self._slots
