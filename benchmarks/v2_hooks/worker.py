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

from benchmarks.v2_hooks.attention_kernel import LARGEST_HEAD, change_attention, tabulate_row
from harness.constants import JsonObject
from harness.engines.engine_options import compilation_settings
from harness.engines.engine_processes import PLUGIN_NAME, WorkerFacts
from harness.engines.interventions import open_layers as v1_layers
from harness.engines.interventions.arithmetic import (
    Change,
    add_gap,
    change_activations,
    change_outputs,
    copy_to,
    select_changes,
)
from harness.engines.interventions.open_worker import OpenWorker
from harness.engines.interventions.vllm_worker import WorkerInterventions
from harness.experiment.intervention_settings import TARGET_BY_KIND, find_gap

PROMPT_KEYS = "start size phantom weights tokens source".split()
"""Values of changes that differ between the prompts of a condition."""
BACKENDS = ("FLASH_ATTN", "TRITON_ATTN", "CPU_ATTN")
"""vLLM's attention backends whose caches `read_pages` can read."""


def read_pages(attention: Any) -> Sequence[Tensor]:
    """Keys and values [block, token, head, unit] of a layer's cache."""
    cache, units = attention.kv_cache, attention.head_size
    if attention.attn_backend.get_name() != "CPU_ATTN":
        # [block, head, token, 2 x unit]
        return cache.transpose(1, 2).split(units, -1)
    # in a block and head first keys [unit, token], then values [token, unit]
    sizes = cache.shape[:2]
    key, value = cache.view(*sizes, 2, units, -1).unbind(2)
    return key.permute(0, 3, 1, 2), value.view(*sizes, -1, units).transpose(1, 2)


def refuse(obstacles: JsonObject) -> None:
    """Raise RuntimeError if one of the obstacles exists."""
    for obstacle, exists in obstacles.items():
        if exists:
            raise RuntimeError(f"these hooks do not support {obstacle}")


def refuse_attention(attention: Any) -> None:
    """Raise RuntimeError if the kernel cannot read a layer's cache, or its heads are larger."""
    backend, dtype = attention.attn_backend.get_name(), attention.kv_cache_torch_dtype
    refuse(
        {
            f"caches of {backend}": backend not in BACKENDS,
            # a CPU has another order for smaller numbers
            f"caches of {backend} in {dtype}": dtype.itemsize < (4 if backend == "CPU_ATTN" else 2),
            f"heads of {attention.head_size} units": attention.head_size > LARGEST_HEAD,
        }
    )


def find_program(changes: Sequence[Change]) -> list[JsonObject]:
    """What all prompts of a condition share of their changes."""
    return [
        {"index": index} | {name: change[name] for name in change if name not in PROMPT_KEYS}
        for index, change in enumerate(changes)
    ]


def open_layers(
    options: JsonObject, layers: JsonObject, interventions: Sequence[Sequence[Change]]
) -> None:
    """Fill in the engine arguments for these layers; tables have room for these interventions.

    Only a function of the user splits graphs, so that full graphs cannot be used.

    Raises:
        ConfigError: an argument or the architecture excludes the interventions.
    """
    v1_layers.refuse_to_open({**options, "pretrained": options["model"]}, layers)
    changes = [{}, *chain.from_iterable(interventions)]
    programs = {repr(program): program for program in map(find_program, [[], *interventions])}
    tables = {
        "programs": [*programs.values()],
        "columns": max(len(tabulate_row(change)) for change in changes),
        "phantoms": max(len(change.get("phantom", ())) for change in changes),
    }
    compilation = compilation_settings(options)
    v1_layers.add_open_layers(options, layers | tables)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    options["worker_cls"] = f"{__name__}.V2Worker"
    if any(change.get("kind") == "function" for change in changes):
        compilation = options.get("compilation_config", {}) | {"cudagraph_mode": "PIECEWISE"}
    options["compilation_config"] = compilation


class V2Interventions(WorkerInterventions):
    """Interventions whose settings are rows of tables on the device, one for each request.

    A row is written when its request arrives, which is also after a preemption. A step only says
    which rows its tokens have; that of padding is the first one, which is empty.
    """

    def _hook_runner(self) -> None:
        runner, model = self._runner, self._config.model_config
        tables = self._config.additional_config[PLUGIN_NAME]
        state = getattr(runner, "model_state", None)
        lack = f"this runner of vLLM {version('vllm')}: vLLM 0.32 has V2, with `preprocess_state`"
        refuse(
            {
                lack: not hasattr(state, "preprocess_state"),
                "M-RoPE positions": getattr(state, "rope_state", None),
                "recorded attention": tables.get("recorded"),
            }
        )
        for layer in tables["attention"]:
            refuse_attention(self._attention_module(layer))
        state.add_request = partial(self.add_request, state.add_request)
        state.preprocess_state = partial(self.preprocess_state, state.preprocess_state)
        rows = runner.max_num_reqs + 1
        self._programs, self._layer_counts = tables["programs"], np.zeros(rows, int)
        zeros = partial(torch.zeros, device=runner.device)
        count = partial(zeros, dtype=torch.long)
        # requests without tokens, which pad full graphs, begin after the last token
        self._token_rows, self._indices = count(2, runner.max_num_tokens + 1)
        # [3, row] the number of the program; start and size of the gap
        self._numbers, self._applied_rows = count(3, rows), count(())
        # on a CPU vLLM replaces this class and this method by some that do nothing
        self._scheduled, self._copied = 0, torch.cuda.Event()
        self.applied_rows: Any = torch.tensor(0).pin_memory()
        self._table = zeros(self._layer_count, rows, tables["columns"])
        states = partial(zeros, dtype=model.dtype)
        heads = model.get_num_kv_heads(self._config.parallel_config)
        self._phantom_rows = states(2, rows, tables["phantoms"], heads, model.get_head_size())
        outputs = max(map(len, self._programs)) if tables["outputs"] else 0
        self._is_token = zeros(outputs, rows, model.max_model_len, dtype=torch.bool)
        self._source_rows = states(outputs, rows, self._layer_count, model.get_hidden_size())

    def reserve_memory(self, available: int) -> int:
        """All bytes remain for vLLM's cache, because nothing is stored twice."""
        return available

    def add_request(self, original: Any, slot: int, request: Any) -> None:
        """Call the original method, and write the row of a request.

        Raises:
            RuntimeError: the engine was not started for its intervention.
        """
        original(slot, request)
        changes = (request.sampling_params.extra_args or {}).get(PLUGIN_NAME, ())
        device, row, program = self._runner.device, slot + 1, find_program(changes)
        is_unknown = program not in self._programs
        refuse({"interventions that the engine was not started for": is_unknown})
        numbers = self._programs.index(program), *find_gap(changes)
        self._numbers[:, row] = copy_to(device, numbers)
        self._chunks = [SimpleNamespace(changes=changes)]
        self._compute_sources_and_phantoms()
        self._table[:, row] = 0
        self._layer_counts[row] = sum(len(change["layers"]) for change in changes)
        for index, change in enumerate(changes):
            layers = change["layers"]
            if layers and TARGET_BY_KIND[change["kind"]] == "attention":
                columns = tabulate_row(change)
                self._table[layers, row, : len(columns)] = copy_to(device, columns)
            if phantom := tuple(change.get("phantom", ())):
                states = torch.stack(self._phantom_states[change["start"], phantom])
                self._phantom_rows[:, row, : len(phantom)] = states
            if change["kind"] == "mlp_output":
                self._is_token[index, row] = False
                self._is_token[index, row, copy_to(device, change["tokens"])] = True
                sources = self._outputs_by_source[tuple(change["source"])]
                for layer in layers:
                    self._source_rows[index, row, layer] = sources[layer]

    def preprocess_state(self, original: Any, batch: Any, *arguments: Any) -> None:
        """Call the original method, say which rows a step has, and move positions after gaps.

        vLLM has computed the slots of the cache from the positions before.
        """
        original(batch, *arguments)
        self._compare_counts()
        count, counts = batch.num_tokens, batch.query_start_loc[: batch.num_reqs + 1].diff()
        rows = (batch.idx_mapping + 1).repeat_interleave(counts, output_size=count)
        # in place: CUDA graphs read these numbers and the positions at their addresses
        self._token_rows.zero_()[:count] = rows
        positions = batch.positions[:count]
        self._indices[:count] = positions
        positions.copy_(add_gap(positions, *self._numbers[1:, rows]))
        layer_counts = self._layer_counts[batch.idx_mapping_np + 1]
        self._scheduled += layer_counts @ batch.num_scheduled_tokens

    def _compare_counts(self) -> None:
        """Compare the counts of the last call, and copy those of now for the next call.

        A step lies between two calls, so the copy has ended and nothing waits for the device.
        """
        self._copied.synchronize()
        super().check_rows()
        self.expected_rows = self._scheduled
        self.applied_rows.copy_(self._applied_rows, non_blocking=True)
        self._copied.record()

    def check_rows(self) -> None:
        """As that of the base class, after waiting for the device."""
        self._compare_counts()
        self._compare_counts()

    def _record_and_attend(
        self, layer: int, states: Sequence[Tensor], metadata: Any, output: Tensor
    ) -> None:
        attention = self._attention_module(layer)
        changes = self._table[layer], self._phantom_rows, self._token_rows, self._applied_rows
        change_attention(
            states[0], read_pages(attention), output, attention.impl.scale, changes, metadata
        )

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of a layer, times `up`, over their rows."""
        positions = self._runner.input_buffers.positions[: len(out)]
        for changes, is_changed in self._find_rows("activations", layer, len(out)):
            rows = slice(None)
            if any(change["kind"] == "function" for change in changes):
                rows = is_changed.nonzero().flatten()
            gate, up = gate_up[rows].chunk(2, -1)
            activations = self._activation(gate)
            for change in changes:
                activations = change_activations(activations, positions[rows], change)
            out[rows] = torch.where(is_changed[rows, None], activations * up, out[rows])

    def change_outputs(self, out: Tensor, layer: int) -> None:
        """Write the changed outputs of a layer's MLP over their rows."""
        super().change_outputs(out, layer)
        rows, indices = self._token_rows[: len(out)], self._indices[: len(out)]
        for changes, is_changed in self._find_rows("outputs", layer, len(out)):
            for change in changes:
                is_token = is_changed & self._is_token[change["index"], rows, indices]
                source = self._source_rows[change["index"], rows, layer]
                out.copy_(change_outputs(out, is_token, change, source))

    def _find_rows(
        self, target: str, layer: int, row_count: int
    ) -> Iterator[tuple[list[Change], Tensor]]:
        """The changes that a request can have of a layer's target, and whether each row has them.

        All rows are computed, so that a CUDA graph can contain it.
        """
        if self._new_outputs is not None:
            return
        numbers = self._numbers[0, self._token_rows[:row_count]]
        for number, program in enumerate(self._programs):
            if changes := select_changes(program, layer, target):
                is_changed = numbers == number
                self._applied_rows += len(changes) * is_changed.sum()
                yield changes, is_changed


class V2Worker(OpenWorker, WorkerFacts):
    """A worker whose V2 runner has the interventions.

    It names `WorkerFacts` again, because vLLM looks for a worker's extension in its own bases only.
    """

    make_interventions = V2Interventions
