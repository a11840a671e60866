"""Attention with changes as one Triton kernel, which reads vLLM's paged cache.

A launch needs no numbers of its step from the host, so that a CUDA graph can contain it: what
changes a request's attention is a row of a table on the device. `arithmetic.weigh` is the same in
torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.engines.interventions.arithmetic import Change, tabulate_changes

RANGE_COLUMNS = 4
"""First token, the first token after them, the first later token, the logarithm of the weight."""
FIRST_RANGE = 6
"""The column of the first range. Before it: whether the row changes anything, start and end of the
filler, the number of its phantom keys, and whether `scale` and `bias` are on."""
LARGEST_HEAD = 256
"""Units of a head: two sums for 16 rows of queries then fit into the registers of a block."""


def tabulate_row(changes: Sequence[Change]) -> Tensor:
    """The row [column] of a layer's change of attention; it is empty if there is none."""
    if not changes:
        return torch.zeros(0)
    tabulated = tabulate_changes(changes, torch.device("cpu"))
    columns = [torch.ones(1), tabulated.filler.flatten(), tabulated.ranges.flatten()]
    return torch.cat(columns)


@triton.jit
def _add_keys(
    query, key, value, logs, is_filler, factor, top, sum_o, sum_f, out_o, out_f,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add keys to the sums of a softmax whose largest score so far is `top`.

    The sums of original tokens (`_o`) and of the filler (`_f`) are apart.
    """
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * factor + logs
    new_top = tl.maximum(top, tl.max(scores, 1))
    # hidden keys alone have no largest score
    finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp(scores - finite_top[:, None])
    shrink = tl.exp(top - finite_top)
    weights_f = tl.where(is_filler, weights, 0.0)
    weights_o = weights - weights_f
    sum_o = sum_o * shrink + tl.sum(weights_o, 1)
    sum_f = sum_f * shrink + tl.sum(weights_f, 1)
    out_o = out_o * shrink[:, None] + tl.dot(weights_o, value, input_precision=PRECISION)
    out_f = out_f * shrink[:, None] + tl.dot(weights_f, value, input_precision=PRECISION)
    return new_top, sum_o, sum_f, out_o, out_f


@triton.jit
def _change_attention(
    query_ptr, key_ptr, value_ptr, phantom_key_ptr, phantom_value_ptr, output_ptr, table_ptr,
    slot_ptr, block_ptr, start_ptr, length_ptr, count_ptr, factor, columns, block_columns,
    query_token, query_head, output_token, output_head,
    key_block, key_slot, key_head, key_unit, value_block, value_slot, value_head, value_unit,
    phantom_slot, phantom_token, phantom_head,
    GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr, UNITS: tl.constexpr,
    PADDED_UNITS: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    RANGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The tokens of a tile of a request, for the queries that share a head for keys."""
    request, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    TOKENS: tl.constexpr = ROWS // PADDED_GROUP
    slot = tl.load(slot_ptr + request)
    row = table_ptr + slot * columns
    first = tl.load(start_ptr + request)
    count = tl.load(start_ptr + request + 1) - first
    tile_count = tl.minimum(count - tile * TOKENS, TOKENS)
    if (tl.load(row) == 0) | (tile_count <= 0):
        return
    if head == 0:
        tl.atomic_add(count_ptr, tile_count.to(tl.int64))
    start, end, phantom_size = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    has_scale, has_bias = tl.load(row + 4), tl.load(row + 5)
    rows, units, keys = tl.arange(0, ROWS), tl.arange(0, PADDED_UNITS), tl.arange(0, KEYS)
    token = tile * TOKENS + rows // PADDED_GROUP
    # 7 heads are padded to 8, because the sizes of Triton's tensors are powers of two
    is_row = (token < count) & (rows % PADDED_GROUP < GROUP)
    is_state = is_row[:, None] & (units < UNITS)[None]
    query_heads = head * GROUP + rows % PADDED_GROUP
    offsets = (first + token)[:, None] * query_token + query_heads[:, None] * query_head
    query = tl.load(query_ptr + offsets + units[None], mask=is_state, other=0.0).to(tl.float32)
    before = tl.load(length_ptr + request) - count
    index = before + token
    is_after = index >= end
    top = tl.full([ROWS], float("-inf"), tl.float32)
    sum_o, sum_f = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    out_o = tl.zeros([ROWS, PADDED_UNITS], tl.float32)
    out_f = tl.zeros([ROWS, PADDED_UNITS], tl.float32)
    last = before + tile * TOKENS + tile_count
    for base in range(0, last, KEYS):
        position = base + keys
        is_key = position < last
        block = tl.load(
            block_ptr + request * block_columns + position // PAGE, mask=is_key, other=0
        )
        block, offset = block.to(tl.int64)[:, None], (position % PAGE)[:, None]
        is_loaded = is_key[:, None] & (units < UNITS)[None]
        offsets = block * key_block + offset * key_slot + head * key_head + units[None] * key_unit
        key = tl.load(key_ptr + offsets, mask=is_loaded, other=0.0).to(tl.float32)
        offsets = block * value_block + offset * value_slot + head * value_head
        offsets += units[None] * value_unit
        value = tl.load(value_ptr + offsets, mask=is_loaded, other=0.0).to(tl.float32)
        logs = tl.zeros([ROWS, KEYS], tl.float32)
        for number in range(RANGES):
            range_ptr = row + 6 + 4 * number  # FIRST_RANGE and RANGE_COLUMNS
            is_inside = (position >= tl.load(range_ptr)) & (position < tl.load(range_ptr + 1))
            is_later = index >= tl.load(range_ptr + 2)
            logs = tl.where(is_inside[None] & is_later[:, None], tl.load(range_ptr + 3), logs)
        is_visible = (position[None] <= index[:, None]) & is_key[None]
        logs = tl.where(is_visible, logs, float("-inf"))
        is_filler = ((position >= start) & (position < end))[None] & is_after[:, None]
        top, sum_o, sum_f, out_o, out_f = _add_keys(
            query, key, value, logs, is_filler, factor, top, sum_o, sum_f, out_o, out_f, PRECISION
        )
    for base in range(0, phantom_size.to(tl.int32), KEYS):
        position = base + keys
        is_key = position < phantom_size
        is_loaded = is_key[:, None] & (units < UNITS)[None]
        offsets = slot * phantom_slot + position[:, None] * phantom_token + head * phantom_head
        offsets += units[None]
        key = tl.load(phantom_key_ptr + offsets, mask=is_loaded, other=0.0).to(tl.float32)
        value = tl.load(phantom_value_ptr + offsets, mask=is_loaded, other=0.0).to(tl.float32)
        is_filler = is_key[None] & is_after[:, None]
        logs = tl.where(is_filler, 0.0, float("-inf"))
        top, sum_o, sum_f, out_o, out_f = _add_keys(
            query, key, value, logs, is_filler, factor, top, sum_o, sum_f, out_o, out_f, PRECISION
        )
    # Without `scale`, the original tokens share a sum of 1, as they would without the filler.
    out_o /= (sum_o + has_scale * sum_f)[:, None]
    out = out_o + has_bias * out_f / (sum_o + sum_f)[:, None]
    offsets = (first + token)[:, None] * output_token + query_heads[:, None] * output_head
    out = out.to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + offsets + units[None], out, mask=is_state)


@dataclass
class LayerRows:
    """What changes a layer's attention, by the request's slot in vLLM's runner.

    Attributes:
        table: [slot, column] The rows of `tabulate_row`, filled up with zeros.
        phantoms: Keys and values [slot, token, head, unit] of fillers that are not in the prompt.
        count: [1] The number of changed tokens so far.
    """

    table: Tensor
    phantoms: Sequence[Tensor]
    count: Tensor


@dataclass
class StepRows:
    """The requests of a step, in the order of the batch.

    Attributes:
        slots: [request] Their slots in vLLM's runner.
        blocks: [request, page] Their blocks of the cache.
        starts: [request + 1] The first row of each in the batch, and the end of the last.
        lengths: [request] Their tokens so far, with those of the step.
        most_tokens: The largest number of tokens that a request has in the step.
    """

    slots: Tensor
    blocks: Tensor
    starts: Tensor
    lengths: Tensor
    most_tokens: int


def change_attention(
    query: Tensor,
    cache: Sequence[Tensor],
    output: Tensor,
    factor: float,
    layer: LayerRows,
    step: StepRows,
) -> None:
    """Write the changed attention of a step's requests over their rows of the output.

    Args:
        query: [token, head, unit].
        cache: Keys and values [block, token, head, unit], in any order in memory.
        output: [token, head, unit].
        factor: The factor of scores.
        layer: The changes.
        step: The requests.
    """
    key, value = cache
    units, group = query.shape[2], query.shape[1] // key.shape[2]
    padded_group, padded_units = map(triton.next_power_of_2, (group, units))
    # units for products of matrices need 16 rows or more
    is_decode = step.most_tokens == 1
    prefill_rows = 64 if padded_units <= LARGEST_HEAD // 2 else 32
    rows = max(padded_group, 16 if is_decode else prefill_rows)
    grid = (
        len(step.starts) - 1,
        key.shape[2],
        triton.cdiv(step.most_tokens, rows // padded_group),
    )
    _change_attention[grid](
        *(query, key, value, *layer.phantoms, output, layer.table, step.slots, step.blocks),
        *(step.starts, step.lengths, layer.count, factor),
        *(layer.table.stride(0), step.blocks.stride(0), *query.stride()[:2], *output.stride()[:2]),
        *(*key.stride(), *value.stride(), *layer.phantoms[0].stride()[:3]),
        GROUP=group,
        PADDED_GROUP=padded_group,
        UNITS=units,
        PADDED_UNITS=padded_units,
        PAGE=key.shape[1],
        ROWS=rows,
        KEYS=32,
        RANGES=(layer.table.shape[1] - FIRST_RANGE) // RANGE_COLUMNS,
        # products of half-precision numbers are exact in TF32
        PRECISION="ieee" if key.dtype == torch.float32 else "tf32",
        num_warps=4 if is_decode else 8,
    )
