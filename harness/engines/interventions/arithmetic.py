"""The arithmetic of interventions on tensors. The same functions serve vLLM and Hugging Face.

They compute token by token, so an answer does not depend on batches, chunks or caches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from harness.engines.interventions.user_functions import load_change
from harness.experiment.intervention_settings import TARGET_BY_KIND

OUTWARD_QUANTILE = 0.995
"""Activations move outward up to this quantile: p1 of the study's ARM for Qwen2.5-Math-1.5B and
Qwen2.5-7B."""

Change = Mapping[str, Any]
"""A change of a request, as `intervention_settings.resolve_interventions` makes it."""


def select_changes(changes: Sequence[Change], layer: int, target: str) -> list[Change]:
    """The changes of a layer's target: one of TARGET_BY_KIND. There is at most one of attention."""
    return [
        change
        for change in changes
        if layer in change["layers"] and TARGET_BY_KIND[change["kind"]] == target
    ]


@dataclass(frozen=True)
class AttentionChanges:
    """Changes of the attention of several sequences, as tensors on the device.

    Attributes:
        filler_numbers: [5, sequence, 1, 1] Five numbers on a sequence's filler: the index of its
            first token; the index of the first token after it; the number of its phantom keys;
            whether original tokens have less weight because of it; and whether its values are
            added. A phantom key is that of a token of a filler that is not in the prompt. Then the
            first two indices are equal.
        most_phantoms: The largest number of phantom keys. All sequences are padded to it.
        ranges: [range, 4, sequence, 1, 1] Four numbers on a range of tokens with a weight: the
            index of the first; of the first token after them; of the first query for which they
            have the weight; and the logarithm of the weight.
    """

    filler_numbers: Tensor
    most_phantoms: int
    ranges: Tensor


def tabulate_changes(changes: Sequence[Change], device: torch.device) -> AttentionChanges:
    """Changes of attention as tensors; those of the kind `attention` have an empty filler.

    Args:
        changes: One for each sequence of the batch, in their order; equal ones may recur.
        device: The device of the tensors.
    """
    phantom_counts = [len(change.get("phantom", ())) for change in changes]
    filler_rows = []
    for change, phantom_count in zip(changes, phantom_counts, strict=True):
        start = change.get("start", 0)
        # a filler with phantom keys has no tokens in the prompt
        end = start if phantom_count else start + change.get("size", 0)
        filler_rows.append(
            (start, end, phantom_count, change.get("scale", True), change.get("bias", True))
        )
    range_lists = [change.get("weights", []) for change in changes]
    most_ranges = max(map(len, range_lists))
    # padded by ranges without tokens, whose weight of 1 would change nothing
    padded_lists = [ranges + [[0, 0, 0, 1]] * (most_ranges - len(ranges)) for ranges in range_lists]
    # [sequence, range, 4]; float32 represents positions exactly
    range_table = np.array(padded_lists, np.float32).reshape(len(changes), most_ranges, 4)
    with np.errstate(divide="ignore"):  # the logarithm of weight 0 is -inf, which hides a token
        range_table[..., 3] = np.log(range_table[..., 3])
    return AttentionChanges(
        filler_numbers=copy_to(device, filler_rows).T[:, :, None, None],
        most_phantoms=max(phantom_counts),
        ranges=copy_to(device, range_table).permute(1, 2, 0)[..., None, None],
    )


def copy_to(device: torch.device, numbers: Any) -> Tensor:
    """Numbers of lists or of an array, on the device.

    A copy from pinned memory is queued. Other copies wait until the device has no work left.
    """
    tensor = torch.from_numpy(np.asarray(numbers))  # numpy reads a list in a third of torch's time
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def attend_with_changes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_factor: float,
    query_indices: Tensor,
    changes: AttentionChanges,
) -> Tensor:
    """The output of causal attention whose weights are those of `changed_weights`.

    The arguments are those of `changed_weights`, and `value`, in the shape of `key`. The result is
    [sequence, token, head, unit] in float32.
    """
    weights = changed_weights(query, key, score_factor, query_indices, changes)
    # b sequence, h KV head, g query head of this KV head, t query, l key, d unit
    return torch.einsum("bhgtl,bhld->bthgd", weights, _move_heads_first(value)).flatten(2, 3)


def changed_weights(
    query: Tensor,
    key: Tensor,
    score_factor: float,
    query_indices: Tensor,
    changes: AttentionChanges,
) -> Tensor:
    """The weights of changed attention, computed in float32.

    A filler has effects only on queries after its end. Where `scale` is off, original tokens have
    the weights that they would have without the filler. Where `bias` is off, the filler's values
    are not added. The logarithm of the weight of a range is added to the scores of its tokens, for
    the queries for which they have the weight; of several ranges that contain a token, the last one
    holds.

    Args:
        query: [sequence, token, head, unit], of any dtype.
        key: [sequence, position, head for keys, unit]; the last `changes.most_phantoms` positions
            are phantoms, which are not in the prompt.
        score_factor: The factor of scores.
        query_indices: [sequence, token] The index of each query in its sequence.
        changes: The sequences' changes.

    Returns:
        [sequence, head for keys, head of these, token, position] in float32.
    """
    query_index = query_indices[:, :, None]  # [sequence, token, 1]
    key_index = torch.arange(key.shape[1] - changes.most_phantoms, device=query.device)
    phantom_index = torch.arange(changes.most_phantoms, device=query.device)
    # each [sequence, 1, 1]; the switches `has_scale` and `has_bias` are 0 or 1
    start, end, phantom_counts, has_scale, has_bias = changes.filler_numbers
    # all these masks are [sequence, token, position]
    is_after_filler = query_index >= end
    is_phantom = (phantom_index < phantom_counts) & is_after_filler
    is_in_filler = (key_index >= start) & (key_index < end) & is_after_filler
    # causal: a query sees no later key
    log_weights = torch.where(key_index <= query_index, 0.0, -torch.inf)
    for first, stop, first_query, log_weight in changes.ranges:
        has_weight = (key_index >= first) & (key_index < stop) & (query_index >= first_query)
        log_weights = torch.where(has_weight, log_weight, log_weights)
    phantom_log_weights = torch.where(is_phantom, 0.0, -torch.inf)
    # the weights with the filler and with all phantoms of a sequence
    weights = plain_weights(
        query, key, score_factor, torch.cat([log_weights, phantom_log_weights], -1)[:, None, None]
    )
    is_filler = torch.cat([is_in_filler, is_phantom], -1)[:, None, None]
    weights = weights.masked_fill_(is_filler & (has_bias == 0)[:, None, None], 0)
    original_sum = weights.masked_fill(is_filler, 0).sum(-1, keepdim=True)
    # Without `scale`, the weights of original tokens add up to 1, as they would without the filler.
    divisor = torch.where(has_scale[:, None, None] == 1, 1, original_sum)
    return torch.where(is_filler, weights, weights / divisor)


def plain_weights(query: Tensor, key: Tensor, score_factor: float, log_weights: Tensor) -> Tensor:
    """The weights of attention, in the shape of those of `changed_weights`.

    `log_weights` are added to the scores, to which they broadcast; -inf hides a key.
    """
    # b sequence, t query, h KV head, g query head of this KV head, d unit, l key
    grouped_query = query.float().view(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = torch.einsum("bthgd,bhld->bhgtl", grouped_query, _move_heads_first(key))
    return scores.mul_(score_factor).add_(log_weights).softmax(-1)


def _move_heads_first(states: Tensor) -> Tensor:
    """States [sequence, position, head, unit] as [sequence, head, position, unit] in float32.

    They are copied, so that einsum finds them in this order in memory.
    """
    return states.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def change_activations(activations: Tensor, positions: Tensor, change: Change) -> Tensor:
    """Activations [token, unit] of an MLP, after a change; positions [token]."""
    if change["kind"] == "function":
        changed_activations: Tensor = load_change(change["file"])(
            activations, positions, **change["arguments"]
        )
    else:
        changed_activations = redistribute(
            activations.float(),
            positions,
            change["share"],
            sham=change["sham"],
            seed=change["seed"],
        )
    return changed_activations.to(activations.dtype)


def change_outputs(outputs: Tensor, is_changed: Tensor, change: Change, source: Tensor) -> Tensor:
    """Outputs [token, unit] of an MLP, with those of some tokens replaced.

    Args:
        outputs: The outputs.
        is_changed: [token] Whether the token is one of the change's `tokens`.
        change: A change of the kind `mlp_output`.
        source: [unit] or [token, unit] The output in the same layer of the last token of the
            change's `source`.
    """
    replacement = _make_replacement(outputs.float(), source.float(), change)
    return torch.where(is_changed[:, None], replacement.to(outputs.dtype), outputs)


def _make_replacement(own_outputs: Tensor, source_outputs: Tensor, change: Change) -> Tensor:
    """What replaces outputs [token, unit] of an MLP: [unit] or [token, unit].

    It is made of the source's outputs or of the token's own ones, as the change's `from` says.
    """
    source_norm: Tensor = source_outputs.norm(dim=-1, keepdim=True)
    # all tokens get the numbers of position 0, so that they have the same direction and order
    position = torch.zeros(1, device=source_outputs.device, dtype=torch.long)
    (random_numbers,) = draw_numbers(position, source_outputs.shape[-1], change["seed"])
    random_order = random_numbers.argsort(stable=True)
    match change["from"]:
        case "random":
            # A vector of normal numbers has no preferred direction. The function `ndtri` makes
            # normal numbers of uniform ones; 0 and 1 would become infinite.
            direction = torch.special.ndtri(random_numbers.clamp(1e-6, 1 - 1e-6))
            return torch.div(direction * source_norm, direction.norm())
        case "permuted":
            return source_outputs[..., random_order]
        case "permuted_own":
            return own_outputs[:, random_order]
        case "removed":
            # the own outputs without their projection on the source's
            dot_products = (own_outputs * source_outputs).sum(-1, keepdim=True)
            return own_outputs - dot_products / source_norm**2 * source_outputs
        case _:
            # `first` and `ordinary`: the source ends with the prompt's first token, or with the
            # instruction's last one
            return source_outputs


def redistribute(
    activations: Tensor, positions: Tensor, share: float, *, sham: str | None = None, seed: int
) -> Tensor:
    """Move the activations [token, unit] nearest to zero outward; they keep their sign.

    Of each token this `share` of its activations moves to a random fraction of the token's large
    quantile; negative activations move to a fraction of its smallest activation. A sham moves as
    many other activations by the same norm for each token: `random` ones outward, or the largest
    ones `inward`.

    Source:
        ARM of Shi et al., arXiv 2510.01032, with the statistics of a token in place of a prompt.
    """
    unit_count = activations.shape[-1]
    small_count = max(1, round(share * unit_count))
    magnitudes = activations.abs()
    fractions = draw_numbers(positions, unit_count, seed)
    # [token, unit] each token has its own threshold, because prompts come in chunks
    is_small = magnitudes <= magnitudes.kthvalue(small_count, -1, keepdim=True).values
    outer_ends = torch.where(
        activations >= 0,
        activations.kthvalue(int(OUTWARD_QUANTILE * unit_count), -1, keepdim=True).values,
        activations.amin(-1, keepdim=True),
    )
    steps = torch.where(is_small, outer_ends * fractions - activations, 0)
    if sham is None:
        return activations + steps
    # A sham moves the units with the largest ranks: `inward` those with the largest magnitudes,
    # `random` those with the largest of random numbers.
    ranks = magnitudes if sham == "inward" else draw_numbers(positions, unit_count, seed + 1)
    is_moved = ranks > ranks.kthvalue(unit_count - small_count, -1, keepdim=True).values
    # Only the proportions of these steps matter, because `norm_ratios` below gives them the norm of
    # ARM's steps. A fraction may be almost 0; with 0.5 added, every chosen unit clearly moves.
    outward_steps = torch.where(is_moved, activations.sign() * (0.5 + fractions), 0)
    sham_steps = -outward_steps if sham == "inward" else outward_steps
    norm_ratios: Tensor = steps.norm(dim=-1, keepdim=True) / sham_steps.norm(dim=-1, keepdim=True)
    # Activations that are zero have no sign, so all sham steps of a token may be zero. Its ratio is
    # then infinity or NaN, which nan_to_num makes finite: the product with the steps is zero.
    return activations + sham_steps * norm_ratios.nan_to_num()


def draw_numbers(positions: Tensor, unit_count: int, seed: int) -> Tensor:
    """Random numbers [token, unit] in [0, 1), the same in all batches, chunks and engines.

    They depend on the seed, the position and the unit alone.
    """
    units = torch.arange(unit_count, device=positions.device)
    # An integer hash, because torch's generators give other numbers on other devices. Its constants
    # only have to be large and odd.
    hashes = (positions[:, None] + 1) * 40503 + units * 104729 + (seed + 1) * 12345
    for shift in (13, 16, 11):
        hashes = ((hashes ^ (hashes >> shift)) * 1274126177) & 0x7FFFFFFF
    # float32 represents 24 bits exactly
    return (hashes & 0xFFFFFF).float() / 2**24


def add_gap(positions: Tensor, start: Tensor | int, size: Tensor | int) -> Tensor:
    """Positions of prompts without a filler, moved as if the filler were there, at `start`."""
    return positions + torch.where(positions >= start, size, 0)
