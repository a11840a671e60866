"""A model's first layers and nothing else, read from a checkpoint.

transformers' own `from_pretrained` reads them, with a config cut to that many layers. Tensors of later layers are then
never read.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel
from transformers.utils import cached_file

from attention_probe.model.attention_function import quiet
from harness import smollm2_model
from harness.errors import ConfigError, HarnessError, ModelError, explain_hub_error, list_first
from harness.experiment.tokenizer import refuse_missing_folder
from harness.layers_and_heads import count_from_one

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MULTIMODAL_PREFIX = r"^(model\.)?language_model\.(model\.)?"
"""What older and newer multimodal checkpoints put before the names of their text model's tensors."""


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """The first layers of a model, ready to run.

    Attributes:
        name: A folder or a hub name.
        revision: The commit of a hub name.
        model: The base model cut after the deepest asked layer; eval mode, no gradients.
        config: The text config as in the checkpoint, with its full number of layers.
        layers: The asked layers' indices, ascending.
        layers_path: Where in `model` the list of decoder layers is.
    """

    name: str
    revision: str | None
    model: PreTrainedModel
    config: PretrainedConfig
    layers: tuple[int, ...]
    layers_path: str

    @property
    def head_count(self) -> int:
        """Query heads of each layer."""
        return int(self.config.num_attention_heads)

    @property
    def decoder_layers(self) -> nn.ModuleList:
        """The kept layers, from the first to the deepest asked."""
        found = self.model.get_submodule(self.layers_path)
        assert isinstance(found, nn.ModuleList)
        return found

    def keep_embeddings(self, token_ids: Tensor) -> None:
        """Forget the embeddings of all other tokens: in float32 they are most of what a large model's layer needs.

        Args:
            token_ids: The vocabulary ids that will be run, each once. The model then fails on any other.
        """
        embedding = self.model.get_input_embeddings()
        rows = torch.full((len(embedding.weight),), -1, device=embedding.weight.device)
        rows[token_ids] = torch.arange(len(token_ids), device=rows.device)
        embedding.weight = nn.Parameter(embedding.weight[token_ids].clone(), requires_grad=False)
        embedding.padding_idx = None  # its row may be gone
        embedding.register_forward_pre_hook(lambda _, given: (rows[given[0]],))


def load_model(
    name: str,
    *,
    layers: Iterable[int],
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """Read the embeddings and layers 0 to the deepest asked one.

    All files of a sharded model on the hub are fetched, but only the tensors of these layers are read.

    Args:
        name: A model folder, a hub name or `smollm2`.
        layers: Indices from 0.
        dtype: To compute in, whatever the checkpoint's type is.
        device: Where the model goes.

    Raises:
        ModelError: the checkpoint has no safetensors, is quantised, lacks a tensor or has one too many, or a layer
            lies outside of it.
        ConfigError: there is no such device.
    """
    try:
        torch.empty(1, device=device).cpu()
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
    ) as error:  # torch has no class for it
        raise ConfigError(
            f"--device {device} cannot be used: {str(error).strip().splitlines()[0][:200]}"
        ) from None
    name = smollm2_model.resolve_model(name)
    refuse_missing_folder(name)
    is_folder = Path(name).expanduser().is_dir()
    name = str(Path(name).expanduser()) if is_folder else name
    try:
        config_path = Path(str(cached_file(name, "config.json")))
        commit = (
            None if is_folder else config_path.parent.name
        )  # the hub's cache names its folders so
        whole = AutoConfig.from_pretrained(name, revision=commit, trust_remote_code=False)
        config = whole.get_text_config(decoder=True)  # the language model's alone
        chosen, count = tuple(sorted(set(layers))), config.num_hidden_layers
        if any(getattr(one, "quantization_config", None) for one in (whole, config)):
            raise ModelError(
                f"{name} is quantised: its attention is not that of the model it was made from."
            )
        if config.is_encoder_decoder:
            kind = f"({config.model_type}) is an encoder-decoder"
            raise ModelError(f"{name} {kind}: expected a causal language model.")
        if not chosen or chosen[0] < 0 or chosen[-1] >= count:
            told = count_from_one(chosen) or "none"
            raise ModelError(f"{name} has Layers 1 to {count}, counted from 1; got {told}.")
        layers_path = _find_layers(config, name)
        cut = copy.deepcopy(config)
        cut.num_hidden_layers = max(chosen) + 1
        if getattr(cut, "layer_types", None):
            cut.layer_types = cut.layer_types[: max(chosen) + 1]
        with quiet(progress=not is_folder):
            model, found = AutoModel.from_pretrained(
                name,
                revision=commit,
                config=cut,
                dtype=dtype,
                # some architectures choose their attention here and never again; the probe brings its own, or uses this
                attn_implementation="eager",
                key_mapping={MULTIMODAL_PREFIX: ""},
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # they are refused below, all at once
                output_loading_info=True,
            )
    except HarnessError:
        raise
    except (
        Exception
    ) as error:  # the hub, safetensors, JSON, transformers and each kind of config have their own
        said = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        told = f"{name} cannot be read: {said}" if is_folder else explain_hub_error(name, error)
        raise ModelError(told) from error
    _refuse_mismatch(name, model, layers_path, found)
    return LoadedModel(
        name=name,
        revision=commit,
        model=model.eval().requires_grad_(False).to(device),
        config=config,
        layers=chosen,
        layers_path=layers_path,
    )


def _find_layers(config: PretrainedConfig, name: str) -> str:
    """The path of the list of decoder layers, in the whole model on the meta device, which costs no memory.

    Raises:
        ModelError: the architecture cannot be cut.
    """
    with torch.device("meta"):
        model = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="eager")
    count = config.num_hidden_layers
    lists = {
        path: part
        for path, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == count
    }
    depth = min((path.count(".") for path in lists), default=0)
    outermost = [path for path in lists if path.count(".") == depth]
    kinds = {type(part) for path in outermost for part in lists[path].modules()}
    counting = [
        kind.__name__ for kind in kinds if "config.num_hidden_layers" in inspect.getsource(kind)
    ]
    if len(outermost) != 1:
        got = ", ".join(outermost) or "none"
        raise ModelError(
            f"{name} cannot be cut: expected one list of its {count} layers, got {got}."
        )
    if counting:
        raise ModelError(
            f"{name} cannot be cut: its {', '.join(counting)} depends on how many layers there are."
        )
    return str(outermost[0])


def _refuse_mismatch(
    name: str, model: PreTrainedModel, layers_path: str, found: dict[str, Any]
) -> None:
    """Raise ModelError for tensors that the model lacks, has too many in its kept layers, or has in another shape."""
    in_layer = re.compile(
        rf"^({re.escape(model.base_model_prefix)}\.)?{re.escape(layers_path)}\.(\d+)\."
    )
    kept = len(model.get_submodule(layers_path))
    unexpected = [
        key
        for key in found["unexpected_keys"]
        # a buffer that old GPT-2 checkpoints store, and that models now compute
        if (at := in_layer.match(key))
        and int(at[2]) < kept
        and not key.endswith(".attn.masked_bias")
    ]
    for names, what in (
        (found["missing_keys"], "lacks tensors that the model needs"),
        (unexpected, "has tensors in the asked layers that the model does not"),
        (
            [key for key, *_ in found["mismatched_keys"]],
            "has tensors of another shape than config.json says",
        ),
    ):
        if names:
            raise ModelError(
                f"{name} {what}: {list_first(sorted(names), 4)}. Fetch the checkpoint again."
            )
