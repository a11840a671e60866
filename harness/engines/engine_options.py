"""lm-eval's model arguments as vLLM's engine arguments, and the defaults that mless adds."""

import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, PositiveInt

from harness.engines.devices import use_all_cores
from harness.engines.engine_processes import WORKER_EXTENSION
from harness.errors import ConfigError, list_near
from harness.experiment.model_settings import name_dtype
from harness.yaml_settings import validate

CPU_KV_CACHE_BYTES = 2**30
"""Size of the KV cache on a CPU. vLLM would reserve nearly all memory; 1 GiB is ample for a small
model."""
CPU_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache on a CPU, the unit in which prompts share a prefix. Instruction
and filler together are shorter than vLLM's 128, so that nothing would ever be shared. Smaller
blocks must be multiples of 32."""
CPU_BATCHED_TOKENS = 8192
"""The fewest tokens that fit into one step on a CPU, where prompts are prefilled without chunks."""

ENGINE_NAMES = {"pretrained": "model", "max_length": "max_model_len"}
"""vLLM's names of engine arguments that lm-eval names differently."""
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
    "disable_log_stats": True,  # as in vLLM's own `LLM`: nobody reads them, and they take time
    "worker_extension_cls": WORKER_EXTENSION,
}


class EngineValues(BaseModel):
    """The engine arguments whose values vLLM would refuse only after it has started."""

    dtype: Literal["auto", "float16", "bfloat16", "float32"] = "auto"
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1)
    max_num_seqs: PositiveInt = 1
    tensor_parallel_size: PositiveInt = 1
    pipeline_parallel_size: PositiveInt = 1


def engine_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's model arguments as vLLM's engine arguments.

    Raises:
        ConfigError: no model is named, an argument is unknown, or its value is wrong.
    """
    if not arguments.get("pretrained"):
        raise ConfigError(
            "The model arguments name no model: expected `pretrained`, a model folder or hub name."
        )
    options = {
        ENGINE_NAMES.get(name, name): value
        for name, value in arguments.items()
        if value is not None and name not in NON_ENGINE_ARGUMENTS
    }
    _refuse_unknown_arguments(options)
    if "dtype" in options:
        options["dtype"] = name_dtype(options["dtype"])
    validate(EngineValues, options, "model.model_args")
    return options


def _refuse_unknown_arguments(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if an argument has none of the names that the installed vLLM knows."""
    package = find_spec("vllm")
    if package is None:
        return
    # the source is read, because importing vLLM takes eight seconds
    path = Path(str(package.origin)).parent / "engine" / "arg_utils.py"
    source = path.read_text(encoding="utf-8")
    # The fields of all classes in the file. EngineArgs has nearly all of them, so hardly any
    # unknown name passes.
    names = re.findall(r"^    (\w+): ", source, re.M)
    # Not in that file are arguments of VLLMEngine itself, and arguments that `engine_arguments`
    # renames or drops.
    names += ["batch_invariant", "interventions", *ENGINE_NAMES, *NON_ENGINE_ARGUMENTS]
    names = list(dict.fromkeys(names))
    for name in options:
        if name not in names:
            near = list_near(name, names)
            raise ConfigError(
                f"model.model_args has {name!r}, which this vLLM does not know. Near it: {near}."
            )


def fit_to_cpu(options: dict[str, Any], *, sampled: bool) -> None:
    """Fill in the engine arguments that vLLM needs on a CPU; have it use all cores if they are few.

    Args:
        options: The engine arguments; changed in place.
        sampled: Whether any request will be sampled.

    Raises:
        ConfigError: the engine would die in the middle of the run.
    """
    use_all_cores()
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        options.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    options.setdefault("block_size", CPU_BLOCK_SIZE)
    if not options.setdefault("enable_chunked_prefill", False):
        length = int(options.get("max_model_len") or 0)
        if length:  # without chunks the longest prompt must fit into one step
            batched_tokens = int(options.get("max_num_batched_tokens") or 0)
            options["max_num_batched_tokens"] = max(batched_tokens, length, CPU_BATCHED_TOKENS)
    elif sampled:
        raise ConfigError(
            "enable_chunked_prefill is true, and on a CPU a seeded sampled request that is "
            "prefilled in chunks kills vLLM. Remove it, or use `gen_kwargs: greedy`."
        )
