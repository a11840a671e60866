"""Interventions in vLLM's V2 model runner: see README.md. vLLM imports the worker by its name."""

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import chain, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.v2_hooks.attention_kernel import (
    FIRST_RANGE,
    LARGEST_HEAD,
    RANGE_COLUMNS,
    LayerChanges,
    change_attention,
    tabulate_row,
)
from harness.constants import JsonObject
from harness.engines.engine_processes import OPERATION, PLUGIN
from harness.engines.interventions.arithmetic import (
    Change,
    add_gap,
    change_activations,
    change_outputs,
    copy_to,
)
from harness.engines.interventions.open_layers import CACHE_OPERATIONS
from harness.engines.interventions.open_worker import OpenWorker
from harness.engines.interventions.vllm_worker import WorkerInterventions
from harness.experiment.intervention_settings import TARGETS, find_gap

VERSION = "0.32"
"""The vLLM whose V2 runner has these hooks."""
VALUES_OF_PROMPTS = {"layers", "tokens", "source"}
"""Values of a change by prompt or layer; the others are those of its settings."""


def read_pages(cache: Tensor, units: int) -> Sequence[Tensor]:
    """Keys and values [block, token, head, unit] of a cache [block, head, token, 2 x unit]."""
    return cache.transpose(1, 2).split(units, -1)


def read_cpu_pages(cache: Tensor, units: int) -> Sequence[Tensor]:
    """As `read_pages`, of vLLM's CPU backend: a block's keys [unit, token], then its values."""
    blocks, heads, page, _ = cache.shape
    key, value = cache.view(blocks, heads, 2, page * units).unbind(2)
    key = key.view(blocks, heads, units, page).permute(0, 3, 1, 2)
    return key, value.view(blocks, heads, page, units).transpose(1, 2)


READERS = {"FLASH_ATTN": read_pages, "TRITON_ATTN": read_pages, "CPU_ATTN": read_cpu_pages}
"""How the caches of vLLM's attention backends are read."""


def find_program(changes: Sequence[Change], layer: int, target: str) -> list[JsonObject]:
    """The settings of the changes of a layer's activations or outputs, in their order."""
    return [
        {"index": index} | {name: change[name] for name in change.keys() - VALUES_OF_PROMPTS}
        for index, change in enumerate(changes)
        if layer in change["layers"] and TARGETS[change["kind"]] == target
    ]


def open_layers(
    options: JsonObject, layers: JsonObject, interventions: Sequence[Sequence[Change]]
) -> None:
    """Fill in the engine arguments for these layers; tables have room for these interventions.

    Only a function of the user splits graphs, so that full graphs cannot be used.
    """
    changes = [*chain.from_iterable(interventions)]
    programs: dict[str, list[list[JsonObject]]] = {"activations": [[]], "outputs": [[]]}
    for target, distinct in programs.items():
        for layer, request_changes in product(layers[target], interventions):
            program = find_program(request_changes, layer, target)
            if program not in distinct:
                distinct.append(program)
    sizes = {
        "programs": programs,
        "longest_list": max(map(len, interventions)),
        "ranges": max(len(change.get("weights", ())) for change in changes),
        "phantom_size": max(len(change.get("phantom", ())) for change in changes),
    }
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    options["worker_cls"] = f"{__name__}.V2Worker"
    options["additional_config"] = {PLUGIN: layers | sizes}
    if any(change["kind"] == "function" for change in changes):
        from vllm.config import CompilationConfig

        operations = [*CompilationConfig._attention_ops, *CACHE_OPERATIONS, OPERATION]
        options["compilation_config"] = {"splitting_ops": operations, "cudagraph_mode": "PIECEWISE"}


class V2Interventions(WorkerInterventions):
    """Interventions whose settings are rows of tables on the device, one for each request.

    A row is written when its request arrives, which is also after a preemption. A step only says
    which rows its requests and tokens have; that of padding is the last one, which is empty.
    """

    def __init__(self, worker: Any, layers: Mapping[str, Any]) -> None:
        self._sizes = layers
        super().__init__(worker, layers)

    def _hook_runner(self) -> None:
        runner, sizes, model = self._runner, self._sizes, self._config.model_config
        state = getattr(runner, "model_state", None)
        if not hasattr(state, "preprocess_state"):
            raise RuntimeError(
                f"vLLM {version('vllm')} has no ModelState.preprocess_state, which these hooks "
                f"need: install vLLM {VERSION}"
            )
        for layer in sizes["attention"]:
            self._refuse_attention(layer, self._attention(layer))
        if getattr(state, "rope_state", None):
            raise RuntimeError("these hooks do not support M-RoPE positions")
        self._add_request, self._preprocess_state = state.add_request, state.preprocess_state
        state.add_request, state.preprocess_state = self.add_request, self.preprocess_state
        self._padding = runner.max_num_reqs
        rows, layers, device = self._padding + 1, self._layer_count, runner.device

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._row_layers = np.zeros(rows, np.int64)
        """The number of layers and targets that a row changes."""
        self._slots = zeros(self._padding) + self._padding
        self._token_slots = zeros(runner.max_num_tokens) + self._padding
        self._indices = zeros(runner.max_num_tokens)
        self._gaps = zeros(2, rows)
        columns = FIRST_RANGE + RANGE_COLUMNS * sizes["ranges"]
        self._table = zeros(layers, rows, columns, dtype=torch.float32)
        keys = model.get_num_kv_heads(self._config.parallel_config), model.get_head_size()
        self._phantom_rows = zeros(2, rows, sizes["phantom_size"], *keys, dtype=model.dtype)
        self._programs = {target: zeros(layers, rows) for target in sizes["programs"]}
        lists = sizes["longest_list"] if len(sizes["programs"]["outputs"]) > 1 else 0
        self._is_changed = zeros(lists, rows, model.max_model_len, dtype=torch.bool)
        self._source_rows = zeros(lists, rows, layers, model.get_hidden_size(), dtype=model.dtype)
        self._count = zeros(1)
        self._chunks = [SimpleNamespace(changes=())]

    @staticmethod
    def _refuse_attention(layer: int, attention: Any) -> None:
        """Raise RuntimeError if the kernel cannot read a layer's cache, or its heads are larger."""
        backend, dtype = attention.attn_backend.get_name(), attention.kv_cache_torch_dtype
        obstacle = None
        if backend not in READERS:
            obstacle = f"caches of {backend}, only of {', '.join(READERS)}"
        elif backend == "CPU_ATTN" and dtype != torch.float32:
            obstacle = f"caches of {backend} in {dtype}, only in float32"
        elif dtype.itemsize == 1:
            obstacle = f"caches of {dtype}"
        elif attention.head_size > LARGEST_HEAD:
            obstacle = f"heads of {attention.head_size} units, only of up to {LARGEST_HEAD}"
        if obstacle:
            raise RuntimeError(f"layer {layer + 1}: these hooks do not support {obstacle}")

    def reserve_memory(self, available: int) -> int:
        """All bytes remain for vLLM's cache, because nothing is stored twice."""
        return available

    def add_request(self, slot: int, request: Any) -> None:
        """Write the row of a request."""
        self._add_request(slot, request)
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        changes = extra.get(PLUGIN, ())
        self._chunks = [SimpleNamespace(changes=changes)]
        self._compute_sources()
        device, layers = self._runner.device, range(self._layer_count)
        table = torch.zeros(self._table[:, slot].shape)
        for index, change in enumerate(changes):
            target, changed_layers = TARGETS[change["kind"]], change["layers"]
            if target == "attention" and changed_layers:
                row = tabulate_row(change)
                table[changed_layers, : len(row)] = row
            if phantom := tuple(change.get("phantom", ())):
                states = torch.stack([*self._phantoms[change["start"], phantom]])
                self._phantom_rows[:, slot, : len(phantom)] = states
            if target == "outputs":
                self._is_changed[index, slot] = False
                self._is_changed[index, slot, copy_to(device, change["tokens"])] = True
                sources = self._sources[tuple(change["source"])]
                for layer in changed_layers:
                    self._source_rows[index, slot, layer] = sources[layer]
        self._table[:, slot] = copy_to(device, table)
        self._gaps[:, slot] = copy_to(device, find_gap(changes))
        self._row_layers[slot] = int(table[:, 0].sum())
        for target, programs in self._sizes["programs"].items():
            numbers = [programs.index(find_program(changes, layer, target)) for layer in layers]
            self._programs[target][:, slot] = copy_to(device, numbers)
            self._row_layers[slot] += np.count_nonzero(numbers)

    def preprocess_state(self, batch: Any, *arguments: Any) -> None:
        """Say which rows a step has, and move positions after gaps.

        vLLM has computed the slots of the cache from the positions before.
        """
        self._preprocess_state(batch, *arguments)
        slots, starts = batch.idx_mapping, batch.query_start_loc[: batch.num_reqs + 1]
        self._slots.fill_(self._padding)[: len(slots)] = slots
        token_slots = slots.repeat_interleave(starts.diff(), output_size=batch.num_tokens)
        self._token_slots.fill_(self._padding)[: batch.num_tokens] = token_slots
        # in place: CUDA graphs read the positions at this address
        positions = batch.positions[: batch.num_tokens]
        self._indices[: batch.num_tokens] = positions
        positions.copy_(add_gap(positions, *self._gaps[:, token_slots]))
        row_layers = self._row_layers[batch.idx_mapping_np]
        self.expected += int((row_layers * batch.num_scheduled_tokens).sum())

    def check(self) -> None:
        """Raise RuntimeError if rows were not changed that should have been."""
        self.applied = int(self._count)
        super().check()

    def _attend(self, layer: int, states: Sequence[Tensor], metadata: Any, output: Tensor) -> None:
        attention = self._attention(layer)
        units = attention.head_size
        cache = READERS[attention.attn_backend.get_name()](attention.kv_cache, units)
        changes = LayerChanges(self._table[layer], self._phantom_rows, self._count, self._slots)
        query, output = (rows.view(len(rows), -1, units) for rows in (states[0], output))
        change_attention(query, cache, output, attention.impl.scale, changes, metadata)

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of a layer, times `up`, over their rows."""
        positions = self._runner.input_buffers.positions
        for changes, is_changed in self._select_rows("activations", layer, len(out)):
            rows: Any = slice(len(out))
            if any(change["kind"] == "function" for change in changes):
                rows = is_changed.nonzero().flatten()
            gate, up = gate_up[rows].chunk(2, -1)
            activations = self._activation(gate)
            for change in changes:
                activations = change_activations(activations, positions[: len(out)][rows], change)
            out[rows] = torch.where(is_changed[rows, None], activations * up, out[rows])

    def change_outputs(self, out: Tensor, layer: int) -> None:
        """Write the changed outputs of a layer's MLP over their rows."""
        if self._new_source is not None:
            self._new_source[layer] = out[-1].clone()
        slots, indices = self._token_slots[: len(out)], self._indices[: len(out)]
        for changes, is_changed in self._select_rows("outputs", layer, len(out)):
            outputs = out
            for change in changes:
                is_token = is_changed & self._is_changed[change["index"], slots, indices]
                source = self._source_rows[change["index"], slots, layer]
                outputs = change_outputs(outputs, is_token, change, source)
            out.copy_(outputs)

    def _select_rows(
        self, target: str, layer: int, row_count: int
    ) -> Iterator[tuple[list[JsonObject], Tensor]]:
        """The lists of changes of a layer's target, and whether each row of the step has them."""
        if self._new_source is not None:
            return
        numbers = self._programs[target][layer, self._token_slots[:row_count]]
        for number, changes in enumerate(self._sizes["programs"][target][1:], 1):
            yield changes, numbers == number
        self._count += (numbers > 0).sum()


class V2Worker(OpenWorker):
    """A worker whose V2 runner has the interventions."""

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Load the model and open its layers."""
        super(OpenWorker, self).load_model(*arguments, **options)
        self._interventions = V2Interventions(self, self.vllm_config.additional_config[PLUGIN])
