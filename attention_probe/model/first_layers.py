"""Load only a model's first layers from a checkpoint.

A model is cut if it has only its first layers. `from_pretrained` of transformers reads them, with a
config that has the number of these layers. Tensors of later layers are then never read.
"""

import copy
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
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

MULTIMODAL_PREFIX = r"^(model\.)?language_model\.(model\.)?"
"""Prefix of the names of the text model's tensors in older and newer multimodal checkpoints."""


@dataclass
class LoadedModel:
    """The first layers of a model, ready to run.

    Attributes:
        name: A folder or a hub name.
        model: The base model, cut after the deepest requested layer; eval mode, no gradients.
        config: The text config of the checkpoint, with its full number of layers.
        layer_indices: The indices of the requested layers, ascending.
        decoder_layers: The layers of `model`, from the first to the deepest requested one.
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
        raise ModelError(
            f"{name} cannot be loaded on {device}: {quote_error(error)}"
            if Path(name).is_dir()
            else explain_hub_error(name, error)
        ) from error
    return loaded_model


def _load_checkpoint(
    name: str, layer_indices: list[int], dtype: torch.dtype, model_arguments: Mapping[str, Any]
) -> LoadedModel:
    """Read the layers of a folder or a hub model; errors of the libraries are not translated.

    `layer_indices` are ascending.
    """
    is_folder = Path(name).is_dir()
    is_trusted = trusts_code(model_arguments)
    # `cached_file` may return None for a folder without the file, which `_read_config` then refuses
    config_path = Path(
        str(cached_file(name, "config.json", revision=model_arguments.get("revision")))
    )
    # the hub's cache names a folder after the commit
    commit = None if is_folder else config_path.parent.name
    config = _read_config(name, commit, is_trusted)
    if layer_indices[-1] >= config.num_hidden_layers:
        raise ModelError(
            f"{name} has Layers 1 to {config.num_hidden_layers}, counted from 1; got "
            f"{list_numbers(layer_indices)}."
        )
    layers_path = _find_layers_path(config, name, is_trusted)
    # only a hub model may have to be downloaded, which progress bars show
    with silence_transformers(keep_progress_bars=not is_folder):
        model, loading_info = AutoModel.from_pretrained(
            name,
            revision=commit,
            config=_cut_config(config, layer_indices[-1] + 1),
            dtype=dtype,
            trust_remote_code=is_trusted,
            # some architectures cannot change their attention after loading, so they keep this one
            attn_implementation="eager",
            key_mapping={MULTIMODAL_PREFIX: ""},  # the names as in a checkpoint of the text model
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


def _read_config(name: str, commit: str | None, is_trusted: bool) -> PretrainedConfig:
    """The config of the text model.

    Raises:
        ModelError: the model is quantised or an encoder-decoder.
    """
    full_config = AutoConfig.from_pretrained(name, revision=commit, trust_remote_code=is_trusted)
    text_config = full_config.get_text_config(decoder=True)
    # the quantisation of a model that also reads images may be in either config
    if any(getattr(config, "quantization_config", None) for config in (full_config, text_config)):
        raise ModelError(
            f"{name} is quantised: its attention is not that of the model it was made from."
        )
    if text_config.is_encoder_decoder:
        raise ModelError(
            f"{name} ({text_config.model_type}) is an encoder-decoder: expected a causal language "
            "model."
        )
    return text_config


def _cut_config(config: PretrainedConfig, layer_count: int) -> PretrainedConfig:
    """The config of the same model with only its first layers."""
    cut_config = copy.deepcopy(config)
    cut_config.num_hidden_layers = layer_count
    if getattr(cut_config, "layer_types", None):
        # transformers refuses a config whose list of kinds has another length
        cut_config.layer_types = cut_config.layer_types[:layer_count]
    return cut_config


def _find_layers_path(config: PretrainedConfig, name: str, is_trusted: bool) -> str:
    """The path of the list of decoder layers in the full model, such as `layers`.

    It is the only list of that length that lies in no other list of that length.

    Raises:
        ModelError: there is none or more than one, or a layer depends on the number of layers.
    """
    with torch.device("meta"):  # which allocates no weight
        model = AutoModel.from_config(
            config,
            dtype=torch.float32,
            attn_implementation="eager",
            trust_remote_code=is_trusted,
        )
    layer_count = config.num_hidden_layers
    paths = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == layer_count
    ]
    # a layer may itself contain a list of the same length, such as one of experts, which is deeper
    depth = min((path.count(".") for path in paths), default=0)
    outermost_paths = [path for path in paths if path.count(".") == depth]
    if len(outermost_paths) != 1:
        paths_text = ", ".join(outermost_paths) or "none"
        raise ModelError(
            f"{name} cannot be cut: expected one list of its {layer_count} layers, got "
            f"{paths_text}."
        )
    layers_path = str(outermost_paths[0])
    _refuse_dependence(name, model.get_submodule(layers_path))
    return layers_path


def _refuse_dependence(name: str, layers: nn.Module) -> None:
    """Raise ModelError if the source of a module in these layers reads the number of layers.

    The module would compute something else in a cut model.
    """
    dependent_names = [
        module_type.__name__
        for module_type in set(map(type, layers.modules()))
        if "config.num_hidden_layers" in inspect.getsource(module_type)
    ]
    if dependent_names:
        raise ModelError(
            f"{name} cannot be cut: its {', '.join(dependent_names)} depends on the number of "
            "layers."
        )


def _refuse_mismatch(
    name: str, model: PreTrainedModel, layers_path: str, loading_info: dict[str, Any]
) -> None:
    """Raise ModelError for missing tensors, tensors of another shape, and unexpected tensors.

    transformers only lists them in `loading_info`, and initialises missing tensors at random.
    """
    unexpected_names = [
        *_select_unexpected_names(model, layers_path, loading_info["unexpected_keys"])
    ]
    mismatched_names = [tensor_name for tensor_name, *_ in loading_info["mismatched_keys"]]
    for tensor_names, fault in (
        (loading_info["missing_keys"], "lacks tensors that the model needs"),
        (unexpected_names, "has tensors in the loaded layers that the model does not"),
        (mismatched_names, "has tensors of another shape than config.json says"),
    ):
        if tensor_names:
            raise ModelError(
                f"{name} {fault}: {list_first(sorted(tensor_names), 4)}. "
                "Fetch the checkpoint again."
            )


def _select_unexpected_names(
    model: PreTrainedModel, layers_path: str, tensor_names: Iterable[str]
) -> Iterator[str]:
    """The tensors, of those that the model does not have, that belong to a loaded layer."""
    # a checkpoint of the whole model has the prefix of the base model in its names
    layers_prefix = rf"({re.escape(model.base_model_prefix)}\.)?{re.escape(layers_path)}\."
    layers = model.get_submodule(layers_path)
    for tensor_name in tensor_names:
        match = re.match(rf"{layers_prefix}(?P<layer_index>\d+)\.", tensor_name)
        # old GPT-2 checkpoints store a buffer that the model now computes
        is_old_buffer = tensor_name.endswith(".attn.masked_bias")
        if match and int(match["layer_index"]) < len(layers) and not is_old_buffer:
            yield tensor_name
