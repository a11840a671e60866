"""Interventions inside vLLM's workers: per request, in any mixture in one batch. Attention is recorded here too.

A request names its intervention in `SamplingParams.extra_args`, and the queries whose attention is recorded. The worker
knows for each step which rows of the batch have one, and changes these rows in three places: the positions before the
model, the output of one layer's attention, and the activations of one layer's MLP. What a layer's attention reads again
(keys and values by slot) is kept beside vLLM's own cache, whose form differs by backend. Everything is installed before
vLLM compiles or captures anything, and rows are counted: an op that was skipped, as by a CUDA graph, ends the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from harness.engines.engine_processes import INTERVENTIONS, PLUGIN, RECORD
from harness.engines.interventions.arithmetic import (
    Arm,
    Fillers,
    add_gap,
    attend,
    change_activations,
    copy_to,
    plain_weights,
    tabulate_fillers,
    weigh,
)
from harness.engines.interventions.check_arms import OPERATION

QUERY_SETS = 3
"""Sets of queries over which recorded attention is summed: all, those common to all conditions, the problem's."""
NO_FILLER = {"start": 0, "size": 0, "scale": True, "bias": True}
"""The intervention on prompts whose attention is left as it is, among others."""
WEIGHTS_AT_ONCE = 2**22
"""Attention weights that are in memory at once while attention is recorded, six times as float32: 100 MB."""


class Recording:
    """The attention that the tokens of one prompt receive, summed while its queries come, perhaps in chunks.

    A prompt that is preempted comes again, from its start or from what is cached; no query is added twice.

    Attributes:
        sets: Sets of queries [set, token]; in the last one attention to a query's own token counts too.
        done: How many queries have come.
    """

    def __init__(self, sets: Sequence[Sequence[int]]) -> None:
        self.sets, self.done = np.array(sets, dtype=np.float32), 0
        self._keys: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}
        self._all_sums: Tensor | None = None

    def __len__(self) -> int:
        return int(self.sets.shape[1])

    def keys(self, layer: int, key: Tensor, at: int) -> Tensor:
        """All keys up to the last of these, which begin at `at`; they are kept until the prompt is whole."""
        stop = at + len(key)
        if not at and stop == len(self):
            return key
        if layer not in self._keys:
            self._keys[layer] = key.new_zeros(len(self), *key.shape[1:])
        self._keys[layer][at:stop] = key
        return self._keys[layer][:stop]

    def add(self, layer: int, sums: Tensor) -> None:
        """Add the sums [head, set, key] of some queries; later keys get nothing from them."""
        if layer in self._sums:
            self._sums[layer][..., : sums.shape[-1]] += sums
        else:
            self._sums[layer] = pad(sums, (0, len(self) - sums.shape[-1]))

    def rest(self) -> None:
        """Off the device with it, if all queries have come."""
        if self.done == len(self) and self._sums:
            self._keys.clear()
            self._all_sums = torch.stack([sums for _, sums in sorted(self._sums.items())]).cpu()
            self._sums.clear()

    @property
    def sums(self) -> Tensor:
        """[layer, set, head, key] on the CPU, of all queries."""
        self.rest()
        assert self._all_sums is not None
        return self._all_sums.transpose(1, 2)


@dataclass(slots=True)  # frozen takes three times as long to make, and each step makes hundreds
class Chunk:
    """The tokens of a step that belong to one request with an intervention, or that is recorded.

    Attributes:
        row: The row of the first of them in the batch.
        count: How many they are.
        index: The index of the first of them in its sequence.
        request: The request's index in the batch.
        recording: If any of them are queries that have not come before; `first` is then the first such index.
    """

    row: int
    count: int
    index: int
    request: int
    arm: Arm
    recording: Recording | None
    first: int

    @property
    def changes_attention(self) -> bool:
        """Whether the arm changes attention, and not activations."""
        return self.arm.get("kind") == "filler"


Block = tuple[Chunk, int, int]
"""Recorded queries of a chunk: the index of the first of them, and of the first after them."""


class RecordedQueries:
    """Blocks of queries whose attention is recorded together, padded to equally many; their prompts have as many sets.

    Attributes:
        rows: [block, query] The rows of the queries in the batch.
        indices: [block, query] The index of each query in its sequence.
        sets: [block, set, query] Whether it is in the set; 0 for padding.
    """

    def __init__(self, blocks: Sequence[Block], device: torch.device) -> None:
        self.blocks = blocks
        most = max(stop - first for _, first, stop in blocks)
        # padded with the last query of the block
        indices = [
            np.minimum(np.arange(first, first + most), stop - 1) for _, first, stop in blocks
        ]
        rows = [
            index + chunk.row - chunk.index
            for index, (chunk, _, _) in zip(indices, blocks, strict=True)
        ]
        sets = []
        for chunk, first, stop in blocks:
            assert chunk.recording
            sets.append(
                np.pad(chunk.recording.sets[:, first:stop], ((0, 0), (0, most - (stop - first))))
            )
        self.rows, self.indices = copy_to(device, np.stack([rows, indices]))
        self.sets = copy_to(device, np.stack(sets))


class Group:
    """Requests whose attention or activations are changed together, with equally many tokens.

    While the same requests decode, only their rows and indices change.

    Attributes:
        layers: The layers that are changed, equal for all.
        phantoms: Keys and values [request, token, head, unit], as soon as a layer has needed them.
        rows: [request, token] The rows of the tokens in the batch.
        indices: [request, token] The index of each token in its sequence.
    """

    rows: Tensor
    indices: Tensor

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.arms = [chunk.arm for chunk in chunks]
        self.layers = self.arms[0]["layers"]
        self.changes_attention = chunks[0].changes_attention
        self.phantoms: Sequence[Tensor] = ()

    @cached_property
    def fillers(self) -> Fillers:
        """The fillers of arms that change attention."""
        return tabulate_fillers(self.arms, self.rows.device)

    def start_step(self, chunks: Sequence[Chunk], device: torch.device) -> None:
        """Take the tokens of a step; all layers use the same tensors."""
        columns = [(chunk.row, chunk.index, chunk.request) for chunk in chunks]
        first_rows, first_indices, self._requests = copy_to(device, columns).T
        tokens = torch.arange(chunks[0].count, device=device)
        self.rows = first_rows[:, None] + tokens
        self.indices = first_indices[:, None] + tokens
        self._length = max(chunk.index for chunk in chunks) + chunks[0].count
        self._slots: Tensor | None = None

    def slots(self, block_table: Tensor, block_size: int) -> Tensor:
        """[request, position] Where the keys of all positions are stored, equal in all layers."""
        if self._slots is None:
            positions = torch.arange(self._length, device=block_table.device)
            blocks = block_table[self._requests].long()[:, positions // block_size]
            self._slots = blocks * block_size + positions % block_size
        return self._slots


class Arms:
    """What is installed in a worker's model, and the rows of the step that is being made.

    Attributes:
        expected: Rows that were scheduled with an intervention or to be recorded, as often as something is due on them.
        applied: How often something was done.
    """

    def __init__(self, worker: Any, layers: Mapping[str, Any]) -> None:
        self.expected = self.applied = 0
        self._chunks: list[Chunk] = []
        self._groups: dict[Any, Group] = {}
        self._runner = worker.model_runner
        self._decoder = self._runner.get_model().model
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._recordings: dict[str, Recording] = {}
        self._recorded_queries: list[RecordedQueries] = []
        self._taken: set[str] = set()
        self._phantoms: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self._block = worker.vllm_config.cache_config.block_size
        config = worker.vllm_config.model_config.hf_text_config
        self._prepare = self._runner._prepare_inputs
        self._runner._prepare_inputs = self.prepare
        self._is_uniform_decode = self._runner._is_uniform_decode
        self._runner._is_uniform_decode = self.may_use_full_graph
        layer_count = config.num_hidden_layers
        self._changed, recorded = {*layers["attention"]}, layers.get("recorded", ())
        self._recorded = {*(range(layer_count) if recorded == "all" else recorded)}
        self._head_count = worker.vllm_config.model_config.get_num_attention_heads(
            worker.vllm_config.parallel_config
        )
        self.recording_bytes = self._most_bytes(worker.vllm_config) if self._recorded else 0
        for layer in sorted(self._changed | self._recorded):
            self._open(layer)
        for layer in layers["activations"]:
            mlp = self._decoder.layers[layer].mlp
            mlp.act_fn = _Activation(mlp.act_fn, layer)
        self._activation = _activation_of(config)
        determine_memory = worker.determine_available_memory

        def memory_for_cache() -> int:
            available, recording = determine_memory(), self.recording_bytes
            if recording and available <= recording:
                sizes = f"{recording / 2**30:.2f} GiB of {available / 2**30:.2f} GiB"
                raise RuntimeError(
                    f"attention recorded in {len(self._recorded)} layers takes up to {sizes}"
                )
            stored_layers = layer_count + len(self._changed)
            return int((available - recording) * layer_count / stored_layers)

        worker.determine_available_memory = memory_for_cache

    def prepare(self, scheduled: Any, counts: np.ndarray) -> Any:
        """Note what the next step changes and records, and move the positions behind gaps."""
        self.check()
        for chunk in self._chunks:
            if chunk.recording:
                chunk.recording.rest()
        inputs = self._prepare(scheduled, counts)
        self._list_chunks(counts)
        self._group_chunks()
        self._group_recorded_queries()
        self._move_positions(counts)
        return inputs

    def may_use_full_graph(
        self, *arguments: Any, force_uniform_decode: bool | None = None, **options: Any
    ) -> bool:
        """Whether vLLM may run the next step as one CUDA graph, in which none of our Python runs.

        vLLM asks this after `prepare`. While it captures graphs it says itself which ones it wants.
        """
        if self._chunks and force_uniform_decode is None:
            return False
        options["force_uniform_decode"] = force_uniform_decode
        return bool(self._is_uniform_decode(*arguments, **options))

    def _list_chunks(self, counts: np.ndarray) -> None:
        self._chunks, stop = [], 0
        batch, requests = self._runner.input_batch, self._runner.requests
        indices = batch.num_computed_tokens_cpu[: len(counts)].tolist()
        columns = zip(batch.req_ids, counts.tolist(), indices, strict=True)
        for request, (name, count, index) in enumerate(columns):
            row, stop = stop, stop + count
            parameters = requests[name].sampling_params
            extra = parameters.extra_args if parameters else None
            if not extra:
                continue
            arm = extra.get(PLUGIN, {})
            recording, first = self._recording(extra.get(RECORD), index, count)
            if arm or recording:
                self._chunks.append(Chunk(row, count, index, request, arm, recording, first))
                self.expected += count * len(arm.get("layers", ()))

    def _group_chunks(self) -> None:
        """Group the requests with one token whose arms can be computed together.

        These are equal arms, or those that change attention in the same layers. A longer chunk is a
        group of its own, so that memory is that of one prompt.
        """
        distinct: list[Any] = []  # mappings have no hash
        chunks_by_key: dict[Any, list[Chunk]] = {}
        for chunk in self._chunks:
            if chunk.arm.get("layers"):
                together = chunk.arm["layers"] if chunk.changes_attention else chunk.arm
                if together not in distinct:
                    distinct.append(together)
                key = distinct.index(together), None if chunk.count == 1 else chunk.row
                chunks_by_key.setdefault(key, []).append(chunk)
        last_groups, self._groups = self._groups, {}
        for key, chunks in chunks_by_key.items():
            group = last_groups.get(key)
            if not group or group.arms != [chunk.arm for chunk in chunks]:
                group = Group(chunks)
            group.start_step(chunks, self._runner.device)
            self._groups[key] = group

    def _group_recorded_queries(self) -> None:
        """Group recorded queries so that at most WEIGHTS_AT_ONCE weights are in memory; phantom keys are few."""
        blocks: list[Block] = []
        for chunk in self._chunks:
            if chunk.recording:
                end = min(chunk.index + chunk.count, len(chunk.recording))
                at_once = max(1, WEIGHTS_AT_ONCE // (self._head_count * end))
                firsts = range(chunk.first, end, at_once)
                blocks += [(chunk, first, min(first + at_once, end)) for first in firsts]
        blocks.sort(key=lambda block: block[2])  # those of similar length together
        self._recorded_queries = []
        together: list[Block] = []
        most = 0
        for chunk, first, stop in blocks:
            most = max(most, stop - first)
            if together and self._head_count * most * stop * (len(together) + 1) > WEIGHTS_AT_ONCE:
                self._recorded_queries.append(RecordedQueries(together, self._runner.device))
                together, most = [], stop - first
            together.append((chunk, first, stop))
        if together:
            self._recorded_queries.append(RecordedQueries(together, self._runner.device))

    def _move_positions(self, counts: np.ndarray) -> None:
        gaps = [(0, 0)] * len(counts)
        for chunk in self._chunks:
            if "phantom" in chunk.arm:
                gaps[chunk.request] = chunk.arm["start"], chunk.arm["size"]
        if any(size for _, size in gaps):
            start, size = copy_to(self._runner.device, np.repeat(gaps, counts, axis=0)).T
            # In place: CUDA graphs read the positions at this address.
            positions = self._runner.positions[: len(start)]
            positions.copy_(add_gap(positions, start, size))

    def _recording(
        self,
        options: Mapping[str, Any] | None,
        index: int,
        count: int,
    ) -> tuple[Recording | None, int]:
        """The recording of a prompt, if queries come that are new to it, and the first of them."""
        if not options or index >= len(options["sets"][0]) or options["name"] in self._taken:
            return None, 0
        recording = self._recordings.setdefault(options["name"], Recording(options["sets"]))
        first, stop = recording.done, min(index + count, len(recording))
        if index > first:
            raise RuntimeError(
                f"the attention of {index - first} tokens was not recorded, they came out of a cache"
            )
        recording.done = max(first, stop)
        self.expected += (recording.done - first) * len(self._recorded)
        return (recording if stop > first else None), first

    def _most_bytes(self, config: Any) -> int:
        """What recording may take: sums of the prompts of a step, keys of two that are cut, weights in the making."""
        model, parallel = config.model_config, config.parallel_config
        heads, keys = model.get_num_attention_heads(parallel), model.get_num_kv_heads(parallel)
        longest, layers = model.max_model_len, len(self._recorded)
        tokens = config.scheduler_config.max_num_batched_tokens + longest
        sums = layers * QUERY_SETS * heads * tokens * torch.float32.itemsize
        kept = layers * 2 * longest * keys * model.get_head_size() * model.dtype.itemsize
        return int(sums + kept + 6 * max(WEIGHTS_AT_ONCE, heads * longest) * torch.float32.itemsize)

    @property
    def kept_bytes(self) -> int:
        """What the opened layers' keys and values take beside vLLM's cache."""
        return sum(states.nbytes for pair in self._kept.values() for states in pair)

    def check(self) -> None:
        """Raise RuntimeError if rows were passed over that should have been changed or recorded."""
        if self.expected != self.applied:
            raise RuntimeError(
                f"interventions and recording reached {self.applied} of {self.expected} rows, the rest skipped them"
            )

    def _open(self, layer: int) -> None:
        """Have a layer's attention computed again for the rows that ask for it."""
        implementation = self._decoder.layers[layer].self_attn.attn.impl
        original = implementation.forward

        def forward(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            _, query, key, value, _, metadata, *_ = arguments
            if self._chunks and metadata is not None:
                states, output = (query, key, value), options["output"]
                self._attend(layer, implementation.scale, states, metadata, output)
            return result

        implementation.forward = forward

    def _attend(
        self,
        layer: int,
        factor: float,
        states: Sequence[Tensor],
        metadata: Any,
        output: Tensor,
    ) -> None:
        query, *new_states = states
        if layer in self._recorded:
            for queries in self._recorded_queries:
                self._record(layer, factor, query, new_states[0], queries)
        groups = self._groups_of(layer, changes_attention=True)
        if not groups:
            return
        if layer not in self._kept:
            slots = self._runner.kv_cache_config.num_blocks * self._block
            key, value = (tensor.new_zeros(slots, *tensor.shape[1:]) for tensor in new_states)
            self._kept[layer] = key, value
        # Other requests need not be stored, as an arm's salt keeps it from their cached blocks. All
        # are stored before any is read: a request may share blocks with another of this step.
        for group in groups:
            rows = group.rows.flatten()
            for stored, tensor in zip(self._kept[layer], new_states, strict=True):
                stored[metadata.slot_mapping[rows]] = tensor[rows]
        for group in groups:
            slots = group.slots(metadata.block_table, self._block)
            key, value = (stored[slots] for stored in self._kept[layer])
            if group.fillers.padded_size:
                group.phantoms = group.phantoms or self._phantoms_of(layer, group.arms, key)
                pairs = zip((key, value), group.phantoms, strict=True)
                key, value = (torch.cat(pair, 1) for pair in pairs)
            attended = attend(query[group.rows], key, value, factor, group.indices, group.fillers)
            shape = *group.rows.shape, *output.shape[1:]
            output[group.rows] = attended.view(shape).to(output.dtype)
            self.applied += group.rows.numel()

    def _record(
        self, layer: int, factor: float, query: Tensor, key: Tensor, queries: RecordedQueries
    ) -> None:
        """Add the attention of queries of this step, as an intervention has left it."""
        known_keys, arms = [], []
        for chunk, _, stop in queries.blocks:
            assert chunk.recording
            new_keys = key[
                chunk.row : chunk.row + min(chunk.count, len(chunk.recording) - chunk.index)
            ]
            known_keys.append(chunk.recording.keys(layer, new_keys, chunk.index)[:stop])
            is_changed = chunk.changes_attention and layer in chunk.arm["layers"]
            arms.append(chunk.arm if is_changed else NO_FILLER)
        keys = pad_sequence(known_keys, batch_first=True)
        key_count = keys.shape[1]
        if all(arm is NO_FILLER for arm in arms):
            is_visible = torch.arange(key_count, device=key.device) <= queries.indices[..., None]
            weights = plain_weights(query[queries.rows], keys, factor, is_visible[:, None, None])
        else:
            keys = torch.cat([keys, self._phantoms_of(layer, arms, keys)[0]], 1)
            fillers = tabulate_fillers(arms, key.device)
            weights = weigh(query[queries.rows], keys, factor, queries.indices, fillers)[
                ..., :key_count
            ]
        weights = weights.flatten(1, 2)
        own = queries.indices[:, None, :, None].expand(-1, weights.shape[1], -1, -1)
        sets = queries.sets[:, None]
        # in the last set alone, attention to a query's own token counts
        sums = torch.cat(
            [sets[:, :, :-1] @ weights.scatter(-1, own, 0), sets[:, :, -1:] @ weights], 2
        )
        for block_sums, (chunk, first, stop) in zip(sums, queries.blocks, strict=True):
            assert chunk.recording
            chunk.recording.add(layer, block_sums[..., :stop])
            self.applied += stop - first

    def take_attention(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        """By name the sums [layer, set, head, key] of all whole prompts in float32, and their shape; forgotten here."""
        whole = [
            name for name, recording in self._recordings.items() if recording.done == len(recording)
        ]
        self._taken.update(whole)  # a preempted request comes again
        sums = {name: self._recordings.pop(name).sums for name in whole}
        return {
            name: (tuple(tensor.shape), tensor.numpy().tobytes()) for name, tensor in sums.items()
        }

    def _phantoms_of(self, layer: int, arms: Sequence[Arm], like: Tensor) -> Sequence[Tensor]:
        """Phantom keys and values [arm, token, head, unit], padded to the longest filler."""
        fillers = [(arm["start"], tuple(arm.get("phantom", ()))) for arm in arms]
        distinct = [*dict.fromkeys(fillers)]  # few, and padding takes a copy for each
        indices = copy_to(like.device, [distinct.index(filler) for filler in fillers])
        pairs = [self._phantom(layer, *filler, like) for filler in distinct]
        columns = map(list, zip(*pairs, strict=True))
        return [pad_sequence(column, batch_first=True)[indices] for column in columns]

    def _phantom(
        self,
        layer: int,
        start: int,
        tokens: tuple[int, ...],
        like: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values [token, head, unit] of a filler that is not in the prompt: see `resolve`.

        They are computed once.
        """
        if not tokens:
            empty = like.new_empty(0, *like.shape[2:])
            return empty, empty
        if (start, tokens) not in self._phantoms:
            block = self._decoder.layers[layer]
            attention = block.self_attn
            token_ids = copy_to(like.device, tokens)
            states = block.input_layernorm(self._decoder.embed_tokens(token_ids))
            sizes = [attention.q_size, attention.kv_size, attention.kv_size]
            query, key, value = attention.qkv_proj(states)[0].split(sizes, -1)
            positions = start + torch.arange(len(tokens), device=like.device)
            key = attention.rotary_emb(positions, query.contiguous(), key.contiguous())[1]
            shape = (len(tokens), *like.shape[2:])
            self._phantoms[start, tokens] = key.reshape(shape), value.reshape(shape)
        return self._phantoms[start, tokens]

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of one layer, times `up`, over the rows that ask for it."""
        for group in self._groups_of(layer, changes_attention=False):
            rows = group.rows.flatten()
            gate, up = gate_up[rows].chunk(2, -1)
            activations, positions = self._activation(gate), self._runner.positions[rows]
            out[rows] = change_activations(activations, positions, group.arms[0]) * up
            self.applied += len(rows)

    def _groups_of(self, layer: int, changes_attention: bool) -> list[Group]:
        groups = [group for group in self._groups.values() if layer in group.layers]
        return [group for group in groups if group.changes_attention == changes_attention]


_installed: list[Arms] = []


@torch.library.custom_op(OPERATION, mutates_args=("out",))
def _change_rows(gate_up: Tensor, out: Tensor, layer: int) -> None:
    for arms in _installed:
        arms.change_rows(gate_up, out, layer)


@_change_rows.register_fake
def _(gate_up: Tensor, out: Tensor, layer: int) -> None:
    return None


class _Activation(nn.Module):
    """An MLP's activation and product with `up`, whose rows may be changed afterwards."""

    def __init__(self, own: nn.Module, layer: int) -> None:
        super().__init__()
        self.own, self.layer = own, layer

    def forward(self, gate_up: Tensor) -> Tensor:
        out: Tensor = self.own(gate_up)
        torch.ops.mless.change_rows(gate_up, out, self.layer)
        return out


def _activation_of(config: Any) -> Any:
    from transformers.activations import ACT2FN

    return ACT2FN[getattr(config, "hidden_activation", None) or config.hidden_act]


def install_at_load() -> None:
    """Have vLLM's worker, which is not made yet, install what INTERVENTIONS says as soon as its model is loaded."""
    from vllm.v1.worker.gpu_worker import Worker

    own = Worker.load_model
    if own.__name__ == "load_and_install":
        return

    def load_and_install(worker: Any, *arguments: Any, **more: Any) -> None:
        own(worker, *arguments, **more)
        worker.mless_arms = Arms(worker, json.loads(os.environ[INTERVENTIONS]))
        _installed[:] = [worker.mless_arms]

    Worker.load_model = load_and_install
