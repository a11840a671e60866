"""Load only a model's first layers from a checkpoint.

`from_pretrained` of transformers reads them, with a config that is cut to that many layers. Tensors
of later layers are then never read.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel
from transformers.utils import cached_file

from attention_probe.model.attention_function import silence_transformers
from harness import smollm2_model
from harness.errors import (
    HarnessError,
    ModelError,
    explain_hub_error,
    list_first,
    quote_error,
)
from harness.experiment.prompts.tokenizer import refuse_missing_folder, trusts_code
from harness.layers_and_heads import list_numbers

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MULTIMODAL_PREFIX = r"^(model\.)?language_model\.(model\.)?"
"""Prefix of the names of the text model's tensors in older and newer multimodal checkpoints."""


@dataclass(kw_only=True)
class LoadedModel:
    """The first layers of a model, ready to run.

    Attributes:
        name: A folder or a hub name.
        model: The base model, cut after the deepest requested layer; eval mode, no gradients.
        config: The text config of the checkpoint, with its full number of layers.
        layer_indices: Of the requested layers, ascending.
        decoder_layers: Those of `model`, from the first to the deepest requested layer.
    """

    name: str
    model: PreTrainedModel
    config: PretrainedConfig
    layer_indices: tuple[int, ...]
    decoder_layers: nn.ModuleList


def load_model(
    name: str,
    *,
    layer_indices: Iterable[int],
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    model_arguments: Mapping[str, Any] = {},
) -> LoadedModel:
    """Read the embeddings and the layers from the first to the deepest requested one.

    All files of a sharded hub model are downloaded, but only the tensors of these layers are read.

    Args:
        name: A model folder, a hub name or `smollm2`.
        layer_indices: From 0; at least one.
        dtype: Type to compute in, whatever the checkpoint's type is.
        device: Where the model runs.
        model_arguments: Of these `revision` and `trust_remote_code` are used.

    Raises:
        ModelError: the checkpoint has no safetensors, is quantised, lacks a tensor, has unexpected
            tensors, or lacks a layer; or there is no such device.
    """
    name = smollm2_model.resolve_model(name)
    refuse_missing_folder(name)
    try:
        loaded_model = _load_checkpoint(name, sorted(set(layer_indices)), dtype, model_arguments)
        loaded_model.model.to(device)
    except HarnessError:
        raise
    # the hub, safetensors, JSON, transformers and configs have errors without a common class
    except Exception as error:
        message = explain_hub_error(name, error)
        if Path(name).is_dir():
            message = f"{name} cannot be loaded on {device}: {quote_error(error)}"
        raise ModelError(message) from error
    return loaded_model


def _load_checkpoint(
    name: str, layer_indices: list[int], dtype: torch.dtype, model_arguments: Mapping[str, Any]
) -> LoadedModel:
    """Read the layers of a folder or a hub model; errors of the libraries are not translated."""
    is_folder = Path(name).is_dir()
    is_trusted = trusts_code(model_arguments)
    config_path = Path(
        str(cached_file(name, "config.json", revision=model_arguments.get("revision")))
    )
    # the hub's cache names a folder after the commit
    commit = None if is_folder else config_path.parent.name
    full_config = AutoConfig.from_pretrained(name, revision=commit, trust_remote_code=is_trusted)
    config = full_config.get_text_config(decoder=True)
    # the config of a model that also reads images may name the quantisation in either part
    if any(getattr(part, "quantization_config", None) for part in (full_config, config)):
        raise ModelError(
            f"{name} is quantised: its attention is not that of the model it was made from."
        )
    if config.is_encoder_decoder:
        raise ModelError(
            f"{name} ({config.model_type}) is an encoder-decoder: expected a causal language model."
        )
    layer_count = config.num_hidden_layers
    if layer_indices[-1] >= layer_count:
        raise ModelError(
            f"{name} has Layers 1 to {layer_count}, counted from 1; got "
            f"{list_numbers(layer_indices)}."
        )
    layers_path = _find_layers(config, name, is_trusted)
    cut_config = copy.deepcopy(config)
    loaded_count = layer_indices[-1] + 1
    cut_config.num_hidden_layers = loaded_count
    if getattr(cut_config, "layer_types", None):
        # transformers refuses a config whose list of kinds has another length
        cut_config.layer_types = cut_config.layer_types[:loaded_count]
    with silence_transformers(progress=not is_folder):
        model, loading_info = AutoModel.from_pretrained(
            name,
            revision=commit,
            config=cut_config,
            dtype=dtype,
            trust_remote_code=is_trusted,
            # some architectures cannot change their attention after loading, so they keep this one
            attn_implementation="eager",
            key_mapping={MULTIMODAL_PREFIX: ""},
            # a pickled checkpoint could run code, and could not be read in part
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # they are refused below, together with other mismatches
            output_loading_info=True,
        )
    _refuse_mismatch(name, model, layers_path, loading_info)
    return LoadedModel(
        name=name,
        model=model.eval().requires_grad_(False),
        config=config,
        layer_indices=tuple(layer_indices),
        decoder_layers=nn.ModuleList(model.get_submodule(layers_path).children()),
    )


def _find_layers(config: PretrainedConfig, name: str, is_trusted: bool) -> str:
    """The path of the list of decoder layers in the full model.

    Raises:
        ModelError: the architecture cannot be cut.
    """
    with torch.device("meta"):  # which allocates no weight
        model = AutoModel.from_config(
            config,
            dtype=torch.float32,
            attn_implementation="eager",
            trust_remote_code=is_trusted,
        )
    layer_count = config.num_hidden_layers
    module_list_by_path = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == layer_count
    }
    # a layer may contain a list of the same length itself, such as one of experts
    depth = min((path.count(".") for path in module_list_by_path), default=0)
    outermost_paths = [path for path in module_list_by_path if path.count(".") == depth]
    if len(outermost_paths) != 1:
        paths_text = ", ".join(outermost_paths) or "none"
        raise ModelError(
            f"{name} cannot be cut: expected one list of its {layer_count} layers, got "
            f"{paths_text}."
        )
    layers_path = outermost_paths[0]
    module_types = {type(module) for module in module_list_by_path[layers_path].modules()}
    # a module that reads the number of layers would compute something else in a cut model
    dependent_names = [
        module_type.__name__
        for module_type in module_types
        if "config.num_hidden_layers" in inspect.getsource(module_type)
    ]
    if dependent_names:
        raise ModelError(
            f"{name} cannot be cut: its {', '.join(dependent_names)} depends on the number of "
            "layers."
        )
    return str(layers_path)


def _refuse_mismatch(
    name: str, model: PreTrainedModel, layers_path: str, loading_info: dict[str, Any]
) -> None:
    """Raise ModelError for missing tensors, tensors of another shape, and unexpected tensors.

    transformers would initialise a missing tensor at random.
    """
    unexpected_tensors = [*_unexpected_tensors(model, layers_path, loading_info["unexpected_keys"])]
    mismatched_tensors = [tensor_name for tensor_name, *_ in loading_info["mismatched_keys"]]
    for tensor_names, fault in (
        (loading_info["missing_keys"], "lacks tensors that the model needs"),
        (unexpected_tensors, "has tensors in the loaded layers that the model does not"),
        (mismatched_tensors, "has tensors of another shape than config.json says"),
    ):
        if tensor_names:
            raise ModelError(
                f"{name} {fault}: {list_first(sorted(tensor_names), 4)}. "
                "Fetch the checkpoint again."
            )


def _unexpected_tensors(
    model: PreTrainedModel, layers_path: str, tensor_names: Iterable[str]
) -> Iterator[str]:
    """The names that belong to a loaded layer, without buffers that the model now computes."""
    # a checkpoint of the whole model has the prefix of the base model in its names
    layers_prefix = rf"({re.escape(model.base_model_prefix)}\.)?{re.escape(layers_path)}\."
    layers = model.get_submodule(layers_path)
    for tensor_name in tensor_names:
        match = re.match(rf"{layers_prefix}(?P<layer_index>\d+)\.", tensor_name)
        # old GPT-2 checkpoints store a buffer that the model now computes
        is_old_buffer = tensor_name.endswith(".attn.masked_bias")
        if match and int(match["layer_index"]) < len(layers) and not is_old_buffer:
            yield tensor_name
