"""lm-eval's model arguments as vLLM's engine arguments, and the defaults that mless adds."""

import os
from collections.abc import Mapping
from typing import Any

from harness.constants import JsonObject
from harness.engines.engine_processes import WORKER_EXTENSION
from harness.errors import ConfigError
from harness.experiment.model_settings import name_dtype

CPU_KV_CACHE_BYTES = 2**30
"""Size of the KV cache on a CPU. vLLM would reserve nearly all memory; 1 GiB is ample for a small
model."""
CPU_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache on a CPU, the unit in which prompts share a prefix. Instruction
and filler together are shorter than vLLM's 128, so that nothing would ever be shared. Smaller
blocks must be multiples of 32."""
LEAST_CPU_BATCHED_TOKENS = 8192
"""The fewest tokens that fit into one step on a CPU, where prompts are prefilled without chunks."""

VLLM_NAME_BY_LM_EVAL_NAME = {"pretrained": "model", "max_length": "max_model_len"}
"""vLLM's name of each engine argument that lm-eval names differently."""
NON_ENGINE_ARGUMENTS = (
    "batch_size",
    "max_batch_size",
    "max_gen_toks",
    "device",
    "data_parallel_size",
    "chat_template",
    "chat_template_args",
    "enable_thinking",
)
"""Model arguments that lm-eval, the pool of engines or the prompts use."""
ENGINE_DEFAULTS = {
    "disable_log_stats": True,  # as in vLLM's own `LLM`: statistics take time, nobody reads them
    "worker_extension_cls": WORKER_EXTENSION,
}
"""Engine arguments that have these values unless the user sets them."""


def engine_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's model arguments as vLLM's engine arguments.

    Raises:
        ConfigError: no model is named, or `dtype` is not a type.
    """
    if not arguments.get("pretrained"):
        raise ConfigError(
            "The model arguments name no model: expected `pretrained`, a model folder or hub name."
        )
    options = {
        VLLM_NAME_BY_LM_EVAL_NAME.get(name, name): value
        for name, value in arguments.items()
        if value is not None and name not in NON_ENGINE_ARGUMENTS
    }
    if "dtype" in options:
        options["dtype"] = name_dtype(options["dtype"])
    return options


def compilation_settings(options: Mapping[str, Any]) -> JsonObject:
    """The engine argument `compilation_config`, to which mless adds settings.

    Raises:
        ConfigError: it is not a mapping.
    """
    compilation = options.get("compilation_config") or {}
    if not isinstance(compilation, dict):
        raise ConfigError(
            f"model.model_args.compilation_config: expected a mapping, got {compilation!r}."
        )
    return compilation


def fit_to_cpu(options: dict[str, Any], has_sampled_requests: bool) -> dict[str, Any]:
    """The engine arguments, with those that vLLM needs on a CPU unless the user sets them.

    A step's number of tokens is raised if the longest prompt would not fit into one step.

    Args:
        options: The engine arguments.
        has_sampled_requests: Whether any request will be sampled.

    Raises:
        ConfigError: the engine would die in the middle of the run.
    """
    options = {"block_size": CPU_BLOCK_SIZE, "enable_chunked_prefill": False, **options}
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        options.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    has_chunks = options["enable_chunked_prefill"]
    if has_chunks and has_sampled_requests:
        raise ConfigError(
            "enable_chunked_prefill is true, and on a CPU a seeded sampled request that is "
            "prefilled in chunks kills vLLM. Remove it, or use `gen_kwargs: greedy`."
        )
    # without chunks the longest prompt must fit into one step
    if options.get("max_model_len") and not has_chunks:
        options["max_num_batched_tokens"] = max(
            int(options.get("max_num_batched_tokens") or 0),
            int(options["max_model_len"]),
            LEAST_CPU_BATCHED_TOKENS,
        )
    return options
