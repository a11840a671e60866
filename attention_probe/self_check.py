"""Whether the probe's numbers can be believed: one prompt of each probe computed in other ways."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attention_probe.measure.decomposition import inserted_tokens
from attention_probe.model.attention_statistics import Capture
from attention_probe.model.capture import capture, takes_positions
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.probe_config import ProbeSettings
from attention_probe.prompts.token_roles import TokenizedPrompt
from harness.constants import CHECKED_TOKENS, SAMPLED_QUERIES
from harness.errors import ModelError


def self_check(
    loaded: LoadedModel, prompts: Mapping[str, Mapping[str, TokenizedPrompt]], settings: ProbeSettings
) -> dict[str, Any]:
    """Compute one prompt by other ways: eager attention, the first layer's identity, and float32 if that is not used.

    What is recorded beyond the weights is tried on one token, so that a model that lacks it is refused before a folder
    is begun.

    Args:
        loaded: The model, ready to run as it will be recorded.
        prompts: Of every problem by condition.
        settings: What will be recorded.

    Returns:
        The largest errors by name, the prompt they are of, and notices of what could not be checked.

    Raises:
        ModelError: the model gives no attention, or not what is to be recorded.
    """
    longest = [max(by_condition.values(), key=len) for by_condition in prompts.values()]
    prompt = max(longest, key=lambda p: (len(p) <= CHECKED_TOKENS, -abs(len(p) - CHECKED_TOKENS)))
    token_ids = torch.from_numpy(prompt.token_ids.astype(np.int64))
    checks: dict[str, Any] = {
        "condition": prompt.condition,
        "prompt_tokens": len(prompt),
        "eager_error": eager_error(loaded, token_ids[None]),
    }
    record = settings.record
    tried = capture(
        loaded,
        token_ids[None, :1],
        key_regions=torch.ones(1, 1, 1, dtype=torch.bool),
        output_region=0 if record.decompose else None,
        activations=record.activations,
    )
    notices = list(tried.notices)
    inserted = np.flatnonzero(inserted_tokens(prompt))
    span = (int(inserted[0]), int(inserted[-1]) + 1) if len(inserted) else (0, 0)
    if 0 in loaded.layers and 0 < len(inserted) == span[1] - span[0] and span[1] < len(prompt):
        error = identity_error(loaded, token_ids, span) if takes_positions(loaded) else None
        if error is not None:
            checks["identity_error"] = error
        else:
            notices.append(f"Layer 1 identity not checked: {_why_unchecked(loaded)}.")
    if settings.dtype != "float32":
        exact = capture(settings.load_model(dtype="float32"), token_ids[None])
        checks["dtype_error"] = largest_difference(capture(loaded, token_ids[None]), exact)
    return checks | {"notices": notices}


def _why_unchecked(loaded: LoadedModel) -> str:
    if not takes_positions(loaded):
        return f"{type(loaded.model).__name__} counts positions itself, so they cannot be shifted"
    window = getattr(loaded.config, "sliding_window", None)
    by = f" by the window of {window} tokens" if window else ""
    return f"every token after the filler has an earlier one hidden from it{by}"


def eager_error(
    loaded: LoadedModel,
    token_ids: Int[Tensor, "batch seq"],
    *,
    attention_mask: Int[Tensor, "batch seq"] | None = None,
) -> float | None:
    """Largest difference between captured column means and those of eager `output_attentions`, over layers and heads.

    Keeps whole attention matrices for the loaded layers, so the prompt should be an ordinary one.

    Returns:
        The difference; None where the captured ones are eager's own, and would be compared with themselves.

    Raises:
        ModelError: the model gives no attention weights, or not finite ones.
    """
    ours = capture(loaded, token_ids, attention_mask=attention_mask)
    if ours.eager:
        return None
    return largest_difference(ours, capture(loaded, token_ids, attention_mask=attention_mask, eager=True))


def identity_error(loaded: LoadedModel, token_ids: Int[Tensor, " seq"], filler: tuple[int, int]) -> float | None:
    """Largest error of A_with = (1 - m) A_gap in Layer 1, over heads, keys and a sample of later queries.

    A_gap is the prompt without its filler but with the positions as they are with it, and m the mass that a query
    gives to the filler. In the first layer queries and keys depend on token and position alone, so softmax makes the
    identity exact: what is measured is rounding, and whether spans, positions and masks are right. It counts positions
    where a sliding window counts tokens, so only queries are taken from which no window hides an earlier token.

    Args:
        loaded: A model whose layer 0 is loaded.
        token_ids: One prompt, with its filler.
        filler: Half-open span of the filler.

    Returns:
        The error; None if a window hides an earlier token from every query after the filler.

    Raises:
        ModelError: the model takes no positions.
        ValueError: no token follows the filler.
    """
    start, end = filler
    length = len(token_ids)
    if not 0 <= start < end < length:
        raise ValueError(f"The filler span {filler} must leave a token after it, among {length}.")
    original = torch.cat([torch.arange(start), torch.arange(end, length)])
    chosen = torch.linspace(end, length - 1, min(SAMPLED_QUERIES, length - end)).round().long()
    # A set of one query: its mean of a column is that query's weight.
    queries = torch.zeros(1, len(chosen), length, dtype=torch.bool)
    queries[0, torch.arange(len(chosen)), chosen] = True
    inside = torch.zeros(1, 1, length, dtype=torch.bool)
    inside[..., start:end] = True
    with_filler = capture(loaded, token_ids[None], layers=[0], query_sets=queries, key_regions=inside)[0]
    gap = capture(
        loaded,
        token_ids[None, original],
        layers=[0],
        position_ids=original[None],
        query_sets=queries[..., original],
    )[0]
    unhidden = [(one.visible_count == one.column_count).all(-1)[0] for one in (with_filler, gap)]
    sees_all = unhidden[0] & unhidden[1]
    if not bool(sees_all.any()):
        return None
    lam = 1 - with_filler.region_mass[0, :, chosen.to(with_filler.region_mass.device), 0].T
    expected = lam[..., None] * gap.column_mean[0]
    found = with_filler.column_mean[0][..., original.to(expected.device)]
    earlier = gap.column_count[0, :, None] > 0  # a query's weight is a mean for the tokens before it alone
    return float((found - expected).masked_fill(~earlier, 0)[sees_all].abs().max())


def largest_difference(one: Capture, other: Capture) -> float:
    """Largest difference between two captures' column means, where there are any: the last token has no later query.

    Raises:
        ModelError: a mean is undefined in one capture and not in the other.
    """
    errors = []
    for layer in one.layers:
        first, second = one[layer].column_mean, other[layer].column_mean
        undefined = first.isnan()
        if not torch.equal(undefined, second.isnan()):
            raise ModelError(f"The self-check finds other tokens without a mean in two captures of layer {layer}.")
        errors.append((first - second).masked_fill(undefined, 0).abs().max())
    return float(torch.stack(errors).max())
