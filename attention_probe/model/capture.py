"""Run the first layers once, and reduce their attention to sums over queries on the way."""

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from attention_probe.model.attention_function import ATTENTION_NAME, switch_attention
from attention_probe.model.attention_statistics import Capture, CaptureFinished, CaptureRequest
from attention_probe.model.first_layers import LoadedModel
from harness.errors import ModelError
from harness.layers_and_heads import list_numbers

ACTIVATION_NAMES = ("act_fn", "activation_fn", "act", "gelu_impl")
"""Names that architectures give to the non-linearity of their MLP."""
ALL_QUERIES_REQUEST = CaptureRequest()
"""The request that keeps nothing but the sums over all queries."""


def capture_attention(
    loaded_model: LoadedModel,
    token_ids: Tensor,
    *,
    positions: Tensor | None = None,
    request: CaptureRequest = ALL_QUERIES_REQUEST,
) -> Capture:
    """Run a prompt through the first layers and reduce its attention.

    Args:
        loaded_model: The model's first layers.
        token_ids: [token] Vocabulary ids.
        positions: [token] None to count from the first token. They may have a gap.
        request: What to keep.

    Raises:
        ModelError: the model does not call the attention function of the registry, takes no
            positions, is not causal, gives weights that are not finite, or lacks the requested
            activations.
    """
    model = loaded_model.model
    # `capture` reaches the attention function only if the model passes further arguments through
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
    capture = Capture(request=request, layer_indices=loaded_model.layer_indices)
    with (
        torch.inference_mode(),
        _record_states(loaded_model, capture),
        switch_attention(model, ATTENTION_NAME),
        suppress(CaptureFinished),
    ):
        model(
            input_ids,
            # without it Hugging Face takes a gap in the positions for a border between documents
            attention_mask=torch.ones_like(input_ids),
            position_ids=positions[None].to(model.device),
            use_cache=False,
            capture=capture,
        )
    refuse_incomplete(capture, loaded_model)
    return capture


def refuse_incomplete(capture: Capture, loaded_model: LoadedModel) -> None:
    """Raise ModelError if a layer gave no attention weights, or weights that are not finite."""
    missing_layers = [
        layer_index for layer_index in capture.layer_indices if layer_index not in capture.layers
    ]
    if missing_layers:
        layers_text = list_numbers(find_softmax_layers(loaded_model.config)) or "none known"
        raise ModelError(
            f"{type(loaded_model.model).__name__} gave no attention weights for Layer "
            f"{list_numbers(missing_layers)}; layers that have, counted from 1: {layers_text}."
        )
    for layer_index, layer_capture in capture.layers.items():
        # by head, because a mean over heads would not show which of them is broken
        is_broken = ~layer_capture.sums.isfinite().all(-1).all(0)
        broken_heads = is_broken.nonzero().flatten().tolist()
        if broken_heads:
            dtype = str(loaded_model.model.dtype).removeprefix("torch.")
            raise ModelError(
                f"{loaded_model.name}: attention is NaN or infinite in Layer {layer_index + 1}, "
                f"Head {list_numbers(broken_heads)}, counted from 1, in {dtype}: broken weights, "
                "or an overflow."
            )


def find_softmax_layers(config: PretrainedConfig) -> list[int]:
    """Indices of the layers with softmax attention; empty if the config has no kinds of layers."""
    layer_kinds = getattr(config, "layer_types", None) or ()
    return [
        index
        for index, layer_kind in enumerate(layer_kinds)
        if layer_kind.endswith("attention") and layer_kind != "linear_attention"
    ]


@contextmanager
def _record_states(loaded_model: LoadedModel, capture: Capture) -> Iterator[None]:
    """Record the first MLP's activations and the norms of hidden states, if they are requested."""

    def record_activations(_module: nn.Module, _inputs: Any, activations: Tensor) -> None:
        """A forward hook of the module whose output is the first MLP's activations."""
        # most architectures give activations a leading axis of size 1
        capture.activations = activations.flatten(0, -2)
        capture.stop_if_complete()

    def record_norms(layer_index: int, _module: nn.Module, _inputs: Any, output: Any) -> None:
        """A forward hook of each requested layer, whose output is its hidden states."""
        # some architectures also return weights, or a cache
        hidden_states = output[0] if isinstance(output, tuple) else output
        capture.norms[layer_index] = hidden_states.float().norm(dim=-1).flatten()
        capture.stop_if_complete()

    # a hook is removed at the end of its own context, and so at the end of the stack
    with ExitStack() as stack:
        if capture.request.keeps_activations:
            stack.enter_context(
                _find_activation_module(loaded_model).register_forward_hook(record_activations)
            )
        if capture.request.keeps_norms:
            for layer_index in loaded_model.layer_indices:
                layer = loaded_model.decoder_layers[layer_index]
                stack.enter_context(layer.register_forward_hook(partial(record_norms, layer_index)))
        yield


def _find_activation_module(loaded_model: LoadedModel) -> nn.Module:
    """The module of the first layer's MLP whose output is its activations.

    It is a separate module in Hugging Face's decoders without experts.

    Raises:
        ModelError: there is none, or there are several, as in mixtures of experts.
    """
    module_by_name: dict[str, nn.Module] = dict(loaded_model.decoder_layers[0].named_modules())
    modules = [
        module for name, module in module_by_name.items() if name.split(".")[-1] in ACTIVATION_NAMES
    ]
    has_experts = any("expert" in name for name in module_by_name)
    if has_experts or len(modules) != 1:
        structure = "a mixture of experts" if has_experts else f"{len(modules)} activations"
        raise ModelError(
            f"The first MLP of {loaded_model.name} has no single activation but {structure}: "
            "leave out --activations."
        )
    return modules[0]
