"""Open layers: those that are changed or recorded, what excludes them, and vLLM's options."""

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from harness.constants import JsonObject
from harness.engines.engine_options import compilation_settings
from harness.engines.engine_processes import OPERATION, PLUGIN
from harness.errors import ConfigError
from harness.experiment.intervention_settings import TARGET_BY_KIND, Intervention
from harness.experiment.prompts.tokenizer import load_model_config, trusts_code
from harness.experiment.run_config import RunConfig

OPEN_WORKER = "harness.engines.interventions.open_worker.OpenWorker"
CACHE_OPERATIONS = ("vllm::unified_kv_cache_update", "vllm::unified_mla_kv_cache_update")
"""Operations at which vLLM splits graphs unless `splitting_ops` is set. We set it, so they are
listed here. Each names its layer: a graph that contains one would be compiled again for every
layer."""

_UNSUPPORTED = {
    "quantization": "quantised weights",
    "speculative_config": "speculation",
    "kv_cache_dtype": "a cache of another type",
    "batch_invariant": "batch invariance",
    "pipeline_parallel_size": "pipeline parallel",
    "worker_cls": "another worker class",
}
"""Model arguments that exclude open layers, unless they have a value of _UNUSED_VALUES."""
_UNUSED_VALUES = (None, False, 1, "1", "auto")


def opened_layers(interventions: Mapping[str, Sequence[Intervention]]) -> JsonObject:
    """The layers, from 0, that the interventions of conditions need open.

    `attention`, `activations` and `outputs` of MLPs are the layers in which these are changed.
    """
    numbers: dict[str, set[int]] = {target: set() for target in TARGET_BY_KIND.values()}
    for intervention in chain.from_iterable(interventions.values()):
        numbers[TARGET_BY_KIND[intervention.kind]].update(intervention.layer_indices)
    return {kind: sorted(numbers[kind]) for kind in numbers}


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
    _refuse_arguments(arguments, opened_layers(config.interventions))


def refuse_to_open(arguments: Mapping[str, Any], layers: JsonObject) -> None:
    """Refuse a model whose layers cannot be opened, before it is loaded.

    Raises:
        ConfigError: an argument or the architecture excludes it, or the model has no such layer.
        ModelError: the model's config cannot be read.
    """
    _refuse_arguments(arguments, layers)
    import torch
    from transformers import AutoModelForCausalLM

    name = str(arguments["pretrained"])
    config = load_model_config(name, arguments)
    layer_count = config.num_hidden_layers
    indices: set[int] = set().union(*layers.values())
    last = max(indices, default=0)
    if last >= layer_count:
        raise ConfigError(f"Layer {last + 1} is requested, but the model has {layer_count} layers.")
    # without memory for weights: only the classes of the modules matter
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=trusts_code(arguments))
    decoder: Any = getattr(model, "model", None)
    blocks = getattr(decoder, "layers", [None] * layer_count)
    # a changed output of an MLP is computed from passes through all layers
    checked_layers = range(layer_count) if layers.get("outputs") else sorted(indices)
    for index in checked_layers:
        if obstacle := _find_obstacle(config, index, blocks[index], arguments, layers):
            raise ConfigError(
                f"Layer {index + 1} of {name} cannot be opened: {config.model_type} has {obstacle}."
            )


def _find_obstacle(
    config: Any, index: int, block: Any, arguments: Mapping[str, Any], layers: JsonObject
) -> str | None:
    """The property of a layer that excludes opening it; None if there is none.

    `block` is the layer, and None if the model has no `model.layers`.
    """
    attention = getattr(block, "self_attn", None)
    changes = any(layers.get(target) for target in TARGET_BY_KIND.values())
    context = int(arguments.get("max_model_len") or config.max_position_embeddings)
    window = getattr(config, "sliding_window", None)
    is_windowed = getattr(config, "use_sliding_window", True) and window and window < context
    has_activation = hasattr(getattr(block, "mlp", None), "act_fn")
    obstacles = {
        "no `self_attn` in `model.layers`": attention is None,
        "soft-capped attention": getattr(config, "attn_logit_softcapping", None),
        "attention sinks": hasattr(attention, "sinks"),
        "latent attention": hasattr(attention, "kv_lora_rank"),
        "no `mlp`, whose output is changed": (
            index in layers.get("outputs", ()) and not hasattr(block, "mlp")
        ),
        "no `mlp.act_fn`, which changed activations need": (
            index in layers["activations"] and not has_activation
        ),
        f"sliding windows of {window} tokens, and model.model_args.max_model_len is {context}": (
            changes and is_windowed
        ),
    }
    return next((obstacle for obstacle, exists in obstacles.items() if exists), None)


def _refuse_arguments(arguments: Mapping[str, Any], layers: Mapping[str, Sequence[int]]) -> None:
    for name, feature in _UNSUPPORTED.items():
        value = arguments.get(name)
        # in Python True equals 1, but 1 is a default of sizes, not of switches
        if value is True or value not in _UNUSED_VALUES:
            raise ConfigError(
                f"model.model_args.{name} is {value!r}: interventions and recording cannot go with "
                f"{feature}."
            )
    if layers["activations"] and arguments.get("tensor_parallel_size") not in _UNUSED_VALUES:
        raise ConfigError(
            "Changed activations need all units of a layer on one GPU: remove tensor_parallel_size."
        )


def open_layers(options: JsonObject, layers: JsonObject) -> None:
    """Fill in the engine arguments that interventions need.

    A compiled model is stored under a hash of the arguments, in which only `additional_config` has
    these layers. No Python runs in a CUDA graph, so steps in which rows are changed or recorded use
    graphs that are split at attention and at our own operation: see
    `WorkerInterventions.may_use_full_graph`. vLLM
    uses full graphs only for steps in which all requests decode.
    """
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the hooks are the V1 runner's
    options["worker_cls"] = OPEN_WORKER
    options["additional_config"] = {**(options.get("additional_config") or {}), PLUGIN: layers}
    if not options.get("enforce_eager"):
        from vllm.config import CompilationConfig

        operations = [*CompilationConfig._attention_ops, *CACHE_OPERATIONS, OPERATION]
        options["compilation_config"] = {
            "splitting_ops": operations,
            **compilation_settings(options),
            "cudagraph_mode": "FULL_AND_PIECEWISE",
        }
