"""The smallest cost of the probe on this machine: its matrix products and softmaxes alone.

Each runs at its highest rate. For layers 1 to n these are: all linear layers of the layers before
the last, and queries and keys of the last layer; the scores and their softmax in every layer, and
the weighted values in all layers but the last, over the pairs of a query and a key that it sees.
Norms, rotations, the activation of the MLP, residuals and the probe's own reductions are left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

BLOCKS = (16, 32, 64, 128, 256, 512)
"""Numbers of queries in one multiplication. The fastest of them gives the rate."""
MAX_RUNS = 5
ENOUGH_SECONDS = 10.0
WARM_UP_TOKENS = 16


def timed(run: Callable[[int], object], length: int) -> dict[str, Any]:
    """The least CPU seconds of a few runs, after a short one that warms up."""
    with torch.inference_mode():
        run(min(WARM_UP_TOKENS, length))
        runs: list[tuple[float, float]] = []
        while not runs or (len(runs) < MAX_RUNS and sum(wall for _, wall in runs) < ENOUGH_SECONDS):
            cpu, wall = time.process_time(), time.perf_counter()
            run(length)
            runs.append((time.process_time() - cpu, time.perf_counter() - wall))
    cpu, wall = min(runs)
    return {"cpu": cpu, "wall": wall, "runs": len(runs)}


def limit(path: Path, length: int, layers: int) -> dict[str, Any]:
    """CPU seconds of each kind of operation, and their sum."""
    facts = json.loads(path.read_text(encoding="utf-8"))
    hidden, heads = facts["hidden_size"], facts["num_attention_heads"]
    kv_heads = facts["num_key_value_heads"]
    head_dim = facts.get("head_dim") or hidden // heads
    wide = facts["intermediate_size"]
    query = linear(length, hidden, heads * head_dim)
    key = linear(length, hidden, kv_heads * head_dim)
    output = linear(length, heads * head_dim, hidden)
    mlp = 2 * linear(length, hidden, wide) + linear(length, wide, hidden)
    rates = attention_rates(length, heads, kv_heads, head_dim)
    pairs = heads * length * (length + 1) / 2
    seconds = {
        "linear": (layers - 1) * (query + 2 * key + output + mlp) + query + key,
        "scores": layers * pairs * 2 * head_dim / rates["scores"],
        "softmax": layers * pairs / rates["softmax"],
        "values": (layers - 1) * pairs * 2 * head_dim / rates["values"],
    }
    return {"seconds": seconds, "cpu": sum(seconds.values())}


def linear(length: int, width: int, output_width: int) -> float:
    """CPU seconds of one linear layer, into memory that is allocated already."""
    inputs, weight = torch.randn(length, width), torch.randn(output_width, width)
    output = torch.empty(length, output_width)

    def multiply(tokens: int) -> None:
        torch.mm(inputs[:tokens], weight.T, out=output[:tokens])

    return float(timed(multiply, length)["cpu"])


def attention_rates(length: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, float]:
    """Operations in a CPU second: floating-point operations, or elements of softmax."""
    keys = torch.randn(kv_heads, length, head_dim)
    best = {"scores": 0.0, "softmax": 0.0, "values": 0.0}
    for block in (block for block in BLOCKS if block <= length):
        rows, repeats = heads // kv_heads * block, max(1, 2048 // block)
        queries, scores = torch.randn(kv_heads, rows, head_dim), torch.randn(kv_heads, rows, length)
        output = torch.empty(kv_heads, rows, head_dim)
        operations = {
            "scores": partial(torch.bmm, queries, keys.mT, out=scores),
            "softmax": partial(torch.softmax, scores, -1, out=scores),
            "values": partial(torch.bmm, scores, keys, out=output),
        }
        for name, operation in operations.items():
            count = scores.numel() * repeats * (1 if name == "softmax" else 2 * head_dim)
            seconds = timed(partial(repeat, operation, repeats), length)["cpu"]
            best[name] = max(best[name], count / seconds)
    return best


def repeat(operation: Callable[[], object], count: int, _: int) -> None:
    """Run an operation several times. The last argument is the length, which `timed` passes."""
    for _ in range(count):
        operation()
