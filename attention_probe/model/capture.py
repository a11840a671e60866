"""Run the first layers once, and reduce their attention to sums over queries on the way."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attention_probe.model.attention_function import ATTENTION, switched_attention
from attention_probe.model.attention_statistics import Capture, CaptureFinished, CaptureRequest
from harness.errors import ModelError
from harness.layers_and_heads import list_numbers

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from attention_probe.model.first_layers import LoadedModel

ACTIVATIONS = frozenset({"act_fn", "activation_fn", "act", "gelu_impl"})
"""Names that architectures give to the non-linearity of their MLP."""
ALL_QUERIES = CaptureRequest()
"""The request for the sums over all queries alone."""


def capture(
    loaded: LoadedModel,
    token_ids: Tensor,
    *,
    positions: Tensor | None = None,
    request: CaptureRequest = ALL_QUERIES,
) -> Capture:
    """Run a prompt through the first layers and reduce its attention.

    Args:
        loaded: The model's first layers.
        token_ids: [token] Vocabulary ids.
        positions: [token] None to count from the first token. They may have a gap.
        request: What to keep.

    Raises:
        ModelError: the model does not call the attention function of the registry, takes no
            positions, is not causal, gives weights that are not finite, or lacks the requested
            activations.
    """
    model = loaded.model
    parameters = inspect.signature(model.forward).parameters
    takes_any_argument = any(
        parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()
    )
    if "position_ids" not in parameters or not takes_any_argument:
        raise ModelError(
            f"{type(model).__name__} takes no positions, or no further arguments: "
            "it cannot be probed."
        )
    input_ids = token_ids[None].to(model.device)
    if positions is None:
        positions = torch.arange(len(token_ids))
    captured = Capture(request=request, layer_indices=loaded.layers)
    with (
        torch.inference_mode(),
        _recorded_states(loaded, captured),
        switched_attention(model, ATTENTION),
        suppress(CaptureFinished),
    ):
        model(
            input_ids,
            # without it Hugging Face takes a gap in the positions for a border between documents
            attention_mask=torch.ones_like(input_ids),
            position_ids=positions[None].to(model.device),
            use_cache=False,
            capture=captured,
        )
    refuse_incomplete(captured, loaded)
    return captured


def refuse_incomplete(captured: Capture, loaded: LoadedModel) -> None:
    """Raise ModelError if a layer gave no attention weights, or weights that are not finite."""
    missing = [layer for layer in captured.layer_indices if layer not in captured.layers]
    if missing:
        available = list_numbers(softmax_layers(loaded.config)) or "none known"
        raise ModelError(
            f"{type(loaded.model).__name__} gave no attention weights for Layer "
            f"{list_numbers(missing)}; layers that have, counted from 1: {available}."
        )
    for layer, result in captured.layers.items():
        # A mean over heads would hide such numbers, or spread them.
        is_broken = ~result.sums.isfinite().all(-1).all(0)
        heads = is_broken.nonzero().flatten().tolist()
        if heads:
            dtype = str(loaded.model.dtype).removeprefix("torch.")
            raise ModelError(
                f"{loaded.name}: attention is NaN or infinite in Layer {layer + 1}, Head "
                f"{list_numbers(heads)}, counted from 1, in {dtype}: broken weights, or an "
                "overflow."
            )


def softmax_layers(config: PretrainedConfig) -> list[int]:
    """Indices of the layers with softmax attention; empty if the config has no kinds of layers."""
    kinds = getattr(config, "layer_types", None) or ()
    return [
        index
        for index, kind in enumerate(kinds)
        if kind.endswith("attention") and kind != "linear_attention"
    ]


@contextmanager
def _recorded_states(loaded: LoadedModel, captured: Capture) -> Iterator[None]:
    """Record the first MLP's activations and the norms of hidden states, if they are requested."""

    def record_activations(_module: nn.Module, _inputs: Any, activations: Tensor) -> None:
        # most architectures give activations a leading axis of size 1
        captured.activations = activations.flatten(0, -2)
        captured.stop_if_complete()

    def record_norms(layer: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        # some architectures also return weights, or a cache
        states = output[0] if isinstance(output, tuple) else output
        captured.norms[layer] = states.float().norm(dim=-1).flatten()
        captured.stop_if_complete()

    with ExitStack() as stack:
        if captured.request.activations:
            module = _find_activation(loaded)
            stack.callback(module.register_forward_hook(record_activations).remove)
        for layer in loaded.layers if captured.request.norms else ():
            hook = partial(record_norms, layer)
            handle = loaded.decoder_layers[layer].register_forward_hook(hook)
            stack.callback(handle.remove)
        yield


def _find_activation(loaded: LoadedModel) -> nn.Module:
    """The non-linearity of the first layer's MLP: a separate module in dense Hugging Face decoders.

    Raises:
        ModelError: there is none, or there are several, as in mixtures of experts.
    """
    modules: dict[str, nn.Module] = dict(loaded.decoder_layers[0].named_modules())
    matches = [module for name, module in modules.items() if name.split(".")[-1] in ACTIVATIONS]
    has_experts = any("expert" in name for name in modules)
    if has_experts or len(matches) != 1:
        structure = "a mixture of experts" if has_experts else f"{len(matches)} activations"
        raise ModelError(
            f"The first MLP of {loaded.name} has no single activation but {structure}: "
            "leave out --activations."
        )
    return matches[0]
