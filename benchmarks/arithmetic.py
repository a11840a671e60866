"""The least that the probe can cost on this machine: its matrix products and softmaxes alone, each at its best rate.

Counted are, for layers 1 to n: all linear layers of the layers before the last, which must be run through, and queries
and keys of the last; the scores and their softmax in every layer, and the weighted values in all but the last, over the
pairs of a query and a key that it sees. Not counted are norms, rotations, the MLP's activation, residuals, and the
probe's own reductions.

    python -m benchmarks.arithmetic --config CONFIG.json --length 2048 --layers 3 --json FIGURES
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks.attention import timed

BLOCKS = (16, 32, 64, 128, 256, 512)
"""Queries at a time, of which the fastest counts."""


def main() -> None:
    """Time the operations and write the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, required=True, help="keys of a config.json")
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--json", type=Path, required=True, help="write the figures here")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    facts = json.loads(arguments.config.read_text(encoding="utf-8"))
    figures = limit(facts, arguments.length, arguments.layers)
    arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def limit(facts: dict[str, Any], length: int, layers: int) -> dict[str, Any]:
    """CPU-seconds of each kind of operation, their sum, and the rates that they are from."""
    hidden, heads = facts["hidden_size"], facts["num_attention_heads"]
    kv_heads = facts["num_key_value_heads"]
    head_dim = facts.get("head_dim") or hidden // heads
    wide = facts["intermediate_size"]
    query, key = (
        linear(length, hidden, heads * head_dim),
        linear(length, hidden, kv_heads * head_dim),
    )
    back = linear(length, heads * head_dim, hidden)
    mlp = 2 * linear(length, hidden, wide) + linear(length, wide, hidden)
    rates = attention_rates(length, heads, kv_heads, head_dim)
    pairs = heads * length * (length + 1) / 2
    seconds = {
        "linear": (layers - 1) * (query + 2 * key + back + mlp) + query + key,
        "scores": layers * pairs * 2 * head_dim / rates["scores"],
        "softmax": layers * pairs / rates["softmax"],
        "values": (layers - 1) * pairs * 2 * head_dim / rates["values"],
    }
    return {
        "seconds": seconds,
        "cpu": sum(seconds.values()),
        "rates": rates,
        "length": length,
        "layers": layers,
    }


def linear(length: int, width: int, out: int) -> float:
    """CPU-seconds of one linear layer, into memory that is there already."""
    inputs, weight, output = (
        torch.randn(length, width),
        torch.randn(out, width),
        torch.empty(length, out),
    )
    return float(
        timed(lambda tokens: torch.mm(inputs[:tokens], weight.T, out=output[:tokens]), length)[
            "cpu"
        ]
    )


def attention_rates(length: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, float]:
    """Floating-point operations a CPU-second of scores and of weighted values, and softmax elements a CPU-second."""
    keys = torch.randn(kv_heads, length, head_dim)
    best = {"scores": 0.0, "softmax": 0.0, "values": 0.0}
    for block in (block for block in BLOCKS if block <= length):
        rows = heads // kv_heads * block
        queries, scores = torch.randn(kv_heads, rows, head_dim), torch.randn(kv_heads, rows, length)
        output, repeats = torch.empty(kv_heads, rows, head_dim), max(1, 2048 // block)
        operations = {
            "scores": lambda: torch.bmm(queries, keys.mT, out=scores),  # noqa: B023  (called within the loop)
            "softmax": lambda: torch.softmax(scores, -1, out=scores),  # noqa: B023
            "values": lambda: torch.bmm(scores, keys, out=output),  # noqa: B023
        }
        for name, operation in operations.items():
            done = scores.numel() * repeats * (1 if name == "softmax" else 2 * head_dim)
            seconds = timed(lambda _: [operation() for _ in range(repeats)], length)["cpu"]  # noqa: B023
            best[name] = max(best[name], done / seconds)
    return best


if __name__ == "__main__":
    main()
