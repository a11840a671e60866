"""Values for a skeleton: from a checkpoint, or as the architecture's own initialisation draws them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attention_probe.model.checkpoints import Checkpoint
from attention_probe.model.skeleton import Skeleton
from harness.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_IGNORED = (r"rotary_emb\.inv_freq$", r"(^|\.)attn\.masked_bias$", r"(^|\.)position_ids$")
"""Buffers that old checkpoints store and models now compute."""


def fill_from_checkpoint(skeleton: Skeleton, checkpoint: Checkpoint) -> None:
    """Read what the skeleton needs.

    Raises:
        ModelError: a tensor is missing, unexpected, of another shape, or cannot be read.
    """
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


def _find_prefix(skeleton: Skeleton, checkpoint: Checkpoint) -> str:
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


def _needed(skeleton: Skeleton, names: Iterable[str], prefix: str) -> Iterator[str]:
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


def _read_embedding(skeleton: Skeleton, checkpoint: Checkpoint, name: str) -> None:
    expected = (skeleton.config.vocab_size, skeleton.embedding.weight.shape[1])
    if (got := checkpoint.shape(name)) != expected:
        raise ModelError(
            f"{checkpoint.name}: {name} is {got}, and config.json says {expected} (vocabulary, hidden size). "
            "config.json and weights belong to different models."
        )
    skeleton.set_embedding(checkpoint.rows(name, skeleton.vocabulary, skeleton.dtype))


def _refuse_mismatch(skeleton: Skeleton, checkpoint: Checkpoint, found: Any) -> None:
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


def fill_at_random(skeleton: Skeleton, seed: int) -> None:
    """Draw every weight as the architecture initialises it: each module and embedding row from a seed of its own."""
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
