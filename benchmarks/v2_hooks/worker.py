"""Interventions in vLLM's V2 model runner: see README.md. vLLM imports the worker by its name."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from itertools import chain
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
from harness.engines.engine_processes import CHANGE_OPERATION, PLUGIN_NAME, WorkerFacts
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
from harness.experiment.intervention_settings import TARGET_BY_KIND, find_gap

VERSION = "0.32"
"""The vLLM whose V2 runner has these hooks."""
SETTINGS = ("kind", "layers", "from", "seed", "share", "sham", "file", "arguments")
"""Values of changes that are the same in all prompts of a condition."""


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


def refuse_attention(layer: int, attention: Any) -> None:
    """Raise RuntimeError if the kernel cannot read a layer's cache, or its heads are larger."""
    backend, dtype = attention.attn_backend.get_name(), attention.kv_cache_torch_dtype
    smallest = 4 if backend == "CPU_ATTN" else 2  # a CPU has other orders for smaller numbers
    obstacles = {
        f"caches of {backend}": backend not in READERS,
        f"caches of {backend} in {dtype}": dtype.itemsize < smallest,
        f"heads of {attention.head_size} units": attention.head_size > LARGEST_HEAD,
    }
    for obstacle, exists in obstacles.items():
        if exists:
            raise RuntimeError(f"layer {layer + 1}: these hooks do not support {obstacle}")


def find_program(changes: Sequence[Change]) -> list[JsonObject]:
    """What all prompts of a condition share of their changes."""
    return [{name: change[name] for name in SETTINGS if name in change} for change in changes]


def open_layers(
    options: JsonObject, layers: JsonObject, interventions: Sequence[Sequence[Change]]
) -> None:
    """Fill in the engine arguments for these layers; tables have room for these interventions.

    Only a function of the user splits graphs, so that full graphs cannot be used.
    """
    changes = [*chain.from_iterable(interventions)]
    programs: list[list[JsonObject]] = [[]]
    for program in map(find_program, interventions):
        if program not in programs:
            programs.append(program)
    sizes = {
        "programs": programs,
        "ranges": max(len(change.get("weights", ())) for change in changes),
        "phantoms": max(len(change.get("phantom", ())) for change in changes),
    }
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    options["worker_cls"] = f"{__name__}.V2Worker"
    options["additional_config"] = {PLUGIN_NAME: layers | sizes}
    if any(change["kind"] == "function" for change in changes):
        from vllm.config import CompilationConfig

        operations = [*CompilationConfig._attention_ops, *CACHE_OPERATIONS, CHANGE_OPERATION]
        options["compilation_config"] = {"splitting_ops": operations, "cudagraph_mode": "PIECEWISE"}


class V2Interventions(WorkerInterventions):
    """Interventions whose settings are rows of tables on the device, one for each request.

    A row is written when its request arrives, which is also after a preemption. A step only says
    which rows its requests and tokens have; that of padding is the last one, which is empty.
    """

    def _hook_runner(self) -> None:
        runner, model = self._runner, self._config.model_config
        sizes = self._config.additional_config[PLUGIN_NAME]
        state = getattr(runner, "model_state", None)
        if not hasattr(state, "preprocess_state"):
            raise RuntimeError(
                f"the model runner of vLLM {version('vllm')} has no ModelState.preprocess_state, "
                f"which these hooks need: install vLLM {VERSION}, and set "
                "VLLM_USE_V2_MODEL_RUNNER=1"
            )
        unsupported = {
            "M-RoPE positions": getattr(state, "rope_state", None),
            "recorded attention": sizes.get("recorded"),
        }
        for feature, exists in unsupported.items():
            if exists:
                raise RuntimeError(f"these hooks do not support {feature}")
        for layer in sizes["attention"]:
            refuse_attention(layer, self._attention_module(layer))
        self._add_request, self._preprocess_state = state.add_request, state.preprocess_state
        state.add_request, state.preprocess_state = self.add_request, self.preprocess_state
        self._padding = runner.max_num_reqs
        rows, layers = self._padding + 1, self._layer_count
        self._layer_counts = np.zeros(rows, np.int64)
        zeros = partial(torch.zeros, device=runner.device)
        count = partial(zeros, dtype=torch.long)
        self._slots = count(self._padding) + self._padding
        self._token_slots = count(runner.max_num_tokens) + self._padding
        self._indices, self.applied_rows = count(runner.max_num_tokens), count(())
        self._programs, self._program_numbers = sizes["programs"], count(rows)
        self._gaps = count(2, rows)
        self._table = zeros(layers, rows, FIRST_RANGE + RANGE_COLUMNS * sizes["ranges"])
        states = partial(zeros, dtype=model.dtype)
        heads = model.get_num_kv_heads(self._config.parallel_config)
        self._phantom_rows = states(2, rows, sizes["phantoms"], heads, model.get_head_size())
        outputs = max(map(len, self._programs)) if sizes["outputs"] else 0
        self._is_token = zeros(outputs, rows, model.max_model_len, dtype=torch.bool)
        self._source_rows = states(outputs, rows, layers, model.get_hidden_size())
        self._chunks = [SimpleNamespace(changes=())]

    def reserve_memory(self, available: int) -> int:
        """All bytes remain for vLLM's cache, because nothing is stored twice."""
        return available

    def add_request(self, slot: int, request: Any) -> None:
        """Write the row of a request."""
        self._add_request(slot, request)
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        changes, device = extra.get(PLUGIN_NAME, ()), self._runner.device
        self._chunks = [SimpleNamespace(changes=changes)]
        self._compute_sources()
        self._table[:, slot] = 0
        self._layer_counts[slot] = sum(len(change["layers"]) for change in changes)
        for index, change in enumerate(changes):
            layers = change["layers"]
            if layers and TARGET_BY_KIND[change["kind"]] == "attention":
                row = tabulate_row(change)
                self._table[layers, slot, : len(row)] = copy_to(device, row)
            if phantom := tuple(change.get("phantom", ())):
                states = torch.stack([*self._phantom_states[change["start"], phantom]])
                self._phantom_rows[:, slot, : len(phantom)] = states
            if change["kind"] == "mlp_output":
                self._is_token[index, slot] = False
                self._is_token[index, slot, copy_to(device, change["tokens"])] = True
                sources = self._outputs_by_source[tuple(change["source"])]
                for layer in layers:
                    self._source_rows[index, slot, layer] = sources[layer]
        self._gaps[:, slot] = copy_to(device, find_gap(changes))
        self._program_numbers[slot] = self._programs.index(find_program(changes))

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
        layer_counts = self._layer_counts[batch.idx_mapping_np]
        self.expected_rows += int(layer_counts @ batch.num_scheduled_tokens)

    def _record_and_attend(
        self, layer: int, states: Sequence[Tensor], metadata: Any, output: Tensor
    ) -> None:
        attention = self._attention_module(layer)
        units = attention.head_size
        cache = READERS[attention.attn_backend.get_name()](attention.kv_cache, units)
        changes = LayerChanges(
            self._table[layer], self._phantom_rows, self.applied_rows, self._slots
        )
        query, output = (rows.view(len(rows), -1, units) for rows in (states[0], output))
        change_attention(query, cache, output, attention.impl.scale, changes, metadata)

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of a layer, times `up`, over their rows."""
        positions = self._runner.input_buffers.positions[: len(out)]
        for changes, is_changed in self._find_rows("activations", layer, len(out)):
            rows: Any = slice(None)
            if any(change["kind"] == "function" for change in changes.values()):
                rows = is_changed.nonzero().flatten()
            gate, up = gate_up[rows].chunk(2, -1)
            activations = self._activation(gate)
            for change in changes.values():
                activations = change_activations(activations, positions[rows], change)
            out[rows] = torch.where(is_changed[rows, None], activations * up, out[rows])

    def change_outputs(self, out: Tensor, layer: int) -> None:
        """Write the changed outputs of a layer's MLP over their rows."""
        if self._new_outputs is not None:
            self._new_outputs[layer] = out[-1].clone()
        slots, indices = self._token_slots[: len(out)], self._indices[: len(out)]
        for changes, is_changed in self._find_rows("outputs", layer, len(out)):
            for index, change in changes.items():
                is_token = is_changed & self._is_token[index, slots, indices]
                source = self._source_rows[index, slots, layer]
                out.copy_(change_outputs(out, is_token, change, source))

    def _find_rows(
        self, target: str, layer: int, row_count: int
    ) -> Iterator[tuple[dict[int, JsonObject], Tensor]]:
        """The changes that a request can have of a layer's target, and whether each row has them.

        All rows are computed, so that a CUDA graph can contain it.
        """
        if self._new_outputs is not None:
            return
        numbers = self._program_numbers[self._token_slots[:row_count]]
        for number, program in enumerate(self._programs):
            changes = {
                index: change
                for index, change in enumerate(program)
                if layer in change["layers"] and TARGET_BY_KIND[change["kind"]] == target
            }
            if changes:
                is_changed = numbers == number
                self.applied_rows += len(changes) * is_changed.sum()
                yield changes, is_changed


class V2Worker(OpenWorker, WorkerFacts):  # a direct base, which vLLM does not add again
    """A worker whose V2 runner has the interventions."""

    def load_model(self, *arguments: Any, **options: Any) -> None:
        """Load the model and open its layers."""
        super(OpenWorker, self).load_model(*arguments, **options)
        self._interventions = V2Interventions(self, self.vllm_config.additional_config[PLUGIN_NAME])
