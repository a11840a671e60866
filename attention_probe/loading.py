# ruff: noqa: F722  (jaxtyping's shapes are not forward references)
"""A model's first layers and nothing else: read from a checkpoint, or drawn at random.

The whole model is laid out on the meta device, which costs milliseconds and no memory, and is then cut after the
deepest asked layer. So what layer i is (its window, its rotary base, its place in a pattern) is decided with the full
config, and cutting cannot change it. The embedding keeps only the rows of the tokens that occur.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attention_probe.architectures import read_architecture
from attention_probe.checkpoints import Checkpoint, open_checkpoint
from harness.errors import ConfigError, ModelError
from harness.tokenization import explain_hub_error

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from transformers import PretrainedConfig, PreTrainedModel

FINAL_NORMS = ("norm", "ln_f", "norm_f", "final_norm", "final_layernorm", "final_layer_norm")
"""What architectures call the norm after the last layer: the cut model has none."""
_IGNORED = (r"rotary_emb\.inv_freq$", r"(^|\.)attn\.masked_bias$", r"(^|\.)position_ids$")
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
    """
    checkpoint = open_checkpoint(name, revision=revision)
    config = _read_config(checkpoint)
    skeleton = _Skeleton.build(config, name=name, layers=layers, token_ids=token_ids, dtype=dtype)
    _fill_from_checkpoint(skeleton, checkpoint)
    fingerprint = {
        "name": checkpoint.folder.name if checkpoint.folder else checkpoint.name,
        "revision": checkpoint.commit,
        "config_sha256": checkpoint.config_sha256,
        **_describe(skeleton),
    }
    return skeleton.finish(device, bytes_read=checkpoint.bytes_read, random_weights=False, fingerprint=fingerprint)


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
        ConfigError: the YAML is missing or not an architecture.
        ModelError: a layer or token lies outside of it.
    """
    facts = read_architecture(architecture)
    from transformers import CONFIG_MAPPING

    model_type = facts.config["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ConfigError(f"{architecture}: transformers knows no model_type {model_type!r}. Check the spelling.")
    try:
        config = _text_config(CONFIG_MAPPING[model_type].from_dict(dict(facts.config)))
    except Exception as error:  # each config class has its own
        raise ConfigError(f"{architecture}: not a config of {model_type}: {' '.join(str(error).split())}") from error
    skeleton = _Skeleton.build(config, name=facts.name, layers=layers, token_ids=token_ids, dtype=dtype)
    _fill_at_random(skeleton, seed)
    fingerprint = {"name": facts.name, "architecture_sha256": facts.sha256, "seed": seed, **_describe(skeleton)}
    return skeleton.finish(device, bytes_read=0, random_weights=True, fingerprint=fingerprint)


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
            f"{checkpoint.name} is quantised ({method}), and attention computed from quantised weights is not the "
            "model's. Expected float32, bfloat16 or float16 tensors: name the unquantised checkpoint, or dequantise it "
            "and save it with save_pretrained."
        )
    if text.is_encoder_decoder:
        raise ModelError(
            f"{checkpoint.name} ({text.model_type}) is an encoder-decoder. The probe reads causal language models."
        )
    return text


def _text_config(config: PretrainedConfig) -> PretrainedConfig:
    return config.get_text_config(decoder=True)


@dataclass(slots=True, kw_only=True)
class _Skeleton:
    """A cut model without weights: its embedding has only the rows of `vocabulary`."""

    name: str
    model: PreTrainedModel
    config: PretrainedConfig
    layers: tuple[int, ...]
    layers_path: str
    embedding_path: str
    vocabulary: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def build(
        cls,
        config: PretrainedConfig,
        *,
        name: str,
        layers: Iterable[int],
        token_ids: Iterable[int] | Tensor,
        dtype: torch.dtype,
    ) -> _Skeleton:
        from transformers import AutoModel

        layers = check_layers(config, layers, name=name)
        vocabulary = _check_tokens(token_ids, config, name)
        own = copy.deepcopy(config)
        own.use_cache = False  # nothing is generated
        try:
            with torch.device("meta"):
                model = AutoModel.from_config(own, dtype=dtype)
        except ValueError as error:
            raise ModelError(
                f"{name} ({config.model_type}) is not a model that the probe can build: {str(error)[:200]}"
            ) from error
        layers_path, decoder_layers = _decoder_layers(model, config.num_hidden_layers)
        del decoder_layers[max(layers) + 1 :]
        _drop_final_norm(model, layers_path)
        return cls(
            name=name,
            model=model.eval().requires_grad_(False),
            config=config,
            layers=layers,
            layers_path=layers_path,
            embedding_path=_narrow_embedding(model, config, len(vocabulary)),
            vocabulary=vocabulary,
            dtype=dtype,
        )

    @property
    def wanted(self) -> set[str]:
        """Names of all tensors that must be filled, but the embedding."""
        return set(self.model.state_dict()) - {f"{self.embedding_path}.weight"}

    @property
    def embedding(self) -> nn.Embedding:
        module = self.model.get_submodule(self.embedding_path)
        assert isinstance(module, nn.Embedding)
        return module

    def set_embedding(self, rows: Float[Tensor, "rows hidden"]) -> None:
        self.embedding.weight = nn.Parameter(rows.to(self.dtype), requires_grad=False)
        self.embedding.weight._is_hf_initialized = True  # type: ignore[attr-defined]

    def finish(self, device: str | torch.device, **facts: Any) -> LoadedModel:
        left = [n for n, t in _tensors(self.model) if t.is_meta]
        assert not left, f"never filled: {left}"
        token_rows = torch.full((self.config.vocab_size,), -1, dtype=torch.long)
        token_rows[list(self.vocabulary)] = torch.arange(len(self.vocabulary))
        return LoadedModel(
            name=self.name,
            model=self.model.requires_grad_(False).to(device),
            config=self.config,
            layers=self.layers,
            layers_path=self.layers_path,
            token_rows=token_rows.to(device),
            **facts,
        )


def _check_tokens(token_ids: Iterable[int] | Tensor, config: PretrainedConfig, name: str) -> tuple[int, ...]:
    ids = token_ids.flatten().tolist() if isinstance(token_ids, Tensor) else token_ids
    vocabulary = tuple(sorted({int(i) for i in ids}))
    if not vocabulary:
        raise ModelError(f"No token was given, so no embedding of {name} can be loaded. Give the prompts' token ids.")
    if vocabulary[0] < 0 or vocabulary[-1] >= config.vocab_size:
        worst = vocabulary[0] if vocabulary[0] < 0 else vocabulary[-1]
        raise ModelError(
            f"Token id {worst} is outside the vocabulary of {name}, 0 to {config.vocab_size - 1}. The prompts were "
            "tokenized for another model: use this model's own tokenizer."
        )
    return vocabulary


def _decoder_layers(model: nn.Module, count: int) -> tuple[str, nn.ModuleList]:
    """The list of decoder layers and its path: the outermost list with as many modules as there are layers."""
    lists = [(p, m) for p, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) == count]
    if not lists:
        raise ModelError(
            f"{type(model).__name__} has no list of {count} decoder layers, so it cannot be cut. "
            "The probe reads decoders whose layers are one list."
        )
    outermost = min(path.count(".") for path, _ in lists)
    found = [(path, modules) for path, modules in lists if path.count(".") == outermost]
    if len(found) > 1:
        raise ModelError(
            f"{type(model).__name__} has several lists of {count} modules ({', '.join(path for path, _ in found)}), so "
            "it cannot be told which are its layers. The probe reads decoders whose layers are one list."
        )
    return found[0]


def _drop_final_norm(model: PreTrainedModel, layers_path: str) -> None:
    # its weights lie in the last shard, which would otherwise be fetched for them alone; a norm without weights stays,
    # as NanoChat applies the same one to the embeddings
    parent = model.get_submodule(layers_path.rpartition(".")[0])
    for name in FINAL_NORMS:
        norm = getattr(parent, name, None)
        if isinstance(norm, nn.Module) and any(True for _ in norm.parameters()):
            setattr(parent, name, nn.Identity())


def _narrow_embedding(model: PreTrainedModel, config: PretrainedConfig, rows: int) -> str:
    embedding = model.get_input_embeddings()
    path: str = next(p for p, m in model.named_modules() if m is embedding)
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    for other, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or module is embedding:
            continue
        # a table of positions has about as many rows as there are positions; one that skips padding reads token ids
        if not positions <= module.num_embeddings <= positions + 2 or module.padding_idx is not None:
            raise ModelError(
                f"{type(model).__name__} looks tokens up in a second table, {other}, which the probe would index with "
                "the rows of the first. Architectures with one token table can be probed."
            )
    assert isinstance(embedding, nn.Embedding)
    embedding.weight = nn.Parameter(embedding.weight[:rows], requires_grad=False)
    embedding.num_embeddings = rows
    embedding.padding_idx = None  # a row number now means another token
    return path


def _fill_from_checkpoint(skeleton: _Skeleton, checkpoint: Checkpoint) -> None:
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    model = skeleton.model
    prefix = _find_prefix(skeleton, checkpoint)
    _read_embedding(skeleton, checkpoint, f"{prefix}{skeleton.embedding_path}.weight")
    tensors = {
        name.removeprefix(prefix): checkpoint.tensor(name, skeleton.dtype)
        for name in _needed(skeleton, checkpoint.files, prefix)
    }
    with _no_progress_bar():
        # transformers' own loader, because a few architectures are stored otherwise than they run (fused experts)
        found, _ = convert_and_load_state_dict_in_model(
            model=model,
            state_dict=tensors,
            load_config=LoadStateDictConfig(
                weight_mapping=get_model_conversion_mapping(model), dtype=skeleton.dtype, device_map={"": "cpu"}
            ),
        )
    _refuse_mismatch(skeleton, checkpoint, found)
    _initialise_rest(model, seed=0)  # buffers that no checkpoint stores: rotary frequencies, embedding scale


def _find_prefix(skeleton: _Skeleton, checkpoint: Checkpoint) -> str:
    """What the checkpoint puts before the base model's names: nothing, `model.`, `language_model.model.` and so on."""
    wanted = f"{skeleton.embedding_path}.weight"
    first_layer = f"{skeleton.layers_path}.0."
    endings = [name.removesuffix(wanted) for name in checkpoint.files if name.endswith(wanted)]
    prefixes = [
        prefix
        for prefix in endings
        if (not prefix or prefix.endswith(".")) and any(n.startswith(prefix + first_layer) for n in checkpoint.files)
    ]
    if len(prefixes) != 1:
        raise ModelError(
            f"{checkpoint.name} holds {len(prefixes) or 'no'} language models of type {skeleton.config.model_type}: "
            f"expected one tensor named ...{wanted} and a layer ...{first_layer}* beside it, found tensors such as "
            f"{', '.join(sorted(checkpoint.files)[:3]) or 'none at all'}. config.json and weights belong to different "
            "models, or this layout is not known."
        )
    return prefixes[0]


def _needed(skeleton: _Skeleton, names: Iterable[str], prefix: str) -> Iterator[str]:
    """Checkpoint tensors of the kept layers, and those outside of layers that the model has."""
    ignored = [*_IGNORED, *(skeleton.model._keys_to_ignore_on_load_unexpected or ())]
    wanted = skeleton.wanted
    for name in names:
        inner = name.removeprefix(prefix)
        if not name.startswith(prefix) or (inner not in wanted and any(re.search(p, inner) for p in ignored)):
            continue
        layer = re.match(rf"{re.escape(skeleton.layers_path)}\.(\d+)\.", inner)
        if inner in wanted if layer is None else int(layer[1]) <= max(skeleton.layers):
            yield name


def _read_embedding(skeleton: _Skeleton, checkpoint: Checkpoint, name: str) -> None:
    expected = (skeleton.config.vocab_size, skeleton.embedding.weight.shape[1])
    if (got := checkpoint.shape(name)) != expected:
        raise ModelError(
            f"{checkpoint.name}: {name} is {got}, and config.json says {expected} (vocabulary, hidden size). "
            "config.json and weights belong to different models."
        )
    skeleton.set_embedding(checkpoint.rows(name, skeleton.vocabulary, skeleton.dtype))


def _refuse_mismatch(skeleton: _Skeleton, checkpoint: Checkpoint, found: Any) -> None:
    missing = sorted(found.missing_keys - {f"{skeleton.embedding_path}.weight"})
    for names, what in (
        (missing, "lacks tensors that the model needs"),
        (sorted(found.unexpected_keys), "has tensors in the asked layers that the model does not"),
        ([str(m[0]) for m in sorted(found.mismatched_keys)], "has tensors of another shape than config.json says"),
        (sorted(found.conversion_errors), "has tensors that transformers cannot convert"),
    ):
        if names:
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            raise ModelError(
                f"{checkpoint.name} {what}: {shown}. With weights left out or drawn at random every number would be "
                "wrong, so nothing was computed. config.json and weights belong to different models, or the "
                "checkpoint is incomplete: fetch it again."
            )


def _fill_at_random(skeleton: _Skeleton, seed: int) -> None:
    std = float(getattr(skeleton.config, "initializer_range", None) or 0.02)
    rows = torch.empty(skeleton.embedding.weight.shape, dtype=torch.float32)
    for row, token in zip(rows, skeleton.vocabulary, strict=True):
        row.normal_(0, std, generator=torch.Generator().manual_seed(_seed_of(seed, f"token {token}")))
    skeleton.set_embedding(rows)
    _initialise_rest(skeleton.model, seed)


def _initialise_rest(model: PreTrainedModel, seed: int) -> None:
    """Give every tensor that is still without values those that the architecture's own initialisation gives it."""
    from transformers.initialization import guard_torch_init_functions

    for module in model.modules():
        for name, tensor in module.named_parameters(recurse=False):
            if tensor.is_meta:
                setattr(module, name, nn.Parameter(torch.empty_like(tensor, device="cpu"), requires_grad=False))
        for name, tensor in module.named_buffers(recurse=False):
            if tensor.is_meta:
                setattr(module, name, torch.empty_like(tensor, device="cpu"))
    before = {name: (tensor, tensor._version) for name, tensor in _tensors(model)}
    # `_init_weights` takes no generator; the guard keeps it off what is marked as set, however it writes
    with torch.random.fork_rng(devices=[]), torch.no_grad(), guard_torch_init_functions():
        for path, module in reversed(list(model.named_modules())):  # inner ones first: outer ones may rescale them
            torch.manual_seed(_seed_of(seed, path))
            model._init_weights(module)
    for name, tensor in _tensors(model):
        was, version = before[name]
        written = tensor is not was or tensor._version != version
        if written == getattr(was, "_is_hf_initialized", False):
            raise ModelError(
                f"{type(model).__name__} "
                + ("overwrites the loaded" if written else "does not say how to initialise")
                + f" {name}. This architecture cannot be probed."
            )


def _tensors(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "little") >> 1


def _describe(skeleton: _Skeleton) -> dict[str, Any]:
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


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
