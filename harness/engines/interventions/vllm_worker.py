"""Interventions and the recording of attention inside vLLM's workers.

A batch may have any mixture of both. A request has its intervention in `SamplingParams.extra_args`,
and the queries whose attention is recorded. For each step the worker knows which rows of the batch
have an intervention. It changes these rows in four places: the positions before the model, the
output of a layer's attention, and the activations and the output of a layer's MLP. Keys and values
that a changed layer reads again are stored by slot beside vLLM's own cache, whose form differs by
backend.
Rows are counted: an operation that was skipped, as by a CUDA graph, ends the run.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BufferedWriter
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence
from transformers.activations import ACT2FN

from harness.engines.engine_processes import LATER_SETS, OPERATION, PLUGIN, RECORD
from harness.engines.interventions.arithmetic import (
    Change,
    add_gap,
    attend_with_changes,
    change_activations,
    change_outputs,
    changes_of,
    copy_to,
    plain_weights,
    tabulate_changes,
    weigh,
)
from harness.engines.interventions.step_rows import Chunk, Group, RecordedQueries, Recording
from harness.experiment.intervention_settings import TARGET_BY_KIND, find_gap

WEIGHTS_AT_ONCE = 2**22
"""Attention weights in memory at the same time while attention is recorded. There are six copies in
float32: 100 MB."""


class WorkerInterventions:
    """The changes that are installed in a worker's model, and the rows of the current step.

    Attributes:
        expected: The number of scheduled changes and recordings, by row and layer.
        applied: The number of changes and recordings that were carried out.
    """

    def __init__(self, worker: Any, layers: Mapping[str, Any]) -> None:
        self.expected = self.applied = 0
        self._chunks: list[Chunk] = []
        self._groups: dict[Any, Group] = {}
        self._runner = worker.model_runner
        model = self._runner.get_model()
        if hasattr(model, "get_language_model"):  # Gemma3-4b-it reads images too
            model = model.get_language_model()
        # vLLM's classes return the decoder itself or a model that has one
        self._model, self._decoder = model, getattr(model, "model", model)
        self._stored_states: dict[int, tuple[Tensor, Tensor]] = {}
        self._recordings: dict[str, Recording] = {}
        self._recorded_queries: list[RecordedQueries] = []
        self._taken_names: set[str] = set()
        self._sent_sums: dict[str, Any] = {}
        self._writer = ThreadPoolExecutor(1)
        self._writes: list[Future[BufferedWriter]] = []
        self._sources: dict[tuple[int, ...], dict[int, Tensor]] = {}
        """The outputs of MLPs by tokens and layer: see `_compute_sources`."""
        self._new_source: dict[int, Tensor] | None = None
        self._phantoms: dict[tuple[int, tuple[int, ...]], Sequence[Tensor]] = {}
        self._config = worker.vllm_config
        self._block = self._config.cache_config.block_size
        config = self._config.model_config.hf_text_config
        self._layer_count = config.num_hidden_layers
        self._hook_runner()
        self._changed_layers = {*layers["attention"]}
        self._recorded_layers = [*layers.get("recorded", ())]
        self._head_count = self._config.model_config.get_num_attention_heads(
            self._config.parallel_config
        )
        self._set_count = layers.get("set_count", 0)
        for layer in sorted(self._changed_layers.union(self._recorded_layers)):
            self._open(layer)
        for layer in layers["activations"]:
            mlp = self._decoder.layers[layer].mlp
            mlp.act_fn = _ChangedModule(mlp.act_fn, layer, is_activation=True)
            name = getattr(config, "hidden_activation", None) or config.hidden_act
            self._activation = ACT2FN[name]
        for layer in layers.get("outputs", ()):
            block = self._decoder.layers[layer]
            if not hasattr(block, "mlp"):
                raise RuntimeError(
                    f"vLLM's {config.model_type} has no `mlp`, whose output is changed"
                )
            block.mlp = _ChangedModule(block.mlp, layer, is_activation=False)
        _installed[:] = [self]

    def _hook_runner(self) -> None:
        # vLLM looks these methods up on the instance, so ours take their place for this worker
        # alone
        self._prepare = self._runner._prepare_inputs
        self._runner._prepare_inputs = self.prepare
        self._is_uniform_decode = self._runner._is_uniform_decode
        self._runner._is_uniform_decode = self.may_use_full_graph

    def reserve_memory(self, available: int) -> int:
        """The bytes that remain for vLLM's cache.

        Raises:
            RuntimeError: recording may need all of them.
        """
        recording = self._count_recording_bytes() if self._recorded_layers else 0
        if recording and available <= recording:
            sizes = f"{recording / 2**30:.2f} GiB of {available / 2**30:.2f} GiB"
            raise RuntimeError(
                f"attention recorded in {len(self._recorded_layers)} layers takes up to {sizes}"
            )
        # A changed layer's keys and values are stored twice: in vLLM's cache and here.
        stored_layers = self._layer_count + len(self._changed_layers)
        return int((available - recording) * self._layer_count / stored_layers)

    def prepare(self, scheduled: Any, counts: np.ndarray) -> Any:
        """List the changes and recordings of the next step, and move positions after gaps."""
        self.check()
        self._send_sums()
        inputs = self._prepare(scheduled, counts)
        self._list_chunks(counts)
        self._compute_sources()
        self._group_chunks()
        self._list_recorded_queries()
        self._move_positions(counts)
        return inputs

    def may_use_full_graph(
        self, *arguments: Any, force_uniform_decode: bool | None = None, **options: Any
    ) -> bool:
        """Whether vLLM may run the next step as a full CUDA graph, in which no Python runs.

        vLLM calls this after `prepare`. While it captures graphs it sets `force_uniform_decode`.
        """
        if self._chunks and force_uniform_decode is None:
            return False
        options["force_uniform_decode"] = force_uniform_decode
        return bool(self._is_uniform_decode(*arguments, **options))

    def _list_chunks(self, counts: np.ndarray) -> None:
        self._chunks, stop = [], 0
        batch, requests = self._runner.input_batch, self._runner.requests
        indices = batch.num_computed_tokens_cpu[: len(counts)].tolist()
        # the rows of the requests follow one another, so each stop is the next request's first row
        columns = zip(batch.req_ids, counts.tolist(), indices, strict=True)
        for request, (name, token_count, index) in enumerate(columns):
            row, stop = stop, stop + token_count
            parameters = requests[name].sampling_params
            extra = parameters.extra_args if parameters else None
            if not extra:
                continue
            changes = extra.get(PLUGIN, ())
            recording, first = self._find_recording(extra.get(RECORD), index, token_count)
            if changes or recording:
                self._chunks.append(
                    Chunk(row, token_count, index, request, changes, recording, first)
                )
                layer_count = sum(len(change["layers"]) for change in changes)
                self.expected += token_count * layer_count

    def _group_chunks(self) -> None:
        """Group the requests with a single token whose changes can be computed together.

        These are equal with those before them, or change attention in the same layers. Groups have
        the order of the requests' lists. A longer chunk is a separate group, so that memory is that
        of one prompt.
        """
        kinds: list[Any] = []  # a list, because mappings have no hash for a set
        pairs_by_key: dict[Any, list[tuple[Chunk, Sequence[Change]]]] = {}
        for chunk in self._chunks:
            for count, change in enumerate(chunk.changes, 1):
                if not change["layers"]:
                    continue
                changes = chunk.changes[:count]
                kind = (
                    change["layers"] if TARGET_BY_KIND[change["kind"]] == "attention" else changes
                )
                if kind not in kinds:
                    kinds.append(kind)
                key = count, kinds.index(kind), -1 if chunk.token_count == 1 else chunk.row
                pairs_by_key.setdefault(key, []).append((chunk, changes))
        last_groups, self._groups = self._groups, {}
        # in the order of the requests' lists
        for key, pairs in sorted(pairs_by_key.items()):
            chunks, lists = zip(*pairs, strict=True)
            group = last_groups.get(key)
            if not group or group.lists != lists:
                group = Group(lists)
            group.start_step(chunks, self._runner.device)
            self._groups[key] = group

    def _list_recorded_queries(self) -> None:
        """List recorded queries in blocks with at most WEIGHTS_AT_ONCE weights.

        Phantom keys are not counted, as they are few.
        """
        self._recorded_queries = []
        for chunk in self._chunks:
            if chunk.recording:
                end = min(chunk.index + chunk.token_count, len(chunk.recording))
                size = max(1, WEIGHTS_AT_ONCE // (self._head_count * end))
                for first in range(chunk.first_query, end, size):
                    stop = min(first + size, end)
                    queries = RecordedQueries(chunk, first, stop, self._runner.device)
                    self._recorded_queries.append(queries)

    def _move_positions(self, counts: np.ndarray) -> None:
        gaps = [(0, 0)] * len(counts)
        for chunk in self._chunks:
            gaps[chunk.request] = find_gap(chunk.changes)
        if any(size for _, size in gaps):
            start, size = copy_to(self._runner.device, np.repeat(gaps, counts, axis=0)).T
            # In place: CUDA graphs read the positions at this address.
            positions = self._runner.positions[: len(start)]
            positions.copy_(add_gap(positions, start, size))

    def _find_recording(
        self,
        options: Mapping[str, Any] | None,
        index: int,
        token_count: int,
    ) -> tuple[Recording | None, int]:
        """The recording of a prompt if a step has new queries for it, and the first new query."""
        if not options or index >= len(options["sets"][0]) or options["name"] in self._taken_names:
            return None, 0
        new_recording = Recording(options["sets"], len(self._recorded_layers))
        recording = self._recordings.setdefault(options["name"], new_recording)
        first, stop = recording.query_count, min(index + token_count, len(recording))
        if index > first:
            raise RuntimeError(
                f"the attention of {index - first} tokens was not recorded, they came out of a "
                "cache"
            )
        if stop <= first:
            return None, first
        recording.query_count = stop
        self.expected += (stop - first) * len(self._recorded_layers)
        return recording, first

    def _count_recording_bytes(self) -> int:
        """The most memory that recording may take.

        These are the sums of a step's prompts and their copy, the keys of two prompts in chunks,
        and weights.
        """
        model, heads = self._config.model_config, self._head_count
        keys = model.get_num_kv_heads(self._config.parallel_config)
        longest, layers = model.max_model_len, len(self._recorded_layers)
        tokens = self._config.scheduler_config.max_num_batched_tokens + longest
        sums = 2 * layers * self._set_count * heads * tokens * torch.float32.itemsize
        states = layers * 2 * longest * keys * model.get_head_size() * model.dtype.itemsize
        weights = 6 * max(WEIGHTS_AT_ONCE, heads * longest) * torch.float32.itemsize
        return int(sums + states + weights)

    def check(self) -> None:
        """Raise RuntimeError if rows were not changed or recorded that should have been."""
        if self.expected != self.applied:
            raise RuntimeError(
                f"interventions and recording reached {self.applied} of {self.expected} rows, the "
                "rest skipped them"
            )

    def _open(self, layer: int) -> None:
        """Have a layer's attention computed again for the rows that an intervention changes."""
        implementation = self._attention(layer).impl
        original = implementation.forward

        def forward(*arguments: Any, **options: Any) -> Any:
            result = original(*arguments, **options)
            # layer, query, key, value, KV cache and metadata, which is None while vLLM measures its
            # memory
            _, query, key, value, _, metadata, *_ = arguments
            if self._chunks and metadata is not None:
                states, output = (query, key, value), options["output"]
                self._attend(layer, states, metadata, output)
            return result

        implementation.forward = forward

    def _attention(self, layer: int) -> Any:
        """The attention of a layer in vLLM, after the projections, norms and positions."""
        return self._decoder.layers[layer].self_attn.attn

    def _attend(self, layer: int, states: Sequence[Tensor], metadata: Any, output: Tensor) -> None:
        query, *new_states = states
        if layer in self._recorded_layers:
            for queries in self._recorded_queries:
                self._record(layer, query, new_states[0], queries)
        groups = self._groups_of(layer, "attention")
        if not groups:
            return
        if layer not in self._stored_states:
            slots = self._runner.kv_cache_config.num_blocks * self._block
            key, value = (tensor.new_zeros(slots, *tensor.shape[1:]) for tensor in new_states)
            self._stored_states[layer] = key, value
        # Requests without an intervention need not be stored, because the salt of one with an
        # intervention excludes their cached blocks.
        # All states are stored before any is read: a request may share blocks with another of this
        # step.
        for group in groups:
            rows = group.rows.flatten()
            for stored, tensor in zip(self._stored_states[layer], new_states, strict=True):
                stored[metadata.slot_mapping[rows]] = tensor[rows]
        for group in groups:
            slots = group.slots(metadata.block_table, self._block)
            key, value = (stored[slots] for stored in self._stored_states[layer])
            if group.attention_changes.padded_size:
                group.phantoms = group.phantoms or self._phantoms_of(group.changes, key)
                pairs = zip((key, value), group.phantoms, strict=True)
                key, value = (torch.cat(pair, 1) for pair in pairs)
            factor = self._attention(layer).impl.scale
            attended = attend_with_changes(
                query[group.rows], key, value, factor, group.indices, group.attention_changes
            )
            shape = *group.rows.shape, *output.shape[1:]
            output[group.rows] = attended.view(shape).to(output.dtype)
            self.applied += group.rows.numel()

    def _record(self, layer: int, query: Tensor, key: Tensor, queries: RecordedQueries) -> None:
        """Add the attention of queries of this step, changed by their intervention."""
        chunk, recording = queries.chunk, queries.chunk.recording
        assert recording
        key_count = min(chunk.token_count, len(recording) - chunk.index)
        new_keys = key[chunk.row : chunk.row + key_count]
        # [1, token, head, unit]
        query = query[None, queries.rows]
        keys = recording.keys(layer, new_keys, chunk.index)[None, : queries.stop]
        attention = self._attention(layer)
        factor, window = attention.impl.scale, attention.sliding_window
        if changes := changes_of(chunk.changes, layer, "attention"):
            # no window is shorter than these prompts: see `open_layers`
            keys = torch.cat([keys, self._phantoms_of(changes, keys)[0]], 1)
            tabulated = tabulate_changes(changes, key.device)
            weights = weigh(query, keys, factor, queries.indices[None], tabulated)
        else:
            # [query, key] how many tokens a key stands before a query
            distances = queries.indices[:, None] - torch.arange(queries.stop, device=key.device)
            is_visible = distances >= 0
            if window:
                is_visible &= distances < window
            log_weights = torch.where(is_visible, 0.0, -torch.inf)
            weights = plain_weights(query, keys, factor, log_weights)
        # [head, query, key]
        weights = weights[0, ..., : queries.stop].flatten(0, 1)
        sums_with_own_token = queries.sets[LATER_SETS:] @ weights
        weights.diagonal(queries.first, dim1=-2, dim2=-1).zero_()
        later_sums = queries.sets[:LATER_SETS] @ weights
        sums = torch.cat([later_sums, sums_with_own_token], 1).transpose(0, 1)
        recording.add(self._recorded_layers.index(layer), sums)
        self.applied += len(queries.indices)

    def _send_sums(self) -> None:
        """Have a thread write the sums of complete prompts to a file, while the next step runs.

        The file is in memory and has no name, so it ends with this process.
        """
        names = [
            name
            for name, recording in self._recordings.items()
            if recording.query_count == len(recording)
        ]
        if not names:
            return
        file = open(os.memfd_create("attention"), "wb")
        path, offset, sums = f"/proc/{os.getpid()}/fd/{file.fileno()}", 0, []
        for name in names:
            tensor = self._recordings.pop(name).sums
            self._sent_sums[name] = path, "float32", "r", offset, tuple(tensor.shape)
            offset += tensor.nbytes
            sums.append(tensor.flatten())
        self._taken_names.update(names)  # a preempted request comes again, and is complete
        # one copy, from a GPU to pinned memory
        memory = torch.cat(sums).to("cpu", non_blocking=True)
        copied = torch.cuda.current_stream().record_event() if memory.is_pinned() else None

        def write() -> BufferedWriter:
            if copied:
                copied.synchronize()
            memory.numpy().tofile(file)
            return file

        self._writes.append(self._writer.submit(write))

    def take_attention(self) -> dict[str, Any]:
        """Where the sums [layer, set, head, key] of all complete prompts are, until the next call.

        The arguments of `numpy.memmap`, by the recordings' names.
        """
        self._send_sums()
        self._files = [write.result() for write in self._writes]  # open until the next call
        self._writes.clear()
        locations, self._sent_sums = self._sent_sums, {}
        return locations

    def _phantoms_of(self, changes: Sequence[Change], like: Tensor) -> Sequence[Tensor]:
        """Phantom keys and values [request, token, head, unit], padded to the longest filler.

        See `experiment.intervention_settings.FillerIntervention.resolve`.
        """
        fillers = [(change.get("start", 0), tuple(change.get("phantom", ()))) for change in changes]
        distinct = [*dict.fromkeys(fillers)]  # padding copies each, and many requests share one
        indices = copy_to(like.device, [distinct.index(filler) for filler in fillers])
        empty = like.new_empty(0, *like.shape[2:])
        pairs = [self._phantoms.get(filler, (empty, empty)) for filler in distinct]
        columns = map(list, zip(*pairs, strict=True))
        return [pad_sequence(column, batch_first=True)[indices] for column in columns]

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of a layer, times `up`, over their rows."""
        for group in self._groups_of(layer, "activations"):
            rows = group.rows.flatten()
            gate, up = gate_up[rows].chunk(2, -1)
            activations, positions = self._activation(gate), self._runner.positions[rows]
            for change in changes_of(group.lists[0], layer, "activations"):
                activations = change_activations(activations, positions, change)
            out[rows] = activations * up
            self.applied += len(rows)

    def change_outputs(self, out: Tensor, layer: int) -> None:
        """Write the changed outputs of a layer's MLP over their rows."""
        if self._new_source is not None:
            self._new_source[layer] = out[-1].clone()
        for group in self._groups_of(layer, "outputs"):
            rows, (change, *_) = group.rows.flatten(), group.changes
            source = self._sources[tuple(change["source"])][layer]
            is_changed = torch.isin(group.indices.flatten(), copy_to(out.device, change["tokens"]))
            out[rows] = change_outputs(out[rows], is_changed, change, source)
            self.applied += len(rows)

    def _compute_sources(self) -> None:
        """Compute the MLP outputs and the phantoms that changes of this step need, if none has yet.

        The outputs are those of the last token of a source: the first token of a prompt, or a
        beginning whose states may be cached or in another chunk. Phantoms are not in the prompt. So
        both are computed by themselves, without interventions and without vLLM's cache.
        """
        from vllm.forward_context import set_forward_context

        for change in chain.from_iterable(chunk.changes for chunk in self._chunks):
            token_ids = tuple(change.get("source") or change.get("phantom", ()))
            start = change.get("start", 0)
            if not token_ids or (start, token_ids) in self._phantoms:
                continue
            self._new_source, self._groups = {}, {}
            ids = copy_to(self._runner.device, token_ids)
            blocks = self._decoder.layers
            for block in blocks:
                block.self_attn.attn = _PlainAttention(block.self_attn.attn)
            # the whole model, because the arguments of layers differ by family
            with set_forward_context(None, self._config, skip_compiled=True):
                self._model(ids, start + torch.arange(len(ids), device=ids.device))
            # Only Layer 1 has phantoms, whose input is the embedding of a token and nothing else.
            self._phantoms[start, token_ids] = blocks[0].self_attn.attn.states
            for block in blocks:
                block.self_attn.attn = block.self_attn.attn.original
            self._sources[token_ids], self._new_source = self._new_source, None

    def _groups_of(self, layer: int, target: str) -> list[Group]:
        return [
            group for group in self._groups.values() if changes_of(group.changes[:1], layer, target)
        ]


_installed: list[WorkerInterventions] = []


@torch.library.custom_op(OPERATION, mutates_args=("out",))
def _change_rows(gate_up: Tensor | None, out: Tensor, layer: int) -> None:
    out = out.flatten(0, -2)  # a view; Transformers' classes have a dimension for the batch
    for interventions in _installed:
        if gate_up is None:
            interventions.change_outputs(out, layer)
        else:
            interventions.change_rows(gate_up.flatten(0, -2), out, layer)


@_change_rows.register_fake
def _(gate_up: Tensor | None, out: Tensor, layer: int) -> None:
    return None


class _ChangedModule(nn.Module):
    """An MLP's activation and product with `up`, or a whole MLP, whose output may be changed."""

    def __init__(self, module: nn.Module, layer: int, is_activation: bool) -> None:
        super().__init__()
        self.module, self.layer, self.is_activation = module, layer, is_activation

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.module(states)
        torch.ops.mless.change_rows(states if self.is_activation else None, out, self.layer)
        return out


class _PlainAttention(nn.Module):
    """The attention of one prompt, in place of vLLM's, which needs a cache.

    Attributes:
        states: Keys and values [token, head, unit] of the last prompt.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original

    def forward(self, *states: Tensor) -> Tensor:
        shaped = [tensor.view(len(tensor), -1, self.original.head_size) for tensor in states]
        query, key, value = (tensor.transpose(0, 1)[None] for tensor in shaped)
        attended = scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=self.original.impl.scale, enable_gqa=True
        )
        self.states = shaped[1:]
        return attended[0].transpose(0, 1).flatten(1)
