"""Turn lm-eval's model arguments into vLLM's engine arguments, and refuse those that a run must not have.

Only `check_unusual` imports vLLM, so that `mless run` can check a config at once, before it builds a prompt.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any

from harness.errors import ConfigError, list_near

CPU_KV_CACHE_BYTES = 2**30
"""Size of the KV cache on a CPU. vLLM would reserve nearly all memory; 1 GiB is ample for a small model."""

CPU_BLOCK_SIZE = 32
"""Tokens in a block of the KV cache on a CPU. A block is the unit in which prompts share a prefix. vLLM's default there
is 128, and instruction and filler together are shorter than that, so nothing would ever be shared."""

_RENAMED = {"pretrained": "model", "max_length": "max_model_len", "replay_solutions": "enable_trace_replay"}
"""lm-eval's names of engine arguments, and one of ours, with vLLM's names."""
_PROMPT_CHANGING = ("add_bos_token", "think_end_token", "truncation_side")
_TEMPLATE = ("chat_template_args", "enable_thinking")
"""Arguments that the prompts are built with, before any engine is there."""
_USUAL = frozenset(
    "model tokenizer revision tokenizer_revision dtype seed max_model_len max_num_seqs gpu_memory_utilization "
    "tensor_parallel_size pipeline_parallel_size trust_remote_code enforce_eager batch_invariant".split()
)
"""Engine arguments that every vLLM has, and our own."""
_LM_EVAL_ONLY = ("batch_size", "max_batch_size", "max_gen_toks", "device", "data_parallel_size", *_TEMPLATE)


def engine_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """lm-eval's model arguments as vLLM's engine arguments.

    Raises:
        ConfigError: no model is named, or an argument changes prompts.
    """
    if not arguments.get("pretrained"):
        raise ConfigError(
            "The model arguments name no model: expected `pretrained`, a model folder or hub name. Add it."
        )
    for name in _PROMPT_CHANGING:
        if arguments.get(name) is not None:
            raise ConfigError(
                f"The model argument {name!r} changes prompts after they were checked. Remove it: the run config's "
                "layouts and conditions decide what a prompt is."
            )
    return {
        _RENAMED.get(name, name): value
        for name, value in arguments.items()
        if value is not None and name not in _LM_EVAL_ONLY
    }


def check_unusual(given: Mapping[str, Any]) -> None:
    """Refuse engine arguments that the installed vLLM does not know, for a dry run, which starts no engine.

    vLLM is imported, which takes seconds, only if there is an argument that is not in every vLLM. Without vLLM nothing
    is checked.

    Raises:
        ConfigError: as of `refuse_unknown`.
    """
    if given.keys() <= _USUAL:
        return
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        from vllm import EngineArgs
    except Exception:  # not installed here, or a wheel for another driver: a run says which
        return
    refuse_unknown(given.keys() - _USUAL, {field.name for field in fields(EngineArgs)})


def refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError if an engine argument is none of those that this vLLM knows."""
    for name in given:
        if name not in known:
            near = list_near(name, [*known, *_RENAMED, *_LM_EVAL_ONLY], most=3)
            raise ConfigError(
                f"model.arguments has {name!r}, and this vLLM has no such engine argument. Expected one of its "
                f"EngineArgs: {near}."
            )


def fit_to_cpu(given: dict[str, Any], *, sampled: bool) -> None:
    """Fill in the engine arguments that vLLM needs on a CPU.

    Args:
        given: The engine arguments; changed in place.
        sampled: Whether any request will be sampled.

    Raises:
        ConfigError: the engine would die in the middle of the run.
    """
    if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
        given.setdefault("kv_cache_memory_bytes", CPU_KV_CACHE_BYTES)
    given.setdefault("block_size", CPU_BLOCK_SIZE)
    if not given.setdefault("enable_chunked_prefill", False):
        length = int(given.get("max_model_len") or 0)
        if length:  # without chunks the longest prompt must fit into one step
            given["max_num_batched_tokens"] = max(int(given.get("max_num_batched_tokens") or 0), length, 8192)
    elif sampled:
        raise ConfigError(
            "enable_chunked_prefill is true, and on a CPU a seeded sampled request whose prompt is prefilled in chunks "
            "kills vLLM. Remove it, or use `sampling: greedy`."
        )
