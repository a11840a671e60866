"""Requests that are computed in one step have the results that each has in steps of its own."""

from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from harness.engines.engine_processes import PLUGIN
from harness.engines.interventions import vllm_worker
from tests.make import read_data

HEADS, KEY_HEADS, UNITS, WIDTH, MLP_UNITS = 6, 2, 8, 16, 40
BLOCK, BLOCKS, LAYERS = 4, 12, 3

STEP = read_data("batched_rows")


class Projection(nn.Linear):
    """A linear layer that returns a pair, as those of vLLM do."""

    def forward(self, states):
        return super().forward(states), None


class Implementation:
    scale = 0.3

    def forward(self, *_, output):
        return output


class Model(nn.Module):
    """What `vllm_worker.Arms` reads of a decoder."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(20, WIDTH)
        self.layers = nn.ModuleList(self._block() for _ in range(LAYERS))
        self.requires_grad_(False)

    @property
    def model(self):
        return self

    @staticmethod
    def _block():
        block = nn.Module()
        attention = block.self_attn = nn.Module()
        block.input_layernorm, block.mlp = nn.Identity(), nn.Module()
        attention.q_size, attention.kv_size = HEADS * UNITS, KEY_HEADS * UNITS
        attention.qkv_proj = Projection(WIDTH, attention.q_size + 2 * attention.kv_size)
        attention.rotary_emb = lambda at, query, key: (query, key * (1 + at[:, None] / 10))
        attention.attn = SimpleNamespace(impl=Implementation(), sliding_window=None)
        block.mlp.act_fn = nn.Identity()
        return block


def make_arms(requests):
    """`vllm_worker.Arms` in a worker whose cache holds the tokens that were computed before.

    Args:
        requests: By number, which determines the blocks of its keys and values: the request's
            `extra_args`, the number of tokens that were computed before, and that of this step.
    """
    runner = SimpleNamespace(
        device=torch.device("cpu"),
        get_model=Model,
        kv_cache_config=SimpleNamespace(num_blocks=BLOCKS * (max(requests) + 1)),
        _prepare_inputs=lambda scheduled, counts: None,
        _is_uniform_decode=lambda **_: True,
    )
    config = SimpleNamespace(
        cache_config=SimpleNamespace(block_size=BLOCK),
        model_config=SimpleNamespace(
            hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS, hidden_act="silu"),
            get_num_attention_heads=lambda parallel: HEADS,
        ),
        parallel_config=None,
    )
    worker = SimpleNamespace(
        model_runner=runner, vllm_config=config, determine_available_memory=int
    )
    arms = vllm_worker.Arms(worker, {"attention": [*range(LAYERS)], "activations": [0, 1]})
    fill_cache(arms, requests)
    schedule(runner, requests)
    return arms


def schedule(runner, requests):
    """Make these requests the batch of the next step."""
    table = torch.arange(BLOCKS) + BLOCKS * torch.tensor([*requests])[:, None]
    indices = [torch.arange(before, before + count) for _, before, count in requests.values()]
    slots = [
        blocks[index // BLOCK] * BLOCK + index % BLOCK
        for blocks, index in zip(table, indices, strict=True)
    ]
    runner.positions = torch.cat(indices)
    runner.metadata = SimpleNamespace(block_table=table.int(), slot_mapping=torch.cat(slots))
    runner.requests = {
        number: SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra_args))
        for number, (extra_args, *_) in requests.items()
    }
    runner.input_batch = SimpleNamespace(
        req_ids=[*requests],
        num_reqs=len(requests),
        num_computed_tokens_cpu=np.array([before for _, before, _ in requests.values()]),
    )


def fill_cache(arms, requests):
    """Keys and values of the tokens that were computed before, drawn from the request's number."""
    for layer in range(LAYERS):
        pair = torch.zeros(2, arms._runner.kv_cache_config.num_blocks * BLOCK, KEY_HEADS, UNITS)
        for number, (_, before, _) in requests.items():
            generator = torch.Generator().manual_seed(100 * number + layer)
            states = torch.randn(2, before, KEY_HEADS, UNITS, generator=generator)
            first = number * BLOCKS * BLOCK
            pair[:, first : first + before] = states
        arms._stored_states[layer] = pair[0], pair[1]


def compute_step(arms, counts, tensors):
    """The positions [row] of a step, its attention and activations [row, layer, ...]."""
    runner = arms._runner
    arms.prepare(None, np.array(counts))
    states = [tensors[name] for name in ("query", "key", "value")]
    attention, activations = [], []
    for layer in range(LAYERS):
        output, out = tensors["output"].clone(), tensors["out"].clone()
        implementation = arms._decoder.layers[layer].self_attn.attn.impl
        implementation.forward(None, *states, None, runner.metadata, output=output)
        arms.change_rows(tensors["gate_up"], out, layer)
        attention.append(output)
        activations.append(out)
    arms.check()  # each row was reached as often as its arm says
    return runner.positions, torch.stack(attention, 1), torch.stack(activations, 1)


def draw_tensors(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "query": (HEADS, UNITS),
        "key": (KEY_HEADS, UNITS),
        "value": (KEY_HEADS, UNITS),
        "output": (HEADS, UNITS),
        "gate_up": (2 * MLP_UNITS,),
        "out": (MLP_UNITS,),
    }
    return {name: torch.randn(rows, *shape, generator=generator) for name, shape in shapes.items()}


def decode(requests):
    """All requests compute one token more."""
    return {
        number: (extra_args, before + count, 1)
        for number, (extra_args, before, count) in requests.items()
    }


def next_step(requests):
    """Every fifth request has ended, and a new one is the second of the batch."""
    decoding = {number: request for number, request in decode(requests).items() if number % 5}
    (number, first), *remaining = decoding.items()
    return {number: first, len(requests): ({PLUGIN: STEP["arms"]["bias"]}, 0, 5), **dict(remaining)}


def test_requests_of_one_step_have_the_results_that_each_has_alone():
    requests = {}
    for number, (name, before, count) in enumerate(STEP["requests"]):
        arm = STEP["arms"][name]
        requests[number] = ({PLUGIN: arm} if arm else None, before, count)
    second = next_step(requests)
    all_requests = second | requests
    together = make_arms(all_requests)
    alone = {number: make_arms({number: request}) for number, request in all_requests.items()}
    for index, step in enumerate((requests, second, decode(second))):
        counts = [count for *_, count in step.values()]
        tensors = draw_tensors(sum(counts), seed=index)
        schedule(together._runner, step)
        computed = compute_step(together, counts, tensors)
        stops = np.cumsum(counts)
        for (number, request), count, stop in zip(step.items(), counts, stops, strict=True):
            rows = slice(stop - count, stop)
            schedule(alone[number]._runner, {number: request})
            tensors_of_request = {name: tensor[rows] for name, tensor in tensors.items()}
            expected = compute_step(alone[number], [count], tensors_of_request)
            for ours, theirs in zip(computed, expected, strict=True):
                torch.testing.assert_close(
                    ours[rows], theirs, atol=1e-6, rtol=0, msg=f"step {index}, {number}"
                )
    assert len(together._groups) == 5, "three choices of layers, two arms that change activations"
