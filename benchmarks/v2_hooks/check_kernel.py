"""Compares the kernel with `arithmetic`: python -m benchmarks.v2_hooks.check_kernel.

On a GPU, or without one under Triton's interpreter (TRITON_INTERPRET=1).
"""

import json
from itertools import product
from types import SimpleNamespace

import torch

from benchmarks.v2_hooks.attention_kernel import LayerChanges, change_attention, tabulate_row
from harness.engines.interventions.arithmetic import attend_with_changes, tabulate_changes

FILLER = {"kind": "filler", "start": 5, "size": 20}
WEIGHTS = (
    [[5, 25, 25, 0]],
    [[0, 1, 1, 0.33]],
    [[0, 1, 1, 30]],
    [[0, 3, 3, 0], [9, 12, 30, 0.02], [20, 21, 30, 5], [10, 11, 30, 2]],
)
CHANGES = [{"kind": "attention", "weights": weights} for weights in WEIGHTS]
for scale, bias in product((True, False), repeat=2):
    CHANGES.append({**FILLER, "scale": scale, "bias": bias})
    CHANGES.append({**CHANGES[-1], "phantom": [7] * 20})
SHAPES = ((1, 64, "float32"), (3, 80, "float32"), (7, 32, "float32"))
SHAPES += ((3, 32, "bfloat16"), (7, 64, "bfloat16"))
"""Query heads of a head for keys, units of a head, and type."""
HEADS, PAGE, PAGES, COUNT = 2, 16, 6, len(CHANGES) + 1
"""Heads for keys, tokens of a block, blocks of a prompt, and requests, the last unchanged."""
UNTOUCHED = 9.0


def compare(group: int, units: int, dtype: torch.dtype, chunks: tuple[int, ...]) -> float:
    """The largest error of the kernel's output, relative to that of `arithmetic` if it is above 1.

    It is infinite if the kernel counts other tokens than it should change. Requests have chunks of
    these sizes in turn, at the end of prompts of other lengths, in random blocks.
    """
    torch.manual_seed(group)
    lengths = torch.randint(40, PAGES * PAGE, (COUNT,))
    tokens = torch.tensor(chunks).repeat(COUNT)[:COUNT].minimum(lengths)
    slots, starts = torch.randperm(COUNT), torch.cat([torch.zeros(1), tokens.cumsum(0)]).int()
    metadata = SimpleNamespace(
        block_table=torch.randperm(COUNT * PAGES).view(COUNT, PAGES).int(),
        query_start_loc=starts,
        seq_lens=lengths.int(),
        max_query_len=max(chunks),
    )
    # vLLM's order in memory: keys beside values
    cache = torch.randn(COUNT * PAGES, HEADS, PAGE, 2 * units, dtype=dtype)
    views = cache.transpose(1, 2).split(units, -1)
    query = torch.randn(int(starts[-1]), HEADS * group, units, dtype=dtype)
    phantoms = torch.randn(2, COUNT, FILLER["size"], HEADS, units, dtype=dtype)
    output, expected = torch.full_like(query, UNTOUCHED), torch.full(query.shape, UNTOUCHED)
    table, count = torch.zeros(COUNT, 22), torch.zeros(1, dtype=torch.long)
    for index, change in enumerate(CHANGES):
        slot, rows = slots[index], slice(*starts[index : index + 2].tolist())
        row = tabulate_row(change)
        table[slot, : len(row)] = row.to(table.device)
        length, blocks = int(lengths[index]), metadata.block_table[index].long()
        states = [view[blocks].flatten(0, 1)[:length] for view in views]
        if "phantom" in change:
            states = [torch.cat(pair) for pair in zip(states, phantoms[:, slot], strict=True)]
        key, value = (tensor[None] for tensor in states)
        indices = torch.arange(length - int(tokens[index]), length)[None]
        tabulated = tabulate_changes([change], query.device)
        expected[rows] = attend_with_changes(
            query[None, rows], key, value, units**-0.5, indices, tabulated
        )[0]
    changes = LayerChanges(table, phantoms, count, slots)
    change_attention(query, views, output, units**-0.5, changes, metadata)
    if int(count) != int(starts[-2]):
        return float("inf")
    return float(((output - expected) / expected.abs().clamp(min=1)).abs().max())


def main() -> None:
    """Print the largest error of each shape as JSON, for decoding and for mixed batches."""
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    errors = {
        f"{shape}, chunks of {chunks}": compare(*shape[:2], getattr(torch, shape[2]), chunks)
        for shape, chunks in product(SHAPES, ((1,), (96, 1, 13, 30)))
    }
    print(json.dumps(errors, indent=1))


if __name__ == "__main__":
    main()
