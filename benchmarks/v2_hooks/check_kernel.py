"""Compares the kernel with `arithmetic`: python -m benchmarks.v2_hooks.check_kernel.

On a GPU, or without one under Triton's interpreter (TRITON_INTERPRET=1).
"""

import json
from itertools import product

import torch
from torch.nn.utils.rnn import pad_sequence

from benchmarks.v2_hooks.attention_kernel import (
    LayerRows,
    StepRows,
    change_attention,
    tabulate_row,
)
from harness.engines.interventions.arithmetic import attend_with_changes, tabulate_changes

SWITCHES = [{"scale": scale, "bias": bias} for scale in (True, False) for bias in (True, False)]
FILLER = {"kind": "filler", "start": 5, "size": 20}
PHANTOM = {**FILLER, "phantom": [7] * 20}
WEIGHTS = (
    [[5, 25, 25, 0]],
    [[0, 1, 1, 0.33]],
    [[0, 1, 1, 30]],
    [[0, 3, 3, 0], [9, 12, 30, 0.02], [20, 21, 30, 5], [10, 11, 30, 2]],
)
CHANGES = (
    [],
    *([FILLER | switches] for switches in SWITCHES),
    *([PHANTOM | switches] for switches in SWITCHES),
    *([{"kind": "attention", "weights": weights}] for weights in WEIGHTS),
)
"""The changes of the requests of a batch, all of them together."""
SHAPES = ((1, 64, torch.float32), (3, 80, torch.float32), (7, 32, torch.float32))
SHAPES += ((3, 32, torch.bfloat16), (7, 64, torch.bfloat16))
"""Query heads of a head for keys, units, and type."""
HEADS, PAGE, MOST_TOKENS = 2, 16, 96
UNTOUCHED = 9.0


def make_step(are_decodes: bool) -> StepRows:
    """Requests in random blocks: all are decodes, or a third each, whole prompts, and chunks."""
    count, pages = len(CHANGES), MOST_TOKENS // PAGE
    lengths = torch.randint(40, MOST_TOKENS, (count,))
    tokens = torch.stack([torch.ones_like(lengths), lengths, torch.randint(2, 30, (count,))])
    tokens = tokens[0] if are_decodes else tokens[torch.arange(count) % 3, torch.arange(count)]
    return StepRows(
        slots=torch.randperm(count),
        blocks=torch.randperm(count * pages).view(count, pages).int(),
        starts=torch.cat([torch.zeros(1), tokens.cumsum(0)]).int(),
        lengths=lengths.int(),
        most_tokens=int(tokens.max()),
    )


def compare(group: int, units: int, dtype: torch.dtype, are_decodes: bool) -> float:
    """The largest error of the kernel's output, relative to that of `arithmetic` if it is above 1.

    It is infinite if the kernel changed the row of another request, or counted other rows.
    """
    torch.manual_seed(group)
    step, factor = make_step(are_decodes), units**-0.5
    # vLLM's order in memory: keys beside values
    cache = torch.randn(step.blocks.numel(), HEADS, PAGE, 2 * units, dtype=dtype)
    views = cache.transpose(1, 2).split(units, -1)
    query = torch.randn(int(step.starts[-1]), HEADS * group, units, dtype=dtype)
    phantoms = torch.randn(2, len(CHANGES), PHANTOM["size"], HEADS, units, dtype=dtype)
    rows = pad_sequence([tabulate_row(changes) for changes in CHANGES], batch_first=True)
    table = torch.zeros(rows.shape)
    table[step.slots] = rows.to(table.device)
    layer = LayerRows(table, [*phantoms], torch.zeros(1, dtype=torch.int64))
    output = torch.full_like(query, UNTOUCHED)
    change_attention(query, views, output, factor, layer, step)
    expected = torch.full(query.shape, UNTOUCHED)
    for index, changes in enumerate(CHANGES):
        first, stop = step.starts[index : index + 2].tolist()
        length = int(step.lengths[index])
        if not changes:
            continue
        states = [view[step.blocks[index].long()].flatten(0, 1)[:length] for view in views]
        if changes[0].get("phantom"):
            slot = step.slots[index]
            states = [torch.cat(pair) for pair in zip(states, phantoms[:, slot], strict=True)]
        key, value = (tensor[None] for tensor in states)
        indices = torch.arange(length - (stop - first), length)[None]
        tabulated = tabulate_changes(changes, query.device)
        expected[first:stop] = attend_with_changes(
            query[None, first:stop], key, value, factor, indices, tabulated
        )[0]
    changed_count = int((expected != UNTOUCHED).any(-1).any(-1).sum())
    if not torch.equal(layer.count, torch.tensor([changed_count])):
        return float("inf")
    return float(((output - expected) / expected.abs().clamp(min=1)).abs().max())


def main() -> None:
    """Print the largest error of each shape as JSON."""
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    errors = {
        f"{group} heads of {units} units, {dtype}, {kind}": compare(
            group, units, dtype, kind == "decode"
        )
        for (group, units, dtype), kind in product(SHAPES, ("decode", "prefill"))
    }
    print(json.dumps(errors, indent=1))


if __name__ == "__main__":
    main()
