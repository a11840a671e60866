"""Attention with changes as one Triton kernel, which reads vLLM's paged cache.

A launch needs no numbers of its step from the host, so that a CUDA graph can contain it: what
changes a request's attention is a row of a table on the device. `arithmetic.changed_weights` is the
same in torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.engines.interventions.arithmetic import Change, tabulate_changes

FIRST_RANGE, RANGE_COLUMNS = 6, 4
"""Columns of a row: whether it changes anything, start and end of the filler, its phantom keys,
whether `scale` and `bias` are on; then for each range its first token, the first token after it,
the first later token, and the logarithm of the weight."""
LARGEST_HEAD = 256
"""Units of a head: two sums for 16 rows of queries then fit into the registers of a block."""


def tabulate_row(change: Change) -> Tensor:
    """The row [column] of a change of attention."""
    tabulated = tabulate_changes([change], torch.device("cpu"))
    return torch.cat([torch.ones(1), tabulated.filler.flatten(), tabulated.ranges.flatten()])


@triton.jit
def _change_attention(
    query_ptr, key_ptr, value_ptr, phantom_key_ptr, phantom_value_ptr, output_ptr, table_ptr,
    slot_ptr, block_ptr, start_ptr, length_ptr, count_ptr, factor, block_columns, phantoms,
    block_step, head_step, key_step, key_unit, value_step, value_unit,
    GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr, UNITS: tl.constexpr,
    PADDED_UNITS: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    RANGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The tokens of a tile of a request, for the queries that share a head for keys."""
    request, head, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    TOKENS: tl.constexpr = ROWS // PADDED_GROUP
    slot = tl.load(slot_ptr + request)
    row = table_ptr + slot * (6 + 4 * RANGES)  # FIRST_RANGE and RANGE_COLUMNS
    first = tl.load(start_ptr + request)
    count = tl.load(start_ptr + request + 1) - first
    tile_count = tl.minimum(count - tile * TOKENS, TOKENS)
    if (tl.load(row) == 0) | (tile_count <= 0):
        return
    if head == 0:
        tl.atomic_add(count_ptr, tile_count.to(tl.int64))
    start, end, phantom_count = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3).to(tl.int32)
    rows, units = tl.arange(0, ROWS), tl.arange(0, PADDED_UNITS)[None]
    token = tile * TOKENS + rows // PADDED_GROUP
    # 7 heads are padded to 8, because the sizes of Triton's tensors are powers of two
    is_row = (token < count) & (rows % PADDED_GROUP < GROUP)
    is_unit = units < UNITS
    is_state = is_row[:, None] & is_unit
    query_heads = (first + token) * heads * GROUP + head * GROUP + rows % PADDED_GROUP
    states = query_heads.to(tl.int64)[:, None] * UNITS + units
    query = tl.load(query_ptr + states, mask=is_state, other=0.0).to(tl.float32)
    before = tl.load(length_ptr + request) - count
    index = (before + token)[:, None]
    is_after = index >= end
    # finite, because there may be hidden keys alone in the first block
    top = tl.full([ROWS], -1e30, tl.float32)
    # apart for original tokens and for the filler
    sum_o, sum_f = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
    out_o = tl.zeros([ROWS, PADDED_UNITS], tl.float32)
    out_f = tl.zeros([ROWS, PADDED_UNITS], tl.float32)
    last = before + tile * TOKENS + tile_count
    for base in range(0, last + phantom_count, KEYS):
        position = base + tl.arange(0, KEYS)
        is_key, phantom = position < last, position - last
        is_phantom = (phantom >= 0) & (phantom < phantom_count)
        block = tl.load(
            block_ptr + request * block_columns + position // PAGE, mask=is_key, other=0
        )
        page = block.to(tl.int64)[:, None] * block_step + head * head_step
        offset = (position % PAGE)[:, None]
        key_states = page + offset * key_step + units * key_unit
        value_states = page + offset * value_step + units * value_unit
        phantom_states = ((slot * phantoms + phantom)[:, None] * heads + head) * UNITS + units
        in_cache, in_phantoms = is_key[:, None] & is_unit, is_phantom[:, None] & is_unit
        # each key is in one of the two places, and zero in the other
        key = tl.load(key_ptr + key_states, mask=in_cache, other=0.0).to(tl.float32)
        key += tl.load(phantom_key_ptr + phantom_states, mask=in_phantoms, other=0.0)
        value = tl.load(value_ptr + value_states, mask=in_cache, other=0.0).to(tl.float32)
        value += tl.load(phantom_value_ptr + phantom_states, mask=in_phantoms, other=0.0)
        logs = tl.zeros([ROWS, KEYS], tl.float32)
        for number in range(RANGES):
            range_ptr = row + 6 + 4 * number
            is_inside = (position >= tl.load(range_ptr)) & (position < tl.load(range_ptr + 1))
            is_changed = is_inside[None] & (index >= tl.load(range_ptr + 2))
            logs = tl.where(is_changed, tl.load(range_ptr + 3), logs)
        is_inside = is_key & (position >= start) & (position < end)
        is_filler = (is_inside | is_phantom)[None] & is_after
        is_visible = is_filler | (is_key[None] & (position[None] <= index))
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * factor + logs
        scores = tl.where(is_visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - new_top[:, None]), tl.exp(top - new_top)
        weights_f = tl.where(is_filler, weights, 0.0)
        weights_o = weights - weights_f
        sum_o = sum_o * shrink + tl.sum(weights_o, 1)
        sum_f = sum_f * shrink + tl.sum(weights_f, 1)
        shrink, top = shrink[:, None], new_top
        out_o = out_o * shrink + tl.dot(weights_o, value, input_precision=PRECISION)
        out_f = out_f * shrink + tl.dot(weights_f, value, input_precision=PRECISION)
    # Without `scale`, the original tokens share a sum of 1, as they would without the filler.
    out_o /= (sum_o + tl.load(row + 4) * sum_f)[:, None]
    out = out_o + tl.load(row + 5) * out_f / (sum_o + sum_f)[:, None]
    tl.store(output_ptr + states, out.to(output_ptr.dtype.element_ty), mask=is_state)


@dataclass
class LayerChanges:
    """What changes a layer's attention, by the request's slot in vLLM's runner.

    Attributes:
        table: [slot, column] The rows of `tabulate_row`, filled up with zeros.
        phantoms: [2, slot, token, head, unit] Keys and values of fillers outside the prompt.
        count: [1] The number of changed tokens so far.
        slots: [request] The slots of a step's requests.
    """

    table: Tensor
    phantoms: Tensor
    count: Tensor
    slots: Tensor


def change_attention(
    query: Tensor,
    cache: Sequence[Tensor],
    output: Tensor,
    factor: float,
    changes: LayerChanges,
    metadata: Any,
) -> None:
    """Write the changed attention of a step's requests over their rows of the output.

    Args:
        query: [token, head, unit].
        cache: Keys and values [block, token, head, unit], both in one tensor.
        output: [token, head, unit], contiguous.
        factor: The factor of scores.
        changes: The layer's changes.
        metadata: vLLM's metadata of the step.
    """
    key, value = cache
    units, group = query.shape[2], query.shape[1] // key.shape[2]
    block_step, key_step, head_step, key_unit = key.stride()
    padded_group, padded_units = map(triton.next_power_of_2, (group, units))
    is_decode = metadata.max_query_len == 1
    # units for products of matrices need 16 rows or more
    prefill_rows = 64 if padded_units <= LARGEST_HEAD // 2 else 32
    rows = max(padded_group, 16 if is_decode else prefill_rows)
    tiles = triton.cdiv(metadata.max_query_len, rows // padded_group)
    _change_attention[len(metadata.query_start_loc) - 1, key.shape[2], tiles](
        *(query.contiguous(), key, value, *changes.phantoms, output, changes.table, changes.slots),
        *(metadata.block_table, metadata.query_start_loc, metadata.seq_lens, changes.count),
        *(factor, metadata.block_table.stride(0), changes.phantoms.shape[2]),
        *(block_step, head_step, key_step, key_unit, value.stride(1), value.stride(3)),
        GROUP=group,
        PADDED_GROUP=padded_group,
        UNITS=units,
        PADDED_UNITS=padded_units,
        PAGE=key.shape[1],
        ROWS=rows,
        KEYS=32,
        RANGES=(changes.table.shape[1] - FIRST_RANGE) // RANGE_COLUMNS,
        # products of half-precision numbers are exact in TF32
        PRECISION="ieee" if key.dtype == torch.float32 else "tf32",
        num_warps=4 if is_decode else 8,
    )
