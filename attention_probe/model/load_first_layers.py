# ruff: noqa: F722  (jaxtyping's shapes are not forward references)
"""A model's first layers and nothing else: read from a checkpoint, or drawn at random."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attention_probe.model.architectures import read_architecture
from attention_probe.model.checkpoints import Checkpoint, open_checkpoint
from attention_probe.model.skeleton import Skeleton
from attention_probe.model.weights import fill_at_random, fill_from_checkpoint
from harness.errors import ConfigError, ModelError
from harness.experiment.tokens import explain_hub_error

if TYPE_CHECKING:
    from jaxtyping import Int
    from transformers import PretrainedConfig, PreTrainedModel

_SAMPLED_VALUES = 4096


@dataclass(slots=True, kw_only=True)
class LoadedModel:
    """The first layers of a model, ready to run.

    Attributes:
        name: As asked for; of random weights the architecture's.
        model: The base model cut after the deepest asked layer, without the weights of a final norm, so that
            `last_hidden_state` is that layer's output; eval mode, no gradients, no cache.
        config: The text config as in the checkpoint, with its full number of layers.
        layers: The asked layers' indices, ascending.
        layers_path: Where in `model` the list of decoder layers is.
        token_rows: The embedding row of each vocabulary id; -1 for ids that were not asked for.
        bytes_read: Of tensors, as stored in the checkpoint; 0 for random weights.
        missing: Tensors that the model needs and the checkpoint lacks: none, or loading fails.
        unexpected: Tensors that the checkpoint has in the kept layers and the model lacks: none, or loading fails.
        random_weights: Whether the weights are drawn, so that nothing measured is about a trained model.
        fingerprint: What identifies the weights, whatever layers and tokens were asked for.
    """

    name: str
    model: PreTrainedModel
    config: PretrainedConfig
    layers: tuple[int, ...]
    layers_path: str
    token_rows: Int[Tensor, " vocabulary"]
    bytes_read: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    random_weights: bool
    fingerprint: dict[str, Any]

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

    def rows(self, token_ids: Int[Tensor, " *shape"]) -> Int[Tensor, " *shape"]:
        """Embedding rows of vocabulary ids: what `model` takes as `input_ids`.

        Raises:
            ModelError: a token's embedding was not loaded.
        """
        token_ids = token_ids.to(self.token_rows.device)
        inside = (token_ids >= 0) & (token_ids < len(self.token_rows))
        rows = torch.where(inside, self.token_rows[token_ids.clamp(0, len(self.token_rows) - 1)], -1)
        if (rows < 0).any():
            unknown = sorted({int(t) for t in token_ids[rows < 0].flatten()})
            raise ModelError(
                f"The embedding of token {unknown[0]} was not loaded ({len(unknown)} such). Expected only tokens given "
                "to load_model: give it the ids of every prompt."
            )
        return rows


def load_model(
    name: str,
    *,
    layers: Iterable[int],
    token_ids: Iterable[int] | Int[Tensor, " ..."],
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    revision: str | None = None,
) -> LoadedModel:
    """Read layers 0 to the deepest asked one, and the embeddings of the tokens that occur.

    Args:
        name: A model folder, a hub name, or `demo`.
        layers: Indices from 0.
        token_ids: Vocabulary ids, in any order and as often as they occur.
        dtype: To compute in, whatever the checkpoint's type is.
        device: Where the model goes.
        revision: Of a hub name.

    Raises:
        ModelError: the checkpoint has no safetensors, is quantised, lacks a tensor or has one too many, or a layer or
            token lies outside of it.
        ConfigError: there is no such device.
    """
    _check_device(device)
    checkpoint = open_checkpoint(name, revision=revision)
    config = _read_config(checkpoint)
    chosen = check_layers(config, layers, name=name)
    skeleton = Skeleton.build(config, name=name, layers=chosen, token_ids=token_ids, dtype=dtype)
    fill_from_checkpoint(skeleton, checkpoint)
    fingerprint = {
        "name": checkpoint.folder.name if checkpoint.folder else checkpoint.name,
        "revision": checkpoint.commit,
        "config_sha256": checkpoint.config_sha256,
        **_describe(skeleton),
    }
    return _finish(skeleton, device, bytes_read=checkpoint.bytes_read, random_weights=False, fingerprint=fingerprint)


def random_model(
    architecture: str | Path,
    *,
    layers: Iterable[int],
    token_ids: Iterable[int] | Int[Tensor, " ..."],
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """An exact architecture with weights drawn as its authors' code initialises them.

    Each module and each embedding row is drawn from a seed of its own, so layer 0 is the same whatever other layers
    are asked for, and a token's embedding the same whatever other tokens occur.

    Args:
        architecture: An ARCH.yaml, or the bare name of a bundled one.
        layers: Indices from 0.
        token_ids: Vocabulary ids, in any order and as often as they occur.
        seed: Of all weights.
        dtype: To compute in.
        device: Where the model goes; the weights are drawn on the CPU, so they do not depend on it.

    Raises:
        ConfigError: the YAML is missing or not an architecture, or there is no such device.
        ModelError: a layer or token lies outside of it.
    """
    _check_device(device)
    facts = read_architecture(architecture)
    from transformers import CONFIG_MAPPING

    model_type = facts.config["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(f"{architecture}: transformers knows no model_type {model_type!r}. Check the spelling.")
    try:
        config = _text_config(CONFIG_MAPPING[model_type].from_dict(dict(facts.config)))
    except Exception as error:  # each config class has its own
        raise ConfigError(f"{architecture}: not a config of {model_type}: {' '.join(str(error).split())}") from error
    chosen = check_layers(config, layers, name=facts.name)
    skeleton = Skeleton.build(config, name=facts.name, layers=chosen, token_ids=token_ids, dtype=dtype)
    fill_at_random(skeleton, seed)
    fingerprint = {"name": facts.name, "architecture_sha256": facts.sha256, "seed": seed, **_describe(skeleton)}
    return _finish(skeleton, device, bytes_read=0, random_weights=True, fingerprint=fingerprint)


def _check_device(device: str | torch.device) -> None:
    """Refuse a device that torch does not know or cannot reach, before anything is read.

    Raises:
        ConfigError: there is no such device here.
    """
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch has no class for it
        said = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"--device {device} cannot be used: {said[:200]} Expected cpu, or cuda where there is one."
        ) from None


def check_layers(config: PretrainedConfig, layers: Iterable[int], *, name: str) -> tuple[int, ...]:
    """The layers ascending, each once.

    Raises:
        ModelError: none, or one that the model does not have.
    """
    return _check_range(layers, config.num_hidden_layers, "layer", name)


def check_heads(config: PretrainedConfig, heads: Iterable[int], *, name: str) -> tuple[int, ...]:
    """The query heads ascending, each once.

    Raises:
        ModelError: none, or one that the model does not have.
    """
    return _check_range(heads, config.num_attention_heads, "head", name)


def _check_range(indices: Iterable[int], count: int, noun: str, name: str) -> tuple[int, ...]:
    chosen = tuple(sorted({int(i) for i in indices}))
    valid = f"{noun}s 0 to {count - 1} (labelled {noun.title()} 1 to {noun.title()} {count})"
    if not chosen:
        raise ModelError(f"No {noun} was asked for. {name} has {valid}; name at least one.")
    if outside := [i for i in chosen if not 0 <= i < count]:
        raise ModelError(
            f"{name} has no {noun} {outside[0]} (labelled {noun.title()} {outside[0] + 1}). Expected {valid}: "
            "indices count from 0, labels in figures from 1."
        )
    return chosen


def _read_config(checkpoint: Checkpoint) -> PretrainedConfig:
    from transformers import AutoConfig

    source = checkpoint.folder or checkpoint.name
    try:
        config = AutoConfig.from_pretrained(source, revision=checkpoint.commit, trust_remote_code=False)
    except Exception as error:
        raise ModelError(explain_hub_error(checkpoint.name, error)) from error
    text = _text_config(config)
    quantised = getattr(config, "quantization_config", None) or getattr(text, "quantization_config", None)
    if quantised:
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
        raise ModelError(
            f"{checkpoint.name} is quantised ({method}), and its attention is not that of the model it was made from. "
            "Expected float32, bfloat16 or float16 tensors: name the unquantised checkpoint, or dequantise it and save "
            "it with save_pretrained."
        )
    if text.is_encoder_decoder:
        raise ModelError(
            f"{checkpoint.name} ({text.model_type}) is an encoder-decoder. The probe reads causal language models."
        )
    return text


def _text_config(config: PretrainedConfig) -> PretrainedConfig:
    return config.get_text_config(decoder=True)


def _describe(skeleton: Skeleton) -> dict[str, Any]:
    """What identifies weights without reading more of them: the start of each first-layer tensor."""
    first = skeleton.model.get_submodule(f"{skeleton.layers_path}.0")
    digest = hashlib.sha256()
    for name, tensor in sorted(first.state_dict().items()):
        values = tensor.flatten()[:_SAMPLED_VALUES].to(torch.float64).numpy()
        digest.update(name.encode() + values.tobytes())
    return {
        "model_type": skeleton.config.model_type,
        "first_layer_sha256": digest.hexdigest(),
        "dtype": str(skeleton.dtype).removeprefix("torch."),
    }


def _finish(skeleton: Skeleton, device: str | torch.device, **facts: Any) -> LoadedModel:
    token_rows = torch.full((skeleton.config.vocab_size,), -1, dtype=torch.long)
    token_rows[list(skeleton.vocabulary)] = torch.arange(len(skeleton.vocabulary))
    return LoadedModel(
        name=skeleton.name,
        model=skeleton.model.requires_grad_(False).to(device),
        config=skeleton.config,
        layers=skeleton.layers,
        layers_path=skeleton.layers_path,
        token_rows=token_rows.to(device),
        **facts,
    )
