"""The rows of a step that interventions change, and those whose attention is recorded."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

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
        sets: [set, token] 1 for the queries of each set, else 0; see `Request.query_sets`.
        token_count: The number of tokens of the prompt.
        query_count: The number of queries that have come.
        sums: [layer, set, head, key] The sums over these queries, on the device; empty until the
            first call of `add_sums`.
    """

    def __init__(self, sets: Sequence[Sequence[int]], layer_count: int) -> None:
        self.sets = np.array(sets, dtype=np.float32)
        self.query_count = 0
        self.token_count = self.sets.shape[1]
        self.sums = torch.empty(layer_count, 0)
        self._keys_by_layer: dict[int, Tensor] = {}
        """The keys [token, head, unit] of the tokens so far, of prompts in several chunks."""

    def take_queries(self, first_index: int, token_count: int) -> range:
        """Count the new queries among the tokens of a step, and return their indices.

        Args:
            first_index: The index of the step's first token in its sequence.
            token_count: The number of the step's tokens.

        Raises:
            RuntimeError: tokens before these came out of a cache, so they were no queries.
        """
        if first_index > self.query_count:
            raise RuntimeError(
                f"the attention of {first_index - self.query_count} tokens was not recorded, they "
                "came out of a cache"
            )
        # empty if all these tokens came before their prompt was preempted, or were generated
        queries = range(self.query_count, min(first_index + token_count, self.token_count))
        self.query_count += len(queries)
        return queries

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
        recording: The prompt's recording, if its attention is recorded.
        queries: The indices of the tokens whose attention is added to it; empty without one.
    """

    first_row: int
    token_count: int
    first_index: int
    request_index: int
    changes: Sequence[Change]
    recording: Recording | None
    queries: range


class RecordedQueries:
    """Queries of a chunk whose attention is recorded at once.

    Attributes:
        chunk: The chunk.
        first: The index of the first query in its sequence.
        stop: The index after that of the last query.
        rows: The rows of the queries in the batch.
        indices: [query] The index of each query in its sequence.
        sets: [set, query] Whether the query is in the set.
    """

    def __init__(self, chunk: Chunk, first: int, stop: int, device: torch.device) -> None:
        assert chunk.recording
        self.chunk = chunk
        self.first = first
        self.stop = stop
        # in a chunk, row - first_row = index - first_index
        row_offset = chunk.first_row - chunk.first_index
        self.rows = slice(first + row_offset, stop + row_offset)
        self.indices = torch.arange(first, stop, device=device)
        self.sets = copy_to(device, chunk.recording.sets[:, first:stop])


class GroupKey(NamedTuple):
    """What the members of a group share; groups are in the order of their keys.

    Attributes:
        change_number: The number of the group's change in the lists of its requests, from 1.
        shared_index: Which layers (for attention) or changes (for activations and outputs) the
            members share, as an index into a list of those of the step: see
            `WorkerInterventions._group_chunks`.
        separate_row: The first row of a longer chunk, which is a separate group; -1 for the groups
            of single tokens.
    """

    change_number: int
    shared_index: int
    separate_row: int


class Group:
    """Requests with the same number of tokens in a step, for which a change is computed together.

    While the same requests decode, their group is used again: `start_step` sets the rows and
    indices of each step.

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
        """Set the rows and indices of a step, which all layers use.

        `chunks` has the step's tokens of each request, all with the same number of tokens.
        """
        # [request, 3] in one copy to the device
        chunk_numbers = [
            (chunk.first_row, chunk.first_index, chunk.request_index) for chunk in chunks
        ]
        first_rows, first_indices, self._request_indices = copy_to(device, chunk_numbers).T
        token_count = chunks[0].token_count
        offsets = torch.arange(token_count, device=device)
        self.rows = first_rows[:, None] + offsets
        self.indices = first_indices[:, None] + offsets
        # a position for each token so far, of the longest sequence
        self._position_count = max(chunk.first_index for chunk in chunks) + token_count
        # the slots of the last step are outdated
        self._block_table: Tensor | None = None

    def slots(self, block_table: Tensor, block_size: int) -> Tensor:
        """[request, position] The slots of the keys of all positions in the layers of this table.

        A slot is the place of one token's keys and values in vLLM's cache. Its number is block
        times `block_size` plus the position in the block. Sequences shorter than the longest one
        have slots without meaning at their end. Layers with sliding windows have another table than
        those without.
        """
        # The layers that share a table share its slots.
        if self._block_table is not block_table:
            self._block_table = block_table
            positions = torch.arange(self._position_count, device=block_table.device)
            # the table has the number of the block for each `block_size` positions of a request
            blocks = block_table[self._request_indices].long()[:, positions // block_size]
            self._slots = blocks * block_size + positions % block_size
        return self._slots
