"""Compares the kernel with `arithmetic`: python -m benchmarks.v2_hooks.check_kernel.

On a GPU, or without one under Triton's interpreter (TRITON_INTERPRET=1).
"""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import torch
import yaml

from benchmarks.v2_hooks.attention_kernel import LayerChanges, change_attention, tabulate_row
from harness.engines.interventions.arithmetic import (
    Change,
    attend_with_changes,
    tabulate_changes,
)

CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
HEADS, PAGE, PAGES, PHANTOMS, LENGTH, FACTOR = 2, 16, 6, 40, 90, 0.2
"""Heads for keys, tokens of a block, blocks and phantom keys of a request, its tokens, and the
factor of scores."""


def compare(change: Change, group: int, units: int, dtype: torch.dtype, count: int) -> float:
    """The largest error of the last outputs of a prompt, relative to expected outputs above 1.

    Without the kernel's output, or if it counts another number of tokens, it is not a number.
    """
    torch.manual_seed(group)
    blocks, slot = torch.randperm(2 * PAGES)[:PAGES], 1
    # vLLM's order in memory: keys beside values
    cache = torch.randn(2 * PAGES, HEADS, PAGE, 2 * units, dtype=dtype)
    views = cache.transpose(1, 2).split(units, -1)
    query = torch.randn(count, HEADS * group, units, dtype=dtype)
    phantoms = torch.randn(2, 2, PHANTOMS, HEADS, units, dtype=dtype)
    row = tabulate_row(change).to(query.device)
    table = torch.stack([torch.zeros_like(row), row])
    changed_count = torch.zeros(1, dtype=torch.long)
    changes = LayerChanges(table, phantoms, changed_count, torch.tensor([slot]))
    metadata = SimpleNamespace(
        block_table=blocks[None].int(),
        query_start_loc=torch.tensor([0, count]).int(),
        seq_lens=torch.tensor([LENGTH]).int(),
        max_query_len=count,
    )
    output = torch.full_like(query, torch.nan)
    change_attention(query, views, output, FACTOR, changes, metadata)
    states = [view[blocks].flatten(0, 1)[:LENGTH] for view in views]
    pairs = zip(states, phantoms[:, slot, : len(change.get("phantom", ()))], strict=True)
    key, value = (torch.cat(pair)[None] for pair in pairs)
    indices, tabulated = (
        torch.arange(LENGTH - count, LENGTH),
        tabulate_changes([change], key.device),
    )
    expected = attend_with_changes(query[None], key, value, FACTOR, indices[None], tabulated)[0]
    error = (output - expected) / expected.abs().clamp(min=1)
    return float(torch.where(changed_count == count, error.abs().max(), torch.nan))


def main() -> None:
    """Print the errors by type as JSON."""
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    errors: dict[str, list[float]] = {}
    for change, (group, units, dtype) in product(CASES["changes"], CASES["shapes"]):
        errors.setdefault(dtype, []).extend(
            compare(change, group, units, getattr(torch, dtype), count) for count in CASES["counts"]
        )
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
