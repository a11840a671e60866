"""Open layers: those that are changed or recorded, what excludes them, and vLLM's options."""

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from harness.constants import JsonObject
from harness.engines.engine_options import compilation_settings
from harness.engines.engine_processes import CHANGE_OPERATION, PLUGIN_NAME
from harness.errors import ConfigError
from harness.experiment.intervention_settings import TARGET_BY_KIND, Intervention
from harness.experiment.prompts.chat_template import ModelArguments
from harness.experiment.prompts.tokenizer import load_model_config, trusts_code
from harness.experiment.run_config import RunConfig

CACHE_OPERATIONS = ("vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update")
"""Operations at which vLLM splits graphs unless `splitting_ops` is set. We set it, so they are
listed here. Each contains the name of its layer, so a graph with one would be compiled again for
every layer."""

_FEATURE_BY_ARGUMENT = {
    "quantization": "quantised weights",
    "speculative_config": "speculation",
    "kv_cache_dtype": "a cache of another type",
    "batch_invariant": "batch invariance",
    "pipeline_parallel_size": "pipeline parallel",
    "decode_context_parallel_size": "context parallel",
    "prefill_context_parallel_size": "context parallel",
    "worker_cls": "another worker class",
}
"""The feature that a model argument switches on, and that excludes open layers."""
_UNUSED_VALUES = (None, False, 1, "1", "auto")
"""Values of these arguments that switch nothing on."""


def find_changed_layers(interventions: Mapping[str, Sequence[Intervention]]) -> JsonObject:
    """The layers, from 0, that the interventions of conditions change, by what they change there.

    The keys are the targets of TARGET_BY_KIND: `attention`, `activations`, and `outputs` of MLPs.
    """
    layers_by_target: dict[str, set[int]] = {target: set() for target in TARGET_BY_KIND.values()}
    for intervention in chain.from_iterable(interventions.values()):
        layers_by_target[TARGET_BY_KIND[intervention.kind]].update(intervention.layer_indices)
    return {target: sorted(layers_by_target[target]) for target in layers_by_target}


def refuse_interventions(config: RunConfig) -> None:
    """Refuse a config whose backend or model arguments exclude its interventions.

    Raises:
        ConfigError: the backend is not vllm, or an argument excludes them.
    """
    if not config.interventions:
        return
    if config.model.backend != "vllm":
        raise ConfigError(
            f"{next(iter(config.interventions))} has an intervention, which needs backend vllm; "
            f"it is {config.model.backend}."
        )
    arguments = config.model.model_args
    if arguments.get("dtype") in (None, "auto"):
        raise ConfigError(
            "Interventions are checked in the type that vLLM computes in: set "
            "model.model_args.dtype, such as float32."
        )
    _refuse_arguments(arguments, find_changed_layers(config.interventions))


def refuse_to_open(arguments: ModelArguments, layers_by_use: JsonObject) -> None:
    """Refuse a model whose layers cannot be opened, before it is loaded.

    Args:
        arguments: The model's arguments.
        layers_by_use: The indices, from 0, of the layers with each use. Of `find_changed_layers`:
            `attention` and `activations`, which every caller gives, and `outputs`, which may be
            left out. Besides these `recorded`, the layers whose attention is recorded, which may
            be left out too.

    Raises:
        ConfigError: an argument or the architecture excludes it, or the model has no such layer.
        ModelError: the model's config cannot be read.
    """
    _refuse_arguments(arguments, layers_by_use)
    import torch
    from transformers import AutoModelForCausalLM

    model_name = str(arguments["pretrained"])
    config = load_model_config(model_name, arguments)
    layer_count = config.num_hidden_layers
    layers: set[int] = set().union(*layers_by_use.values())
    last_layer = max(layers, default=0)
    if last_layer >= layer_count:
        raise ConfigError(
            f"Layer {last_layer + 1} is requested, but the model has {layer_count} layers."
        )
    # on the device `meta` weights take no memory; only the classes of the modules matter here
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusts_code(arguments))
    decoder: Any = getattr(model, "model", None)
    # a model without `model.layers` has no module for any layer, and `_find_obstacle` says so
    blocks = getattr(decoder, "layers", [None] * layer_count)
    # What replaces an MLP's output comes from a pass over other tokens. In this pass
    # `PlainAttention` computes the attention of every layer, so it must be able to do so in every
    # layer: see `WorkerInterventions._compute_sources_and_phantoms`.
    checked_layers = range(layer_count) if layers_by_use.get("outputs") else sorted(layers)
    for layer in checked_layers:
        if obstacle := _find_obstacle(config, layer, blocks[layer], arguments, layers_by_use):
            raise ConfigError(
                f"Layer {layer + 1} of {model_name} cannot be opened: {config.model_type} has "
                f"{obstacle}."
            )


def _find_obstacle(
    config: Any, layer: int, block: Any, arguments: ModelArguments, layers_by_use: JsonObject
) -> str | None:
    """The property of a layer that excludes opening it; None if there is none.

    `block` is the layer's module, and None if the model has no `model.layers`. `layers_by_use` is
    that of `refuse_to_open`.
    """
    attention = getattr(block, "self_attn", None)
    mlp = getattr(block, "mlp", None)
    if attention is None:
        return "no `self_attn` in `model.layers`"
    if getattr(config, "attn_logit_softcapping", None):
        return "soft-capped attention"
    if hasattr(attention, "sinks"):
        return "attention sinks"
    if hasattr(attention, "kv_lora_rank"):
        return "latent attention"
    if layer in layers_by_use.get("outputs", ()) and mlp is None:
        return "no `mlp`, whose output is changed"
    if layer in layers_by_use["activations"] and not hasattr(mlp, "act_fn"):
        return "no `mlp.act_fn`, which changed activations need"
    # recorded attention may have windows, changed attention may not
    if not any(layers_by_use.get(target) for target in TARGET_BY_KIND.values()):
        return None
    # in chunked attention no token sees a chunk before its own, so a chunk is a window
    window = getattr(config, "attention_chunk_size", None)
    # a config may name a window that the switch `use_sliding_window` turns off
    if not window and getattr(config, "use_sliding_window", True):
        window = getattr(config, "sliding_window", None)
    length = int(arguments.get("max_model_len") or config.max_position_embeddings)
    if window and window < length:
        return f"sliding windows of {window} tokens, and model.model_args.max_model_len is {length}"
    return None


def _refuse_arguments(arguments: ModelArguments, layers_by_use: JsonObject) -> None:
    """Refuse model arguments that exclude open layers, or changed activations.

    `layers_by_use` is that of `refuse_to_open`, or only the layers of `find_changed_layers`.

    Raises:
        ConfigError: there is such an argument.
    """
    for name, feature in _FEATURE_BY_ARGUMENT.items():
        value = arguments.get(name)
        # `True in _UNUSED_VALUES` holds, because True equals 1. But True switches a feature on.
        if value is True or value not in _UNUSED_VALUES:
            raise ConfigError(
                f"model.model_args.{name} is {value!r}: interventions and recording cannot go with "
                f"{feature}."
            )
    if layers_by_use["activations"] and arguments.get("tensor_parallel_size") not in _UNUSED_VALUES:
        raise ConfigError(
            "Changed activations need all units of a layer on one GPU: remove tensor_parallel_size."
        )


def add_open_layers(options: JsonObject, layer_settings: JsonObject) -> None:
    """Fill in vLLM's engine arguments `options` with those that open layers need.

    `layer_settings` is the `layers_by_use` of `refuse_to_open`. If attention is recorded, it also
    has `set_count`, the number of sets of queries of each prompt. `WorkerInterventions` reads it.

    vLLM stores a compiled model under a hash of its arguments. The layers are in
    `additional_config`, so that a model with other open layers has another hash. No Python runs in
    a CUDA graph, so steps in which rows are changed or recorded use graphs that are split at
    attention and at our own operation: see `WorkerInterventions.may_use_full_graph`. vLLM uses full
    graphs only for steps in which all requests decode.
    """
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # our hooks replace methods of the V1 runner
    options["worker_cls"] = "harness.engines.interventions.open_worker.OpenWorker"
    options["additional_config"] = {
        **(options.get("additional_config") or {}),
        PLUGIN_NAME: layer_settings,
    }
    if not options.get("enforce_eager"):
        from vllm.config import CompilationConfig

        options["compilation_config"] = {
            "splitting_ops": [
                *CompilationConfig._attention_ops,
                *CACHE_OPERATIONS,
                CHANGE_OPERATION,
            ],
            **compilation_settings(options),
            "cudagraph_mode": "FULL_AND_PIECEWISE",
        }
