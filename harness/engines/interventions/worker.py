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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from harness.constants import QUERY_SETS, WEIGHTS_AT_ONCE
from harness.engines.interventions.arithmetic import add_gap, attend, change_activations, plain_weights, weigh
from harness.engines.interventions.checks import OPERATION
from harness.engines.lifetime import INTERVENTIONS, PLUGIN, RECORD


class Recording:
    """The attention that the tokens of one prompt receive, summed while its queries come, perhaps in chunks.

    A prompt that is preempted comes again, from its start or from what is cached; no query is added twice.

    Attributes:
        sets: Sets of queries [set, token]; in the last one attention to a query's own token counts too.
        done: How many queries have come.
    """

    def __init__(self, sets: Sequence[Sequence[int]]) -> None:
        self.sets, self.done = torch.tensor(sets, dtype=torch.float32), 0
        self._keys: dict[int, Tensor] = {}
        self._sums: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return self.sets.shape[1]

    def keys(self, layer: int, key: Tensor, at: int) -> Tensor:
        """All keys up to the last of these, which begin at `at`; they are kept until the prompt is whole."""
        stop = at + len(key)
        if not at and stop == len(self):
            return key
        if layer not in self._keys:
            self._keys[layer] = key.new_zeros(len(self), *key.shape[1:])
        self._keys[layer][at:stop] = key
        return self._keys[layer][:stop]

    def add(self, layer: int, weights: Tensor, first: int) -> None:
        """Add the weights [head, query, key] of the queries that begin at this place."""
        self.sets = self.sets.to(weights.device)
        at = slice(first, first + weights.shape[1])
        sets, own = self.sets[:, at], weights.diagonal(first, 1, 2)  # what queries give to their own token
        if layer not in self._sums:
            self._sums[layer] = weights.new_zeros(len(weights), len(sets), len(self))
        self._sums[layer][..., : weights.shape[2]] += sets @ weights
        self._sums[layer][:, :-1, at] -= sets[:-1] * own[:, None]

    def rest(self) -> None:
        """Off the device with it, if all queries have come."""
        if self.done == len(self):
            self._keys.clear()
            self._sums = {layer: one.cpu() for layer, one in self._sums.items()}

    @property
    def sums(self) -> Tensor:
        """[layer, set, head, key] on the CPU."""
        return torch.stack([one.cpu() for _, one in sorted(self._sums.items())]).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class Row:
    """The rows of a step that belong to one request with an intervention, or that is recorded.

    Attributes:
        rows: Where its tokens are in the batch.
        at: The index of the first of them in its sequence.
        place: The request's place in the batch.
        recording: If any of them are queries that have not come before; `first` is then the first such index.
    """

    rows: slice
    at: int
    place: int
    arm: Mapping[str, Any]
    recording: Recording | None = None
    first: int = 0

    def switches(self, layer: int) -> bool:
        """Whether attention is changed in this layer."""
        return self.arm.get("kind") == "filler" and layer in self.arm["layers"]


class Arms:
    """What is installed in a worker's model, and the rows of the step that is being made.

    Attributes:
        expected: Rows that were scheduled with an intervention or to be recorded, as often as something is due on them.
        applied: How often something was done.
    """

    def __init__(self, worker: Any, layers: Mapping[str, Any]) -> None:
        self.expected = self.applied = 0
        self._rows: list[Row] = []
        self._count = 0
        self._runner = worker.model_runner
        self._decoder = self._runner.get_model().model
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._recordings: dict[str, Recording] = {}
        self._phantoms: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self._block = worker.vllm_config.cache_config.block_size
        config = worker.vllm_config.model_config.hf_text_config
        self._prepare = self._runner._prepare_inputs
        self._runner._prepare_inputs = self.prepare
        every = config.num_hidden_layers
        self._changed, recorded = {*layers["attention"]}, layers.get("recorded", ())
        self._recorded = {*(range(every) if recorded == "all" else recorded)}
        self.recording_bytes = self._most_bytes(worker.vllm_config) if self._recorded else 0
        for layer in sorted(self._changed | self._recorded):
            self._open(layer)
        for layer in layers["activations"]:
            mlp = self._decoder.layers[layer].mlp
            mlp.act_fn = _Activation(mlp.act_fn, layer)
        self._activation = _activation_of(config)
        available = worker.determine_available_memory

        def left() -> int:
            there, most = available(), self.recording_bytes
            if most and there <= most:
                sizes = f"{most / 2**30:.2f} GiB of {there / 2**30:.2f} GiB"
                raise RuntimeError(f"attention recorded in {len(self._recorded)} layers takes up to {sizes}")
            return int((there - most) * every / (every + len(self._changed)))

        worker.determine_available_memory = left

    def prepare(self, scheduled: Any, counts: np.ndarray) -> Any:
        """Note the rows of the next step that ask for something, and move the positions of those with a gap."""
        self.check()
        for row in self._rows:
            if row.recording:
                row.recording.rest()
        made = self._prepare(scheduled, counts)
        batch, start, self._rows = self._runner.input_batch, 0, []
        for place, (name, count) in enumerate(zip(batch.req_ids, counts.tolist(), strict=True)):
            parameters = self._runner.requests[name].sampling_params
            asked = (parameters.extra_args or {}) if parameters else {}
            if PLUGIN in asked or RECORD in asked:
                arm, rows = asked.get(PLUGIN, {}), slice(start, start + count)
                at = int(batch.num_computed_tokens_cpu[place])
                self._rows.append(Row(rows, at, place, arm, *self._recording(asked.get(RECORD), at, count)))
                self.expected += count * (len(arm.get("layers", ())) + ("phantom" in arm))
                if "phantom" in arm:
                    positions = self._runner.positions[rows]
                    positions.copy_(add_gap(positions, arm))
                    self.applied += count
            start += count
        self._count = start
        return made

    def _recording(self, asked: Mapping[str, Any] | None, at: int, count: int) -> tuple[Recording | None, int]:
        """Where attention is added up if queries of a prompt come that did not come before, and the first of them."""
        if not asked or at >= len(asked["sets"][0]):
            return None, 0
        mine = self._recordings.setdefault(asked["name"], Recording(asked["sets"]))
        first, stop = mine.done, min(at + count, len(mine))
        if at > first:
            raise RuntimeError(f"the attention of {at - first} tokens was not recorded, they came out of a cache")
        mine.done = max(first, stop)
        self.expected += (mine.done - first) * len(self._recorded)
        return (mine if stop > first else None), first

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
        return sum(one.nbytes for pair in self._kept.values() for one in pair)

    def check(self) -> None:
        """Raise RuntimeError if rows were passed over that should have been changed or recorded."""
        if self.expected != self.applied:
            raise RuntimeError(
                f"interventions and recording reached {self.applied} of {self.expected} rows, the rest skipped them"
            )

    def _open(self, layer: int) -> None:
        """Have a layer's attention computed again for the rows that ask for it."""
        implementation = self._decoder.layers[layer].self_attn.attn.impl
        own = implementation.forward

        def forward(
            one: Any, query: Tensor, key: Tensor, value: Tensor, cache: Any, about: Any, *rest: Any, **more: Any
        ) -> Any:
            made = own(one, query, key, value, cache, about, *rest, **more)
            if about is not None:
                self._attend(layer, implementation.scale, query, key, value, about, more["output"])
            return made

        implementation.forward = forward

    def _attend(
        self,
        layer: int,
        factor: float,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        about: Any,
        output: Tensor,
    ) -> None:
        if layer in self._recorded:
            for row in self._rows:
                if row.recording:
                    self._record(layer, factor, query, key, row, row.recording)
        if layer not in self._changed:
            return
        if layer not in self._kept:
            slots = self._runner.kv_cache_config.num_blocks * self._block
            self._kept[layer] = key.new_zeros(slots, *key.shape[1:]), value.new_zeros(slots, *value.shape[1:])
        keys, values = self._kept[layer]
        written = about.slot_mapping[: self._count]
        keys[written], values[written] = key[: self._count], value[: self._count]
        mine = [row for row in self._rows if row.switches(layer)]
        deciding = [row for row in mine if row.rows.stop - row.rows.start == 1]
        for group in ([row] for row in mine if row not in deciding):
            self._attend_group(layer, factor, query, about, output, group)
        if deciding:  # one token each: all in one
            self._attend_group(layer, factor, query, about, output, deciding)

    def _attend_group(
        self, layer: int, factor: float, query: Tensor, about: Any, output: Tensor, group: Sequence[Row]
    ) -> None:
        """Attention of requests with the same number of tokens in this step."""
        device, count = query.device, group[0].rows.stop - group[0].rows.start
        rows = torch.tensor([[*range(row.rows.start, row.rows.stop)] for row in group], device=device)
        at = torch.tensor([[row.at + token for token in range(count)] for row in group], device=device)
        places = torch.arange(max(row.at for row in group) + count, device=device)
        blocks = about.block_table[torch.tensor([row.place for row in group], device=device)].long()
        slots = blocks[:, places // self._block] * self._block + places % self._block
        key, value = (one[slots] for one in self._kept[layer])
        arms = [row.arm for row in group]
        if most := max(len(arm.get("phantom", ())) for arm in arms):
            ghosts = [self._phantom(layer, arm, key) for arm in arms]
            padded = [pad_sequence(list(several), batch_first=True) for several in zip(*ghosts, strict=True)]
            key, value = (torch.cat(pair, 1) for pair in zip((key, value), padded, strict=True))
        made = attend(query[rows], key, value, factor, at, arms, most)
        output[rows] = made.view(output[rows].shape).to(output.dtype)
        self.applied += rows.numel()

    def _record(self, layer: int, factor: float, query: Tensor, key: Tensor, row: Row, mine: Recording) -> None:
        """Add the attention of the queries of this step, as an intervention has left it."""
        stop = min(row.at + row.rows.stop - row.rows.start, len(mine))
        shift = row.rows.start - row.at
        keys = mine.keys(layer, key[row.rows.start : stop + shift], row.at)[None]
        places = torch.arange(stop, device=key.device)
        if row.switches(layer):
            keys = torch.cat([keys, self._phantom(layer, row.arm, keys)[0][None]], 1)
        at_once = max(1, WEIGHTS_AT_ONCE // (query.shape[1] * keys.shape[1]))
        for first in range(row.first, stop, at_once):
            at = places[first : first + at_once]
            queries = query[first + shift : first + shift + len(at)][None]
            if row.switches(layer):
                made = weigh(queries, keys, factor, at[None], [row.arm], keys.shape[1] - stop)[..., :stop]
            else:
                made = plain_weights(queries, keys, factor, places <= at[:, None])
            mine.add(layer, made[0].flatten(0, 1), first)
            self.applied += len(at)

    def take_attention(self, name: str) -> tuple[tuple[int, ...], bytes]:
        """The sums [layer, set, head, key] of a recorded prompt in float32, and their shape; forgotten here."""
        made = self._recordings.pop(name).sums
        return tuple(made.shape), made.numpy().tobytes()

    def _phantom(self, layer: int, arm: Mapping[str, Any], like: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [token, head, unit] of a filler that is not in the prompt, computed once: see `resolve`."""
        tokens = tuple(arm.get("phantom", ()))
        if not tokens:
            empty = like.new_empty(0, *like.shape[2:])
            return empty, empty
        if (arm["start"], tokens) not in self._phantoms:
            block = self._decoder.layers[layer]
            attention = block.self_attn
            states = block.input_layernorm(self._decoder.embed_tokens(torch.tensor(tokens, device=like.device)))
            sizes = [attention.q_size, attention.kv_size, attention.kv_size]
            query, key, value = attention.qkv_proj(states)[0].split(sizes, -1)
            where = arm["start"] + torch.arange(len(tokens), device=like.device)
            key = attention.rotary_emb(where, query.contiguous(), key.contiguous())[1]
            shape = (len(tokens), *like.shape[2:])
            self._phantoms[arm["start"], tokens] = key.reshape(shape), value.reshape(shape)
        return self._phantoms[arm["start"], tokens]

    def change_rows(self, gate_up: Tensor, out: Tensor, layer: int) -> None:
        """Write the changed activations of one layer, times `up`, over the rows that ask for it."""
        for row in self._rows:
            if row.arm.get("kind") != "filler" and layer in row.arm.get("layers", ()):
                gate, up = gate_up[row.rows].chunk(2, -1)
                changed = change_activations(self._activation(gate), self._runner.positions[row.rows], row.arm)
                out[row.rows] = changed * up
                self.applied += row.rows.stop - row.rows.start


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
