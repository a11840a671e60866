# ruff: noqa: F722  (jaxtyping's shapes are not forward references)
"""The first layers of an architecture, without weights.

The whole model is laid out on the meta device, which costs milliseconds and no memory, and is then cut after the
deepest asked layer. So what layer i is (its window, its rotary base, its place in a pattern) is decided with the full
config, and cutting cannot change it. The embedding keeps only the rows of the tokens that occur.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from harness.errors import ModelError

if TYPE_CHECKING:
    from jaxtyping import Float
    from transformers import PretrainedConfig, PreTrainedModel

FINAL_NORMS = ("norm", "ln_f", "norm_f", "final_norm", "final_layernorm", "final_layer_norm")
"""What architectures call the norm after the last layer."""


@dataclass(slots=True, kw_only=True)
class Skeleton:
    """A cut model without weights.

    Attributes:
        name: For messages.
        model: On the meta device.
        config: Of the whole model.
        layers: The asked ones, ascending.
        layers_path: Where the list of decoder layers is.
        embedding_path: Where the token embedding is.
        vocabulary: Ids of the embedding's rows, ascending.
        dtype: Of all weights to come.
    """

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
        layers: tuple[int, ...],
        token_ids: Iterable[int] | Tensor,
        dtype: torch.dtype,
    ) -> Skeleton:
        """Lay the whole model out, then cut it.

        Raises:
            ModelError: a token is outside the vocabulary, or the architecture cannot be built or cut.
        """
        from transformers import AutoModel

        vocabulary = _check_tokens(token_ids, config, name)
        own = copy.deepcopy(config)
        own.use_cache = False  # nothing is generated
        try:
            with torch.device("meta"):
                # some architectures choose their attention here and never again; the probe brings its own, or uses this
                model = AutoModel.from_config(own, dtype=dtype, attn_implementation="eager")
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
        """The token embedding."""
        module = self.model.get_submodule(self.embedding_path)
        assert isinstance(module, nn.Embedding)
        return module

    def set_embedding(self, rows: Float[Tensor, "rows hidden"]) -> None:
        """Give the embedding its rows, and mark them as set: initialising the rest leaves them alone."""
        self.embedding.weight = nn.Parameter(rows.to(self.dtype), requires_grad=False)
        self.embedding.weight._is_hf_initialized = True  # type: ignore[attr-defined]


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
