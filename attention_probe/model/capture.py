"""Run the first layers once, and reduce their attention to column means and masses while they run.

Where the architecture calls our attention function (`attention_function`), it does the reducing. Elsewhere whole
matrices from `output_attentions` are reduced (`eager_fallback`), and a notice says so.
"""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from attention_probe.model.attention_function import ATTENTION, OutOfReach, switched_attention
from attention_probe.model.attention_statistics import Capture, Done, Readout
from attention_probe.model.eager_fallback import run_eager, softmax_layers
from harness.errors import ModelError, PromptMismatchError

if TYPE_CHECKING:
    from attention_probe.model.load_first_layers import LoadedModel

ACTIVATIONS = frozenset({"act_fn", "activation_fn", "act", "gelu_impl"})
"""What architectures call the non-linearity of their MLP."""
TESTED = frozenset({"qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_oss"})
"""Model types whose capture the tests compare with eager attention."""


def capture(
    loaded: LoadedModel,
    token_ids: Int[Tensor, "batch seq"],
    *,
    layers: Iterable[int] | None = None,
    attention_mask: Bool[Tensor, "batch seq"] | Int[Tensor, "batch seq"] | None = None,
    position_ids: Int[Tensor, "batch seq"] | None = None,
    query_sets: Bool[Tensor, "batch query_set seq"] | None = None,
    key_regions: Bool[Tensor, "batch region seq"] | None = None,
    entropy_regions: Iterable[int] | None = None,
    output_region: int | None = None,
    activations: bool = False,
    eager: bool = False,
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
        entropy_regions: Regions whose entropy is taken; None for all.
        output_region: Region whose part of each head's output is kept, with the whole output and the value vectors.
        activations: Keep the first MLP's activations.
        eager: Use `output_attentions` even where our function is called, for comparison; nothing is looked up then.
        chunk: Queries in one block; None for as many as fit the caches.

    Raises:
        ModelError: the model gives no attention weights, or not finite ones; is not causal; takes no positions; or has
            no activations to give.
        PromptMismatchError: a prompt is longer than the model's context, or has a token outside its vocabulary.
        ValueError: shapes do not fit each other.
    """
    model = loaded.model
    token_ids = token_ids.to(model.device)
    batch, length = token_ids.shape
    real = _real_positions(token_ids, attention_mask)
    usual = (real.long().cumsum(-1) - 1).clamp_min(0)
    positions = usual if position_ids is None else position_ids.to(model.device)
    if not takes_positions(loaded) and not torch.equal(positions[real], usual[real]):
        raise ModelError(f"{_name(model)} counts positions itself: leave out --decompose for this model.")
    refuse_long_prompt(loaded, int(positions[real].max()) + 1)
    refuse_unknown_tokens(loaded, token_ids[real])
    everything = torch.ones(batch, 1, length, dtype=torch.bool, device=model.device)
    regions = everything[:, :0] if key_regions is None else key_regions.to(model.device)
    asked = Readout(
        real=real,
        layers=tuple(sorted(loaded.layers if layers is None else layers)),
        query_sets=everything if query_sets is None else query_sets.to(model.device),
        key_regions=regions,
        entropy_regions=frozenset(range(regions.shape[1]) if entropy_regions is None else entropy_regions),
        output_region=output_region,
        activations=activations,
        chunk=chunk,
    )
    # Padding becomes a copy of a token that is there: nothing looks at it, and it may be no id of the vocabulary.
    token_ids = token_ids.where(real, token_ids.gather(1, real.long().argmax(-1, keepdim=True)))
    # The mask is always passed: without one, Hugging Face takes a gap in the positions for a border between documents.
    inputs: dict[str, Any] = {
        "input_ids": token_ids,
        "attention_mask": real.long(),
        "position_ids": positions,
        "use_cache": False,
    }
    found = Capture(asked=asked)
    with torch.inference_mode(), _recorded_activations(loaded, found):
        found.eager = eager or not _run_registered(model, inputs, found)
        if found.eager:
            run_eager(loaded, inputs, found)
    _refuse_missing(loaded, found)
    _refuse_not_finite(loaded, found)
    found.notices = _notices(model, fell_back=found.eager and not eager)
    return found


def _real_positions(token_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Which positions hold a token."""
    if attention_mask is None:
        return torch.ones_like(token_ids, dtype=torch.bool)
    if attention_mask.shape != token_ids.shape or not bool(attention_mask.any(-1).all()):
        raise ValueError(
            f"attention_mask must be {list(token_ids.shape)}, as token_ids, with a token in every row; got "
            f"{list(attention_mask.shape)}."
        )
    return attention_mask.to(token_ids.device).bool()


def refuse_long_prompt(loaded: LoadedModel, length: int, what: str = "A prompt") -> None:
    """Raise PromptMismatchError if `what`, which has so many tokens, is longer than the model's context."""
    context = getattr(loaded.model.config, "max_position_embeddings", None)
    if context is not None and length > context:
        raise PromptMismatchError(f"{what} reaches position {length}; {loaded.name} has a context of {context} tokens.")


def refuse_unknown_tokens(loaded: LoadedModel, token_ids: Int[Tensor, " token"]) -> None:
    """Raise PromptMismatchError for an id that the model's vocabulary does not have."""
    size = loaded.config.vocab_size
    unknown = token_ids[(token_ids < 0) | (token_ids >= size)]
    if len(unknown):
        raise PromptMismatchError(
            f"Token id {int(unknown[0])} is outside the vocabulary of {loaded.name}, 0 to {size - 1}."
        )


def takes_positions(loaded: LoadedModel) -> bool:
    """Whether the model can be told other positions than the usual ones: ALiBi counts them from the mask."""
    accepted = inspect.signature(loaded.model.forward).parameters
    return "position_ids" in accepted and not getattr(loaded.model.config, "alibi", False)


def _refuse_missing(loaded: LoadedModel, found: Capture) -> None:
    if missing := [layer for layer in found.asked.layers if layer not in found.layers]:
        raise ModelError(
            f"{_name(loaded.model)} gave no attention weights for layers {missing}; layers with softmax attention: "
            f"{softmax_layers(loaded.config) or 'none known'}."
        )


def _refuse_not_finite(loaded: LoadedModel, found: Capture) -> None:
    """Raise for NaN or infinity in what is kept: a mean over some heads or prompts would hide it, or spread it."""
    for layer, kept in sorted(found.layers.items()):
        heads = kept.not_finite(found.asked.real)
        if not heads:
            continue
        weights = loaded.model.state_dict().items()
        broken = next((name for name, tensor in weights if not bool(tensor.isfinite().all())), None)
        what = f"its {broken} holds NaN or infinity" if broken else "its weights are finite: the computation overflows"
        raise ModelError(
            f"{loaded.name}: attention is NaN or infinite in layer {layer} (labelled Layer {layer + 1}), head index "
            f"{heads}. In {str(loaded.model.dtype).removeprefix('torch.')} {what}."
        )


def _run_registered(model: Any, inputs: dict[str, Any], found: Capture) -> bool:
    """One pass with our functions; False if the architecture does not call them, or not with what they need."""
    if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(model.forward).parameters.values()):
        return False
    with switched_attention(model, ATTENTION) as granted:
        if not granted:
            return False
        try:
            model(**inputs, capture=found)
        except Done:
            return True
        except OutOfReach:
            return False
    return False


@contextmanager
def _recorded_activations(loaded: LoadedModel, found: Capture) -> Iterator[None]:
    """Record the first MLP's activations, if they are asked."""
    if not found.asked.activations:
        yield
        return

    def record(_module: nn.Module, _inputs: Any, result: Tensor) -> None:
        # some architectures lay all tokens in one row, or add an axis of one
        if result.shape[:-1].numel() != found.asked.real.numel():
            raise ModelError(
                f"The first MLP gives {list(result.shape)} for {list(found.asked.real.shape)} tokens: leave out "
                "--activations for this model."
            )
        found.activations = result.reshape(*found.asked.real.shape, -1)
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


def _notices(model: Any, *, fell_back: bool) -> tuple[str, ...]:
    """What a reader must know about how the numbers were made."""
    said = []
    if model.config.model_type not in TESTED:
        vouching = "nothing" if fell_back else "only its self-check against eager attention"
        said.append(f"{model.config.model_type} is not among the tested architectures: {vouching} vouches for it.")
    if fell_back:
        said.append(
            f"{_name(model)} does not call the registered attention function: weights are from output_attentions on "
            "the truncated model, and memory grows with the square of the prompt."
        )
    return tuple(said)


def _name(model: Any) -> str:
    return type(model).__name__
