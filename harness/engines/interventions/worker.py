"""Interventions inside vLLM's workers: per request, in any mixture in one batch.

A request names its intervention in `SamplingParams.extra_args`. The worker knows for each step which rows of the batch
have one, and changes these rows in three places: the positions before the model, the output of one layer's attention,
and the activations of one layer's MLP. What a layer's attention reads again (keys and values by slot) is kept beside
vLLM's own cache, whose form differs by backend. Everything is installed before vLLM compiles or captures anything, and
rows are counted: an op that was skipped, as by a CUDA graph, ends the run.
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

from harness.engines.interventions.arithmetic import add_gap, attend, change_activations
from harness.engines.interventions.checks import OPERATION
from harness.engines.lifetime import INTERVENTIONS, PLUGIN


@dataclass(frozen=True, slots=True)
class Row:
    """The rows of a step that belong to one request with an intervention.

    Attributes:
        rows: Where its tokens are in the batch.
        at: The index of the first of them in its sequence.
        place: The request's place in the batch.
    """

    rows: slice
    at: int
    place: int
    arm: Mapping[str, Any]


class Arms:
    """What is installed in a worker's model, and the rows of the step that is being made.

    Attributes:
        expected: Rows that were scheduled with an intervention so far, each as often as something must be done to it.
        applied: How often something was done.
    """

    def __init__(self, worker: Any, layers: Mapping[str, Sequence[int]]) -> None:
        self.expected = self.applied = 0
        self._rows: list[Row] = []
        self._count = 0
        self._runner = worker.model_runner
        self._decoder = self._runner.get_model().model
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._sums: dict[str, dict[int, Tensor]] = {}
        self._phantoms: dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]] = {}
        self._block = worker.vllm_config.cache_config.block_size
        config = worker.vllm_config.model_config.hf_text_config
        self._prepare = self._runner._prepare_inputs
        self._runner._prepare_inputs = self.prepare
        for layer in layers["attention"]:
            self._open(layer)
        for layer in layers["activations"]:
            mlp = self._decoder.layers[layer].mlp
            mlp.act_fn = _Activation(mlp.act_fn, layer)
        self._activation = _activation_of(config)
        opened, every = len(layers["attention"]), config.num_hidden_layers
        available = worker.determine_available_memory
        worker.determine_available_memory = lambda: int(available() * every / (every + opened))

    def prepare(self, scheduled: Any, counts: np.ndarray) -> Any:
        """Note the rows of the next step that have an intervention, and move the positions of those with a gap."""
        self.check()
        made = self._prepare(scheduled, counts)
        batch, start, self._rows = self._runner.input_batch, 0, []
        for place, (name, count) in enumerate(zip(batch.req_ids, counts.tolist(), strict=True)):
            parameters = self._runner.requests[name].sampling_params
            if arm := (parameters.extra_args or {}).get(PLUGIN) if parameters else None:
                rows = slice(start, start + count)
                self._rows.append(Row(rows, int(batch.num_computed_tokens_cpu[place]), place, arm))
                self.expected += count * (len(arm["layers"]) + ("phantom" in arm))
                if arm["kind"] == "record" and not self._rows[-1].at:
                    self._sums[arm["name"]] = {}  # anew, if it was preempted
                if "phantom" in arm:
                    positions = self._runner.positions[rows]
                    positions.copy_(add_gap(positions, arm))
                    self.applied += count
            start += count
        self._count = start
        return made

    @property
    def kept_bytes(self) -> int:
        """What the opened layers' keys and values take beside vLLM's cache."""
        return sum(one.nbytes for pair in self._kept.values() for one in pair)

    def check(self) -> None:
        """Raise RuntimeError if rows were left as they are that should have been changed."""
        if self.expected != self.applied:
            raise RuntimeError(
                f"an intervention was made on {self.applied} of {self.expected} rows, the rest skipped it"
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
        if layer not in self._kept:
            slots = self._runner.kv_cache_config.num_blocks * self._block
            self._kept[layer] = key.new_zeros(slots, *key.shape[1:]), value.new_zeros(slots, *value.shape[1:])
        keys, values = self._kept[layer]
        written = about.slot_mapping[: self._count]
        keys[written], values[written] = key[: self._count], value[: self._count]
        for row in self._rows:
            if row.arm["kind"] == "record" and layer in row.arm["layers"]:
                self._record(layer, factor, query, about, row)
        mine = [row for row in self._rows if row.arm["kind"] == "filler" and layer in row.arm["layers"]]
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

    def _record(self, layer: int, factor: float, query: Tensor, about: Any, row: Row) -> None:
        """Add the attention that the tokens of this step give, for each set of queries: see `attention.Asked`."""
        count, device, total = row.rows.stop - row.rows.start, query.device, len(row.arm["sets"][0])
        places = torch.arange(row.at + count, device=device)
        slots = about.block_table[row.place].long()[places // self._block] * self._block + places % self._block
        key, queries = self._kept[layer][0][slots].float(), query[row.rows].float()
        at = torch.arange(row.at, row.at + count, device=device)[:, None]
        scores = torch.einsum("thgd,lhd->hgtl", queries.view(count, key.shape[1], -1, key.shape[2]), key) * factor
        weights = scores.masked_fill(places > at, -torch.inf).softmax(-1).flatten(0, 1)
        sets = torch.tensor(row.arm["sets"], device=device, dtype=torch.float32)[:, row.at : row.at + count]
        later = torch.einsum("st,htl->shl", sets[:-1], weights * (places < at))
        every = torch.einsum("t,htl->hl", sets[-1], weights)
        sums = self._sums[row.arm["name"]]
        sums.setdefault(layer, torch.zeros(len(sets), len(weights), total, device=device))
        sums[layer][..., : len(places)] += torch.cat([later, every[None]])
        self.applied += count

    def take_attention(self, name: str) -> tuple[tuple[int, ...], bytes]:
        """The sums [layer, set, head, key] of a recorded prompt in float32, and their shape; forgotten here."""
        made = torch.stack([one for _, one in sorted(self._sums.pop(name).items())]).cpu()
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
            if row.arm["kind"] != "filler" and layer in row.arm["layers"]:
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
