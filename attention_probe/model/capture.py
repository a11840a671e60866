"""Run the first layers once, and reduce their attention to column means and masses while they run."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from attention_probe.model.attention_function import ATTENTION, switched_attention
from attention_probe.model.attention_statistics import Capture, Done
from harness.errors import ModelError
from harness.layers_and_heads import count_from_one

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from attention_probe.model.load_first_layers import LoadedModel

ACTIVATIONS = frozenset({"act_fn", "activation_fn", "act", "gelu_impl"})
"""What architectures call the non-linearity of their MLP."""


def capture(
    loaded: LoadedModel,
    token_ids: Int[Tensor, "batch seq"],
    *,
    layers: Iterable[int] | None = None,
    attention_mask: Bool[Tensor, "batch seq"] | Int[Tensor, "batch seq"] | None = None,
    position_ids: Int[Tensor, "batch seq"] | None = None,
    query_sets: Bool[Tensor, "batch query_set seq"] | None = None,
    key_regions: Bool[Tensor, "batch region seq"] | None = None,
    output_region: int | None = None,
    activations: bool = False,
    chunk: int | None = None,
) -> Capture:
    """Run the prompts through the layers asked and keep what is asked of their attention.

    Args:
        loaded: The model's first layers.
        token_ids: Vocabulary ids. What stands at padding is not looked at.
        layers: Indices, of those loaded; None for all that were asked when loading.
        attention_mask: 1 for a token, 0 for padding, on either side; None if there is no padding.
        position_ids: None for the usual ones, which count from each prompt's first token. Given ones may leave a gap.
        query_sets: Sets of queries whose mean is taken; None for one set of all queries.
        key_regions: Regions of keys whose mass is taken; None for none.
        output_region: Region whose part of each head's output is kept, with the whole output.
        activations: Keep the first MLP's activations.
        chunk: Queries in one block; None for as many as fit the caches.

    Raises:
        ModelError: the model does not call the attention function of the registry, takes no positions, gives weights
            that are not finite, is not causal, or has no activations to give.
    """
    model = loaded.model
    token_ids = token_ids.to(model.device)
    batch, length = token_ids.shape
    real = (
        torch.ones_like(token_ids) if attention_mask is None else attention_mask.to(model.device)
    ).bool()
    usual = (real.long().cumsum(-1) - 1).clamp_min(0)
    positions = usual if position_ids is None else position_ids.to(model.device)
    accepted = inspect.signature(model.forward).parameters
    if "position_ids" not in accepted or not any(
        one.kind is one.VAR_KEYWORD for one in accepted.values()
    ):
        raise ModelError(
            f"{type(model).__name__} takes no positions, or no further arguments: it cannot be probed."
        )
    everything = torch.ones(batch, 1, length, dtype=torch.bool, device=model.device)
    # Padding becomes a copy of a token that is there: nothing looks at it, and it may be no id of the vocabulary.
    token_ids = token_ids.where(real, token_ids.gather(1, real.long().argmax(-1, keepdim=True)))
    found = Capture(
        real=real,
        asked=tuple(sorted(loaded.layers if layers is None else layers)),
        query_sets=everything if query_sets is None else query_sets.to(model.device),
        key_regions=everything[:, :0] if key_regions is None else key_regions.to(model.device),
        output_region=output_region,
        chunk=chunk,
        waits_for_activations=activations,
    )
    with (
        torch.inference_mode(),
        _recorded_activations(loaded, found),
        switched_attention(model, ATTENTION),
    ):
        with suppress(Done):
            # without a mask Hugging Face takes a gap in the positions for a border between documents
            model(
                token_ids,
                attention_mask=real.long(),
                position_ids=positions,
                use_cache=False,
                capture=found,
            )
    if missing := [layer for layer in found.asked if layer not in found.layers]:
        known = count_from_one(softmax_layers(loaded.config)) or "none known"
        raise ModelError(
            f"{type(model).__name__} gave no attention weights for Layer {count_from_one(missing)}; layers that have, "
            f"counted from 1: {known}."
        )
    for layer in found.asked:
        if heads := found[layer].not_finite(
            real
        ):  # a mean over some heads or prompts would hide it, or spread it
            raise ModelError(
                f"{loaded.name}: attention is NaN or infinite in Layer {layer + 1}, Head {count_from_one(heads)}, "
                f"counted from 1, in {str(model.dtype).removeprefix('torch.')}: broken weights, or an overflow."
            )
    return found


def softmax_layers(config: PretrainedConfig) -> list[int]:
    """Indices of the layers with softmax attention; empty where the config does not tell kinds of layers apart."""
    kinds = getattr(config, "layer_types", None) or ()
    return [
        i
        for i, kind in enumerate(kinds)
        if kind.endswith("attention") and kind != "linear_attention"
    ]


@contextmanager
def _recorded_activations(loaded: LoadedModel, found: Capture) -> Iterator[None]:
    """Record the first MLP's activations, if they are asked."""
    if not found.waits_for_activations:
        yield
        return

    def record(_module: nn.Module, _inputs: Any, result: Tensor) -> None:
        # some architectures lay all tokens in one row, or add an axis of one
        found.activations = result.reshape(*found.real.shape, -1)
        found.waits_for_activations = False
        found.stop_if_done()

    handle = _activation(loaded).register_forward_hook(record)
    try:
        yield
    finally:
        handle.remove()


def _activation(loaded: LoadedModel) -> nn.Module:
    """The non-linearity of the first layer's MLP: a module of its own in every dense Hugging Face decoder.

    Raises:
        ModelError: there is none, or there are several, as in mixtures of experts.
    """
    named: dict[str, nn.Module] = dict(loaded.decoder_layers[0].named_modules())
    found = [module for name, module in named.items() if name.split(".")[-1] in ACTIVATIONS]
    experts = any("expert" in name for name in named)
    if experts or len(found) != 1:
        what = "a mixture of experts" if experts else f"{len(found)} activations"
        raise ModelError(
            f"The first MLP of {loaded.name} has no single activation but {what}: leave out --activations."
        )
    return found[0]
