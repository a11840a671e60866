"""The key of a sample, made of all that can change it: a stored sample answers every request with its key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from harness.experiment.requests import Request


def sample_key(request: Request, setting: str) -> str:
    """Cache key: two requests with the same key give interchangeable samples.

    It covers all that can change a sample. The condition's name is not part of it: the prompt's tokens are. What grades
    the sample is not part of it either.

    Args:
        request: What is asked.
        setting: What all samples of a run share, from `hash_setting`.
    """
    parts = (
        setting,
        request.prompt_token_sha256 or (request.prompt_sha256, request.turns),
        request.sampling.vllm(),
        request.intervention,
        request.seed,
        request.problem_id,
        request.sample_index,
        request.replicate,
        request.again,
    )
    return hash_json(parts)


def hash_setting(
    *, prompt_version: int, model: Mapping[str, Any], arguments: Mapping[str, Any], engine: Mapping[str, Any]
) -> str:
    """Hash of what all samples of a run share.

    Args:
        prompt_version: `prompt.PROMPT_VERSION` of the prompts.
        model: The model's fingerprint. A folder is known by what is in it, so that it may have another name.
        arguments: The model arguments that can change a sample: see `config.fixed_arguments`.
        engine: The engine's name, its version and the type of device.
    """
    content = model.get("sha256") or model
    return hash_json({"prompts": prompt_version, "model": content, "arguments": arguments, "engine": engine})


def hash_json(value: Any) -> str:
    """SHA-256 of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
