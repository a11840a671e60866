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


def changes_of(changes: Sequence[Change], layer: int, target: str) -> list[Change]:
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
        filler: [5, sequence, 1, 1] The index of the filler's first token; of the first token after
            it in the prompt, which is the same for a phantom; the number of its phantom keys;
            whether original tokens have less weight because of it; and whether its values are
            added.
        padded_size: The largest number of phantom keys. All sequences are padded to it.
        ranges: [range, 4, sequence, 1, 1] Tokens with weights: the index of the first, of the first
            token after them, of the first later token, and the logarithm of the weight.
    """

    filler: Tensor
    padded_size: int
    ranges: Tensor


def tabulate_changes(changes: Sequence[Change], device: torch.device) -> AttentionChanges:
    """Changes of attention as tensors; those of the kind `attention` have an empty filler.

    Args:
        changes: One for each sequence of the batch, in their order; equal ones may recur.
        device: The device of the tensors.
    """
    rows = []
    for change in changes:
        phantom_size, start = len(change.get("phantom", ())), change.get("start", 0)
        end = start + (0 if phantom_size else change.get("size", 0))
        rows.append((start, end, phantom_size, change.get("scale", True), change.get("bias", True)))
    weights = [change.get("weights", []) for change in changes]
    range_count = max(map(len, weights))
    # a weight of 1 changes nothing
    padded = [ranges + [[0, 0, 0, 1]] * (range_count - len(ranges)) for ranges in weights]
    # [sequence, range, value]; float32 represents positions exactly
    table = np.array(padded, np.float32).reshape(len(changes), range_count, 4)
    with np.errstate(divide="ignore"):  # of weight 0, which hides
        table[..., 3] = np.log(table[..., 3])
    return AttentionChanges(
        filler=copy_to(device, rows).T[:, :, None, None],
        padded_size=max(len(change.get("phantom", ())) for change in changes),
        ranges=copy_to(device, table).permute(1, 2, 0)[..., None, None],
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
    factor: float,
    indices: Tensor,
    changes: AttentionChanges,
) -> Tensor:
    """The output of causal attention whose weights are those of `weigh`.

    The arguments are those of `weigh`, and `value`, in the shape of `key`. The result is
    [sequence, token, head, unit] in float32.
    """
    weights = weigh(query, key, factor, indices, changes)
    # b sequence, h KV head, g query head of this KV head, t query, l key, d unit
    return torch.einsum("bhgtl,bhld->bthgd", weights, _heads_first(value)).flatten(2, 3)


def weigh(
    query: Tensor, key: Tensor, factor: float, indices: Tensor, changes: AttentionChanges
) -> Tensor:
    """The weights of changed attention, computed in float32.

    Where `scale` is off, original tokens have the weights that they would have without the filler.
    Where `bias` is off, the filler's values are not added. Queries before the filler's end are
    unchanged. The logarithm of a token's last weight is added to the scores of later queries.

    Args:
        query: [sequence, token, head, unit], of any dtype.
        key: [sequence, position, head for keys, unit]; the last `changes.padded_size` positions are
            phantoms, which are not in the prompt.
        factor: The factor of scores.
        indices: [sequence, token] The index of each query in its sequence.
        changes: The sequences' changes.

    Returns:
        [sequence, head for keys, head of these, token, position] in float32.
    """
    # [sequence, token, 1], against [position]
    indices = indices[:, :, None]
    positions = torch.arange(key.shape[1] - changes.padded_size, device=query.device)
    phantoms = torch.arange(changes.padded_size, device=query.device)
    start, end, phantom_sizes, has_scale, has_bias = changes.filler
    is_after = indices >= end
    is_phantom = (phantoms < phantom_sizes) & is_after
    is_inside = (positions >= start) & (positions < end) & is_after
    # [sequence, token, position]
    log_weights = torch.where(positions <= indices, 0.0, -torch.inf)
    for first, stop, later, log_weight in changes.ranges:
        is_changed = (positions >= first) & (positions < stop) & (indices >= later)
        log_weights = torch.where(is_changed, log_weight, log_weights)
    phantom_logs = torch.where(is_phantom, 0.0, -torch.inf)
    weights = plain_weights(
        query, key, factor, torch.cat([log_weights, phantom_logs], -1)[:, None, None]
    )
    is_filler = torch.cat([is_inside, is_phantom], -1)[:, None, None]
    weights = weights.masked_fill_(is_filler & (has_bias == 0)[:, None, None], 0)
    original_sum = weights.masked_fill(is_filler, 0).sum(-1, keepdim=True)
    # Without `scale`, the original tokens share a sum of 1, as they would without the filler.
    divisor = torch.where(has_scale[:, None, None] == 1, 1, original_sum)
    return torch.where(is_filler, weights, weights / divisor)


def plain_weights(query: Tensor, key: Tensor, factor: float, log_weights: Tensor) -> Tensor:
    """The weights of attention, in the shape of those of `weigh`.

    `log_weights` are added to the scores, to which they broadcast; -inf hides a key.
    """
    queries = query.float().view(*query.shape[:2], key.shape[2], -1, query.shape[3])
    scores = torch.einsum("bthgd,bhld->bhgtl", queries, _heads_first(key)).mul_(factor)
    return scores.add_(log_weights).softmax(-1)


def _heads_first(states: Tensor) -> Tensor:
    """[sequence, head, position, unit] in float32, in this order in memory for einsum."""
    return states.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format)


def change_activations(activations: Tensor, positions: Tensor, intervention: Change) -> Tensor:
    """Activations [token, unit] of an MLP, changed by an intervention; positions [token]."""
    kind = intervention["kind"]
    if kind == "function":
        changed: Tensor = load_change(intervention["file"])(
            activations, positions, **intervention["arguments"]
        )
    else:
        changed = redistribute(
            activations.float(),
            positions,
            intervention["share"],
            sham=intervention["sham"],
            seed=intervention["seed"],
        )
    return changed.to(activations.dtype)


def change_outputs(outputs: Tensor, is_changed: Tensor, change: Change, source: Tensor) -> Tensor:
    """Outputs [token, unit] of an MLP, with those of some tokens replaced.

    Args:
        outputs: The outputs.
        is_changed: [token] Whether the token is one of the change's `tokens`.
        change: A change of the kind `mlp_output`.
        source: [unit] or [token, unit] The output in the same layer of the last token of the
            change's `source`.
    """
    unchanged, replacement = outputs.float(), source.float()
    # the numbers of position 0, for all tokens
    position = torch.zeros(1, device=source.device, dtype=torch.long)
    (numbers,) = draw(position, source.shape[-1], change["seed"])
    norm, order = replacement.norm(dim=-1, keepdim=True), numbers.argsort(stable=True)
    if change["from"] == "random":
        # normal numbers have no preferred direction; 0 and 1 would be infinite
        direction = torch.special.ndtri(numbers.clamp(1e-6, 1 - 1e-6))
        replacement = direction * norm / direction.norm()
    elif change["from"] == "permuted":
        replacement = replacement[..., order]
    elif change["from"] == "permuted_own":
        replacement = unchanged[:, order]
    elif change["from"] == "removed":
        projection = (unchanged * replacement).sum(-1, keepdim=True) / norm**2 * replacement
        replacement = unchanged - projection
    return torch.where(is_changed[:, None], replacement.to(outputs.dtype), outputs)


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
    units = activations.shape[-1]
    small_count = max(1, round(share * units))
    sizes, fractions = activations.abs(), draw(positions, units, seed)
    # [token, unit] each token has its own threshold, because prompts come in chunks
    is_small = sizes <= sizes.kthvalue(small_count, -1, keepdim=True).values
    ends = torch.where(
        activations >= 0,
        activations.kthvalue(int(OUTWARD_QUANTILE * units), -1, keepdim=True).values,
        activations.amin(-1, keepdim=True),
    )
    steps = torch.where(is_small, ends * fractions - activations, 0)
    if sham is not None:
        ranks = sizes if sham == "inward" else draw(positions, units, seed + 1)
        is_moved = ranks > ranks.kthvalue(units - small_count, -1, keepdim=True).values
        sham_steps = torch.where(is_moved, activations.sign() * (0.5 + fractions), 0)
        if sham == "inward":
            sham_steps = -sham_steps
        norms = sham_steps.norm(dim=-1, keepdim=True)
        # activations that are zero have no sign, so a token may have none that a sham can move
        steps = sham_steps * (steps.norm(dim=-1, keepdim=True) / norms).nan_to_num()
    return activations + steps


def draw(positions: Tensor, units: int, seed: int) -> Tensor:
    """Random numbers [token, unit] in [0, 1), the same in all batches, chunks and engines.

    They depend on the seed, the position and the unit alone.
    """
    unit = torch.arange(units, device=positions.device)
    # an integer hash, because torch's generators give other numbers on other devices
    hashes = (positions[:, None] + 1) * 40503 + unit * 104729 + (seed + 1) * 12345
    for shift in (13, 16, 11):
        hashes = ((hashes ^ (hashes >> shift)) * 1274126177) & 0x7FFFFFFF
    # float32 represents 24 bits exactly
    return (hashes & 0xFFFFFF).float() / 2**24


def add_gap(positions: Tensor, start: Tensor | int, size: Tensor | int) -> Tensor:
    """Positions of prompts without a filler, moved as if the filler were there, at `start`."""
    return positions + torch.where(positions >= start, size, 0)
