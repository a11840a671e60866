"""Attention with changes as one Triton kernel, which reads vLLM's paged cache.

A launch needs no numbers of its step from the host, so that a CUDA graph can contain it: what
changes a request's attention is a row of a table on the device. `arithmetic.changed_weights` is the
same in torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.engines.interventions.arithmetic import Change, tabulate_changes

LARGEST_HEAD = 256
"""Units of a head. A tile of a prompt has 16 x 256 numbers of queries, more only if many heads
share a key, so that the two sums of its outputs fit into registers."""


def tabulate_row(change: Change) -> Tensor:
    """A change of attention as the row [column] of a table.

    The columns are: whether anything is changed, start and end of the filler, its phantom keys,
    whether `scale` and `bias` are on; then for each range its first token, the first token after
    it, the first later token, and the logarithm of the weight.
    """
    tabulated = tabulate_changes([change], torch.device("cpu"))
    ranges = tabulated.ranges.flatten()
    return torch.cat([ranges.new_ones(1), tabulated.filler_numbers.flatten(), ranges])


@triton.jit
def _change_attention(
    query_ptr, key_ptr, value_ptr, phantom_key_ptr, phantom_value_ptr, output_ptr, table_ptr,
    row_ptr, block_ptr, start_ptr, length_ptr, count_ptr, factor, block_columns, phantoms,
    columns, block_step, key_step, head_step, key_unit, value_step,
    GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr, UNITS: tl.constexpr,
    PADDED_UNITS: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The tokens of a tile of a request, for the queries that share a head for keys."""
    # CUDA allows more than 65,535 programs in the first dimension alone
    tile, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    heads = tl.num_programs(1)
    tokens = ROWS // PADDED_GROUP
    first = tl.load(start_ptr + request)
    number = tl.load(row_ptr + first)
    row = table_ptr + number * columns
    count = tl.load(start_ptr + request + 1) - first
    tile_count = tl.minimum(count - tile * tokens, tokens)
    if (tl.load(row) == 0) | (tile_count <= 0):
        return
    if head == 0:
        tl.atomic_add(count_ptr, tile_count.to(tl.int64))
    start, end, phantom_count = tl.load(row + 1), tl.load(row + 2), tl.load(row + 3).to(tl.int32)
    rows, units = tl.arange(0, ROWS), tl.arange(0, PADDED_UNITS)[None]
    token = tile * tokens + rows // PADDED_GROUP
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
    last = before + tile * tokens + tile_count
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
        value_states = page + offset * value_step + units
        phantom_states = ((number * phantoms + phantom)[:, None] * heads + head) * UNITS + units
        in_cache, in_phantoms = is_key[:, None] & is_unit, is_phantom[:, None] & is_unit
        # each key is in one of the two places, and zero in the other
        key = tl.load(key_ptr + key_states, mask=in_cache, other=0.0).to(tl.float32)
        key += tl.load(phantom_key_ptr + phantom_states, mask=in_phantoms, other=0.0)
        value = tl.load(value_ptr + value_states, mask=in_cache, other=0.0).to(tl.float32)
        value += tl.load(phantom_value_ptr + phantom_states, mask=in_phantoms, other=0.0)
        logs = tl.zeros([ROWS, KEYS], tl.float32)
        for column in range(6, columns, 4):
            range_ptr = row + column
            is_inside = (position >= tl.load(range_ptr)) & (position < tl.load(range_ptr + 1))
            is_changed = is_inside[None] & (index >= tl.load(range_ptr + 2))
            logs = tl.where(is_changed, tl.load(range_ptr + 3), logs)
        # positions after the last query may be inside, but then no query is after the filler
        is_inside = (position >= start) & (position < end)
        is_filler = (is_inside | is_phantom)[None] & is_after
        is_visible = is_filler | (position[None] <= index)
        scores = tl.dot(query, tl.trans(key)) * factor + logs
        scores = tl.where(is_visible, scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        weights, shrink = tl.exp(scores - new_top[:, None]), tl.exp(top - new_top)
        weights_f = tl.where(is_filler, weights, 0.0)
        weights_o = weights - weights_f
        sum_o = sum_o * shrink + tl.sum(weights_o, 1)
        sum_f = sum_f * shrink + tl.sum(weights_f, 1)
        shrink, top = shrink[:, None], new_top
        out_o = out_o * shrink + tl.dot(weights_o, value)
        out_f = out_f * shrink + tl.dot(weights_f, value)
    # Without `scale`, the original tokens share a sum of 1, as they would without the filler.
    out_o /= (sum_o + tl.load(row + 4) * sum_f)[:, None]
    out = out_o + tl.load(row + 5) * out_f / (sum_o + sum_f)[:, None]
    tl.store(output_ptr + states, out.to(output_ptr.dtype.element_ty), mask=is_state)


def change_attention(
    query: Tensor,
    cache: Sequence[Tensor],
    output: Tensor,
    factor: float,
    changes: Sequence[Tensor],
    metadata: Any,
) -> None:
    """Write the changed attention of a step's requests over their rows of the output.

    As in vLLM's own kernel TRITON_F32_DEFAULT is the precision of products, whose default, TF32, is
    exact for half-precision states.

    Args:
        query: [token, head, unit].
        cache: Keys and values [block, token, head, unit], both in one tensor.
        output: [token, head, unit], contiguous.
        factor: The factor of scores.
        changes: The layer's table [row, column] of `tabulate_row`, filled up with zeros; keys and
            values [2, row, token, head, unit] of fillers outside the prompt; the row of each token
            of the step, and one number more; the number of changed tokens so far.
        metadata: vLLM's metadata of the step.
    """
    (key, value), (table, phantoms, rows, count) = cache, changes
    units, group = query.shape[2], query.shape[1] // key.shape[2]
    # tensor cores multiply 16 rows at once; with 8 columns Triton spills more registers
    padded_units = max(16, triton.next_power_of_2(units))
    padded_group = triton.next_power_of_2(group)
    is_decode = metadata.max_query_len == 1
    tile_rows = max(padded_group, 16 if is_decode else 16 * LARGEST_HEAD // padded_units)
    tiles = triton.cdiv(metadata.max_query_len, tile_rows // padded_group)
    _change_attention[tiles, key.shape[2], len(metadata.query_start_loc) - 1](
        query.contiguous(),
        *cache,
        *phantoms,
        output,
        table,
        rows,
        metadata.block_table,
        metadata.query_start_loc,
        metadata.seq_lens,
        count,
        factor,
        metadata.block_table.stride(0),
        phantoms.shape[2],
        table.shape[1],
        *key.stride(),
        value.stride(1),
        GROUP=group,
        PADDED_GROUP=padded_group,
        UNITS=units,
        PADDED_UNITS=padded_units,
        PAGE=key.shape[1],
        ROWS=tile_rows,
        KEYS=32,
    )
