"""Interventions and the recording of attention inside vLLM's workers.

A batch may have any mixture of both. A request has its intervention in `SamplingParams.extra_args`,
and the queries whose attention is recorded. For each step the worker knows which rows of the batch
have an intervention. It changes these rows in four places: the positions before the model, the
output of a layer's attention, and the activations and the output of a layer's MLP. Keys and values
that a changed layer reads again are stored by slot beside vLLM's own cache, whose form differs by
backend.
Two kinds of tokens are computed by themselves first. A source is the beginning of a prompt, of
whose last token the MLP outputs replace others. A phantom is a filler that is not in the prompt,
but whose keys and values are added in the first layer.
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
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.activations import ACT2FN

from harness.constants import JsonObject
from harness.engines.engine_processes import PLUGIN_NAME, RECORD_KEY, SETS_WITHOUT_OWN_TOKEN
from harness.engines.interventions.arithmetic import (
    Change,
    add_gap,
    attend_with_changes,
    change_activations,
    change_outputs,
    changed_weights,
    copy_to,
    plain_weights,
    select_changes,
    tabulate_changes,
)
from harness.engines.interventions.layer_modules import (
    ChangedModule,
    PlainAttention,
    installed_interventions,
)
from harness.engines.interventions.step_rows import (
    Chunk,
    Group,
    GroupKey,
    RecordedQueries,
    Recording,
)
from harness.experiment.intervention_settings import TARGET_BY_KIND, find_gap

WEIGHTS_AT_ONCE = 2**22
"""Attention weights in memory at the same time while attention is recorded. There are six copies in
float32: 100 MB."""


class WorkerInterventions:
    """The changes that are installed in a worker's model, and the rows of the current step.

    vLLM calls `prepare` before each step. While the model computes, its layers call
    `_record_and_attend`, `change_rows` and `change_outputs`.

    Attributes:
        expected_rows: The number of rows to change or record, each once for every such layer.
        applied_rows: The number of those that were changed or recorded.
    """

    def __init__(self, worker: Any, layer_settings: JsonObject) -> None:
        self.expected_rows = self.applied_rows = 0
        self._chunks: list[Chunk] = []
        """The tokens of the current step that are changed or recorded, by request."""
        self._groups: dict[GroupKey, Group] = {}
        """The changes of the current step, in the order in which they are made."""
        self._runner = worker.model_runner
        model = self._runner.get_model()
        # a model that also reads images, such as Gemma3-4b-it, contains a language model
        if hasattr(model, "get_language_model"):
            model = model.get_language_model()
        # vLLM's classes return the decoder itself or a model that has one
        self._model = model
        self._decoder = getattr(model, "model", model)
        self._stored_states: dict[int, Sequence[Tensor]] = {}
        """By changed layer, keys and values [slot, head, unit], which later steps read again."""
        self._recordings: dict[str, Recording] = {}
        """The recordings of incomplete prompts, by name."""
        self._recorded_queries: list[RecordedQueries] = []
        """The recorded queries of the current step."""
        self._complete_names: set[str] = set()
        """Names of recordings whose sums were written."""
        self._memmap_arguments: dict[str, Any] = {}
        """The arguments of `numpy.memmap` for the sums of each recording."""
        self._writer = ThreadPoolExecutor(1)
        self._writes: list[Future[BufferedWriter]] = []
        """The files of sums that `_writer` writes, until `take_attention`."""
        self._outputs_by_source: dict[tuple[int, ...], dict[int, Tensor]] = {}
        """The outputs of MLPs by a source's tokens, then by layer."""
        self._new_outputs: dict[int, Tensor] | None = None
        """Those of the source that is being computed, by layer; None in all other passes."""
        self._phantom_states: dict[tuple[int, tuple[int, ...]], Sequence[Tensor]] = {}
        """By start and tokens of a filler, its keys and values in the first layer."""
        self._config = worker.vllm_config
        self._block_size = self._config.cache_config.block_size
        text_config = self._config.model_config.hf_text_config
        self._layer_count = text_config.num_hidden_layers
        self._changed_layers = {*layer_settings["attention"]}
        self._recorded_layers = layer_settings.get("recorded", ())
        self._head_count = self._config.model_config.get_num_attention_heads(
            self._config.parallel_config
        )
        self._set_count = layer_settings.get("set_count", 0)
        self._hook_runner()
        self._hook_layers(layer_settings, text_config)
        installed_interventions[:] = [self]

    def _hook_layers(self, layer_settings: JsonObject, text_config: Any) -> None:
        """Have the layers call this object when their attention or MLP is computed.

        Raises:
            RuntimeError: vLLM's model has no MLP where one is needed.
        """
        for layer in self._changed_layers.union(self._recorded_layers):
            self._open_attention(layer)
        for layer in layer_settings["activations"]:
            mlp = self._decoder.layers[layer].mlp
            mlp.act_fn = ChangedModule(mlp.act_fn, layer, is_activation=True)
            self._activation = ACT2FN[
                getattr(text_config, "hidden_activation", None) or text_config.hidden_act
            ]
        for layer in layer_settings.get("outputs", ()):
            decoder_layer = self._decoder.layers[layer]
            if not hasattr(decoder_layer, "mlp"):
                raise RuntimeError(
                    f"vLLM's {text_config.model_type} has no `mlp`, whose output is changed"
                )
            decoder_layer.mlp = ChangedModule(decoder_layer.mlp, layer, is_activation=False)

    def _hook_runner(self) -> None:
        """Have vLLM call `prepare` and `may_use_full_graph` in every step."""
        # vLLM finds these methods in the instance, so ours replace them in this worker alone
        self._prepare_as_vllm = self._runner._prepare_inputs
        self._runner._prepare_inputs = self.prepare
        self._is_uniform_decode = self._runner._is_uniform_decode
        self._runner._is_uniform_decode = self.may_use_full_graph

    def reserve_memory(self, available_bytes: int) -> int:
        """The bytes that remain for vLLM's cache.

        Raises:
            RuntimeError: recording may need all of them.
        """
        recording_bytes = self._count_recording_bytes() if self._recorded_layers else 0
        if recording_bytes and available_bytes <= recording_bytes:
            raise RuntimeError(
                f"attention recorded in {len(self._recorded_layers)} layers takes up to "
                f"{recording_bytes / 2**30:.2f} GiB of {available_bytes / 2**30:.2f} GiB"
            )
        # A changed layer's keys and values are stored twice: in vLLM's cache and here.
        stored_layer_count = self._layer_count + len(self._changed_layers)
        return int((available_bytes - recording_bytes) * self._layer_count / stored_layer_count)

    def prepare(self, scheduler_output: Any, token_counts: np.ndarray) -> Any:
        """List the changes and recordings of the next step, and move positions after gaps.

        First the rows of the last step are checked, and sums of complete prompts are written. This
        method replaces vLLM's `_prepare_inputs`, calls it and returns its inputs.
        """
        self.check_rows()
        self._write_sums()
        inputs = self._prepare_as_vllm(scheduler_output, token_counts)
        self._list_chunks(token_counts)
        self._compute_sources_and_phantoms()
        self._group_chunks()
        self._list_recorded_queries()
        self._move_positions(token_counts)
        return inputs

    def may_use_full_graph(
        self, *arguments: Any, force_uniform_decode: bool | None = None, **options: Any
    ) -> bool:
        """Whether vLLM may run the next step as a full CUDA graph, in which no Python runs.

        It may not if rows of the step are changed or recorded. vLLM calls this after `prepare`.
        While it captures graphs it sets `force_uniform_decode`: then no step follows.
        """
        if self._chunks and force_uniform_decode is None:
            return False
        return bool(
            self._is_uniform_decode(
                *arguments, force_uniform_decode=force_uniform_decode, **options
            )
        )

    def _list_chunks(self, token_counts: np.ndarray) -> None:
        """List the chunks of the step's requests that have an intervention or are recorded.

        The rows that each must change or record are added to `expected_rows`.
        """
        self._chunks = []
        next_row = 0
        batch = self._runner.input_batch
        requests = self._runner.requests
        first_indices = batch.num_computed_tokens_cpu[: len(token_counts)].tolist()
        scheduled_requests = zip(batch.req_ids, token_counts.tolist(), first_indices, strict=True)
        for request_index, (request_id, token_count, first_index) in enumerate(scheduled_requests):
            first_row = next_row
            next_row += token_count
            parameters = requests[request_id].sampling_params
            extra_arguments = parameters.extra_args if parameters else None
            if not extra_arguments:
                continue
            changes = extra_arguments.get(PLUGIN_NAME, ())
            recording, queries = self._advance_recording(
                extra_arguments.get(RECORD_KEY), first_index, token_count
            )
            if changes or queries:
                self._chunks.append(
                    Chunk(
                        first_row,
                        token_count,
                        first_index,
                        request_index,
                        changes,
                        recording,
                        queries,
                    )
                )
                # a layer counts once for each change that is made in it
                changed_layer_count = sum(len(change["layers"]) for change in changes)
                self.expected_rows += token_count * changed_layer_count
                self.expected_rows += len(queries) * len(self._recorded_layers)

    def _group_chunks(self) -> None:
        """Group the requests with a single token whose changes can be computed together.

        Changes of attention must be in the same layers. Other changes must be equal, with those
        that come before them in the lists of their requests, because `change_rows` makes these
        again: see `Group.change_lists`. A longer chunk is a separate group, so that memory is that
        of one prompt. A group of the last step with the same changes is used again, because its
        tensors of changes are ready.
        """
        # What the members of each group share: layers, or changes. A key has its index in this list
        # instead of the value itself, because a change is a mapping and has no hash.
        shared_values: list[Any] = []
        chunks_by_key: dict[GroupKey, list[Chunk]] = {}
        for chunk in self._chunks:
            for change_number, change in enumerate(chunk.changes, 1):
                # a change without layers only moves positions: see `_move_positions`
                if not change["layers"]:
                    continue
                change_list = chunk.changes[:change_number]
                is_of_attention = TARGET_BY_KIND[change["kind"]] == "attention"
                shared_value = change["layers"] if is_of_attention else change_list
                if shared_value not in shared_values:
                    shared_values.append(shared_value)
                separate_row = -1 if chunk.token_count == 1 else chunk.first_row
                key = GroupKey(change_number, shared_values.index(shared_value), separate_row)
                chunks_by_key.setdefault(key, []).append(chunk)
        last_groups = self._groups
        self._groups = {}
        # sorted, because a request's changes are made in the order of its list
        for key, chunks in sorted(chunks_by_key.items()):
            change_lists = [chunk.changes[: key.change_number] for chunk in chunks]
            group = last_groups.get(key)
            if not group or group.change_lists != change_lists:
                group = Group(change_lists)
            group.start_step(chunks, self._runner.device)
            self._groups[key] = group

    def _list_recorded_queries(self) -> None:
        """List recorded queries in blocks with at most WEIGHTS_AT_ONCE weights.

        Phantom keys are not counted, as they are few.
        """
        self._recorded_queries = []
        for chunk in self._chunks:
            queries = chunk.queries
            if not queries:
                continue
            # a query has a weight for each head and each key, of which there are at most `stop`
            most_queries = max(1, WEIGHTS_AT_ONCE // (self._head_count * queries.stop))
            self._recorded_queries += [
                RecordedQueries(
                    chunk, first, min(first + most_queries, queries.stop), self._runner.device
                )
                for first in queries[::most_queries]
            ]

    def _move_positions(self, token_counts: np.ndarray) -> None:
        """Move the positions of tokens that come after a gap of their request: see `find_gap`."""
        # [request, 2] start and size
        gaps = [(0, 0)] * len(token_counts)
        for chunk in self._chunks:
            gaps[chunk.request_index] = find_gap(chunk.changes)
        if any(size for _, size in gaps):
            starts, sizes = copy_to(self._runner.device, np.repeat(gaps, token_counts, axis=0)).T
            # In place: CUDA graphs read the positions at this address.
            positions = self._runner.positions[: len(starts)]
            positions.copy_(add_gap(positions, starts, sizes))

    def _advance_recording(
        self, options: Mapping[str, Any] | None, first_index: int, token_count: int
    ) -> tuple[Recording | None, range]:
        """The recording of a request, and the new queries of a step: see `Recording.take_queries`.

        `options` has the recording's name and sets of queries. None: the request is not recorded,
        or its prompt is complete.
        """
        if not options or options["name"] in self._complete_names:
            return None, range(0)
        recording = self._recordings.setdefault(
            options["name"], Recording(options["sets"], len(self._recorded_layers))
        )
        return recording, recording.take_queries(first_index, token_count)

    def _count_recording_bytes(self) -> int:
        """The most memory that recording may take.

        These are the sums of a step's prompts and their copy, the keys of two prompts in chunks,
        and six copies of weights: see WEIGHTS_AT_ONCE.
        """
        model = self._config.model_config
        recorded_layer_count = len(self._recorded_layers)
        longest_prompt = model.max_model_len
        most_tokens = self._config.scheduler_config.max_num_batched_tokens + longest_prompt
        sum_count = recorded_layer_count * self._set_count * self._head_count * most_tokens
        kv_head_count = model.get_num_kv_heads(self._config.parallel_config)
        key_unit_count = (
            recorded_layer_count * longest_prompt * kv_head_count * model.get_head_size()
        )
        weight_count = max(WEIGHTS_AT_ONCE, self._head_count * longest_prompt)
        float_count = 2 * sum_count + 6 * weight_count
        return int(float_count * torch.float32.itemsize + 2 * key_unit_count * model.dtype.itemsize)

    def check_rows(self) -> None:
        """Raise RuntimeError if rows were not changed or recorded that should have been."""
        if self.expected_rows != self.applied_rows:
            raise RuntimeError(
                f"interventions and recording reached {self.applied_rows} of {self.expected_rows} "
                "rows, the rest skipped them"
            )

    def _open_attention(self, layer: int) -> None:
        """Have a layer's attention computed again for the rows that an intervention changes."""
        implementation = self._attention_module(layer).impl
        original_forward = implementation.forward

        def forward(*arguments: Any, **options: Any) -> Any:
            result = original_forward(*arguments, **options)
            # the arguments are the layer, query, key, value, KV cache and metadata
            metadata = arguments[5]
            # without metadata vLLM only measures its memory, so there is nothing to change
            if metadata is not None:
                self._record_and_attend(layer, arguments[1:4], metadata, options["output"])
            return result

        implementation.forward = forward

    def _attention_module(self, layer: int) -> Any:
        """The attention of a layer in vLLM, after the projections, norms and positions."""
        return self._decoder.layers[layer].self_attn.attn

    def _record_and_attend(
        self, layer: int, states: Sequence[Tensor], metadata: Any, output: Tensor
    ) -> None:
        """Record a layer's attention in this step, and write the changed rows over its output.

        For changed attention, keys and values of a step are first stored by slot. Then all keys and
        values of each sequence are read, and those of phantoms are put after them.

        Args:
            layer: The layer, from 0.
            states: Query, key and value [row, head, unit] of the step.
            metadata: vLLM's tables of the slots in its cache.
            output: [row, ...] The layer's attention, changed in place.
        """
        query, *new_states = states
        if layer in self._recorded_layers:
            for queries in self._recorded_queries:
                self._record(layer, query, new_states[0], queries)
        groups = self._select_groups(layer, "attention")
        # All states are stored before any is read, because a request may read a block of the cache
        # that another one fills in the same step.
        for group in groups:
            self._store_states(layer, new_states, group.rows.flatten(), metadata.slot_mapping)
        for group in groups:
            slots = group.slots(metadata.block_table, self._block_size)
            key, value = (cache[slots] for cache in self._stored_states[layer])
            if group.attention_changes.most_phantoms:
                group.phantoms = group.phantoms or self._pad_phantoms(group.changes, key)
                phantom_key, phantom_value = group.phantoms
                key = torch.cat([key, phantom_key], 1)
                value = torch.cat([value, phantom_value], 1)
            score_factor = self._attention_module(layer).impl.scale
            attention = attend_with_changes(
                query[group.rows], key, value, score_factor, group.indices, group.attention_changes
            )
            changed_rows = attention.view(*group.rows.shape, *output.shape[1:])
            output[group.rows] = changed_rows.to(output.dtype)
            self.applied_rows += group.rows.numel()

    def _store_states(
        self, layer: int, states: Sequence[Tensor], rows: Tensor, slot_mapping: Tensor
    ) -> None:
        """Store the keys and values of these rows in their slots.

        Those of requests without an intervention are not stored: because of its salt, no request
        with an intervention reads their blocks.
        """
        if layer not in self._stored_states:
            slot_count = self._runner.kv_cache_config.num_blocks * self._block_size
            self._stored_states[layer] = [
                tensor.new_zeros(slot_count, *tensor.shape[1:]) for tensor in states
            ]
        for cache, tensor in zip(self._stored_states[layer], states, strict=True):
            cache[slot_mapping[rows]] = tensor[rows]

    def _record(self, layer: int, query: Tensor, key: Tensor, queries: RecordedQueries) -> None:
        """Add the attention of queries of this step, as it is changed, to the recording's sums.

        Args:
            layer: The layer, from 0.
            query: [row, head, unit] The queries of all rows of the step.
            key: [row, head, unit] Their keys.
            queries: The rows and indices of the queries that are added.
        """
        chunk = queries.chunk
        recording = chunk.recording
        assert recording
        # without the keys of generated tokens, if the chunk has any
        key_count = chunk.queries.stop - chunk.first_index
        new_keys = key[chunk.first_row : chunk.first_row + key_count]
        # [1, token, head, unit]; no query sees a key at or after `stop`
        keys = recording.add_keys(layer, new_keys, chunk.first_index)[None, : queries.stop]
        weights = self._recorded_weights(layer, query[None, queries.rows], keys, queries)
        # [head, query, key] without phantoms, which come after the keys of the prompt
        weights = weights[0, ..., : queries.stop].flatten(0, 1)
        sums_with_own_token = queries.sets[SETS_WITHOUT_OWN_TOKEN:] @ weights
        # Query i has the index first + i, so the weights for own tokens are diagonal `first`.
        weights.diagonal(queries.first, dim1=-2, dim2=-1).zero_()
        sums_without_own_token = queries.sets[:SETS_WITHOUT_OWN_TOKEN] @ weights
        # [set, head, key]
        sums = torch.cat([sums_without_own_token, sums_with_own_token], 1).transpose(0, 1)
        recording.add_sums(self._recorded_layers.index(layer), sums)
        self.applied_rows += len(queries.indices)

    def _recorded_weights(
        self, layer: int, query: Tensor, keys: Tensor, queries: RecordedQueries
    ) -> Tensor:
        """The weights of recorded queries, in the shape of those of `changed_weights`.

        They are changed if the layer's attention is. Otherwise a layer may have a sliding window.
        """
        attention = self._attention_module(layer)
        score_factor = attention.impl.scale
        window = attention.sliding_window
        if changes := select_changes(queries.chunk.changes, layer, "attention"):
            # `refuse_to_open` excludes changes in a model with a window shorter than its prompts
            keys = torch.cat([keys, self._pad_phantoms(changes, keys)[0]], 1)
            return changed_weights(
                query,
                keys,
                score_factor,
                queries.indices[None],
                tabulate_changes(changes, keys.device),
            )
        # [query, key] the number of tokens by which the key comes before the query
        distances = queries.indices[:, None] - torch.arange(queries.stop, device=keys.device)
        is_visible = distances >= 0
        if window:
            is_visible &= distances < window
        return plain_weights(query, keys, score_factor, torch.where(is_visible, 0.0, -torch.inf))

    def _write_sums(self) -> None:
        """Have a thread write the sums of complete prompts to a file, while the next step runs.

        Their recordings are forgotten. The sums follow each other in the file, and
        `_memmap_arguments` gets the position of each. The file is in memory and has no name, so it
        ends with this process.
        """
        sums_by_name = {
            name: recording.sums
            for name, recording in self._recordings.items()
            if recording.query_count == recording.token_count
        }
        if not sums_by_name:
            return
        # a preempted request may come again, and is not recorded again
        self._complete_names.update(sums_by_name)
        file = open(os.memfd_create("attention"), "wb")
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        # the number of bytes before the next sums in the file
        offset = 0
        for name, sums in sums_by_name.items():
            del self._recordings[name]
            self._memmap_arguments[name] = path, "float32", "r", offset, tuple(sums.shape)
            offset += sums.nbytes
        # One copy; from a GPU it goes to pinned memory and ends later, at the event `copy_end`.
        all_sums = torch.cat([sums.flatten() for sums in sums_by_name.values()])
        sums_copy = all_sums.to("cpu", non_blocking=True)
        copy_end = torch.cuda.current_stream().record_event() if sums_copy.is_pinned() else None

        def write() -> BufferedWriter:
            if copy_end:
                copy_end.synchronize()
            sums_copy.numpy().tofile(file)
            return file

        self._writes.append(self._writer.submit(write))

    def take_attention(self) -> dict[str, Any]:
        """Where the sums [layer, set, head, key] of all complete prompts are, until the next call.

        The arguments of `numpy.memmap`, by the recordings' names.
        """
        self._write_sums()
        # kept open until the next call, because the path of a closed file leads nowhere
        self._files = [write.result() for write in self._writes]
        self._writes.clear()
        locations = self._memmap_arguments
        self._memmap_arguments = {}
        return locations

    def _pad_phantoms(self, changes: Sequence[Change], key: Tensor) -> Sequence[Tensor]:
        """Phantom keys and values [request, token, head, unit], padded to the longest filler.

        Each change is that of a request. `key` gives the type, the device, and the numbers of heads
        and units. `FillerIntervention.resolve` says which fillers have phantoms.
        """
        fillers = [(change.get("start", 0), tuple(change.get("phantom", ()))) for change in changes]
        # each filler is padded once, because many requests have the same one
        distinct_fillers = [*dict.fromkeys(fillers)]
        indices = copy_to(key.device, [distinct_fillers.index(filler) for filler in fillers])
        no_states = key.new_empty(0, *key.shape[2:])
        states_by_filler = [
            self._phantom_states.get(filler, (no_states, no_states)) for filler in distinct_fillers
        ]
        # from a pair for each filler to the keys of all fillers, and the values of all
        keys_and_values = map(list, zip(*states_by_filler, strict=True))
        return [pad_sequence(states, batch_first=True)[indices] for states in keys_and_values]

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of a layer, times `up`, over their rows.

        Args:
            gate_up: [row, 2 x unit] The inputs of the activation, and the factors of its outputs.
            out: [row, unit] The unchanged products, changed in place.
            layer: The layer, from 0.
        """
        for group in self._select_groups(layer, "activations"):
            rows = group.rows.flatten()
            gate, up = gate_up[rows].chunk(2, -1)
            activations = self._activation(gate)
            positions = self._runner.positions[rows]
            # all requests of such a group have the same changes
            for change in select_changes(group.change_lists[0], layer, "activations"):
                activations = change_activations(activations, positions, change)
            out[rows] = activations * up
            self.applied_rows += len(rows)

    def change_outputs(self, out: Tensor, layer: int) -> None:
        """Write the changed outputs [row, unit] of a layer's MLP over their rows.

        The pass of `_compute_sources_and_phantoms` changes nothing, and the last output is stored.
        """
        if self._new_outputs is not None:
            self._new_outputs[layer] = out[-1].clone()
        for group in self._select_groups(layer, "outputs"):
            # all requests of such a group have the same change
            rows = group.rows.flatten()
            change = group.changes[0]
            source = self._outputs_by_source[tuple(change["source"])][layer]
            is_changed = torch.isin(group.indices.flatten(), copy_to(out.device, change["tokens"]))
            out[rows] = change_outputs(out[rows], is_changed, change, source)
            self.applied_rows += len(rows)

    def _compute_sources_and_phantoms(self) -> None:
        """Compute the MLP outputs and phantoms that changes of this step need for the first time.

        The outputs are those of the last token of a source: the first token of a prompt, or a
        beginning whose states may be cached or in another chunk. Phantoms are not in the prompt. So
        the tokens of a source or of a phantom are computed by themselves, without interventions and
        without vLLM's cache. Either way both kinds of states are stored: the MLP outputs in
        `_outputs_by_source`, and the first layer's keys and values in `_phantom_states`.
        """
        from vllm.forward_context import set_forward_context

        for change in chain.from_iterable(chunk.changes for chunk in self._chunks):
            token_ids = tuple(change.get("source") or change.get("phantom", ()))
            start = change.get("start", 0)
            # the change needs none, or they were computed in an earlier step
            if not token_ids or (start, token_ids) in self._phantom_states:
                continue
            # Without groups nothing is changed. `change_outputs` fills `_new_outputs` if it is set.
            self._new_outputs = {}
            self._groups = {}
            ids = copy_to(self._runner.device, token_ids)
            decoder_layers = self._decoder.layers
            for decoder_layer in decoder_layers:
                decoder_layer.self_attn.attn = PlainAttention(decoder_layer.self_attn.attn)
            # the whole model is called, because the arguments of its layers differ by family
            with set_forward_context(None, self._config, skip_compiled=True):
                self._model(ids, start + torch.arange(len(ids), device=ids.device))
            # Only Layer 1 can have phantoms: the inputs of later layers depend on other tokens.
            self._phantom_states[start, token_ids] = decoder_layers[0].self_attn.attn.states
            for decoder_layer in decoder_layers:
                decoder_layer.self_attn.attn = decoder_layer.self_attn.attn.original
            self._outputs_by_source[token_ids] = self._new_outputs
            self._new_outputs = None

    def _select_groups(self, layer: int, target: str) -> list[Group]:
        """The groups whose change is in this layer, and of this target: one of TARGET_BY_KIND.

        The first request's change decides, as all requests of a group share target and layers.
        """
        return [
            group
            for group in self._groups.values()
            if select_changes(group.changes[:1], layer, target)
        ]
