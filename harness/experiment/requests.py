"""What is asked of a model: requests, and the key that makes a sample reusable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.experiment.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to generate.

    Attributes:
        task: Its name, as lm-eval knows it.
        problem_id: Which problem of the dataset.
        sample_index: Which of the samples of this problem, from 0.
        replicate: Which repetition of the whole condition, from 0.
        seed: The sample's own seed; None where nothing is drawn.
        prompt: The prompt as text, templated.
        prompt_token_ids: The prompt as the engine gets it; None where the model's tokenizer is not known.
        prompt_sha256: Hash of the text, as lm-eval's sample logs carry it.
        prompt_token_sha256: Hash of the token ids; None where they are not known.
        sampling: The parameters in force.
        intervention: What is done to the model while it generates, such as a change of its attention; None for nothing.
        turns: The messages, for a backend that takes no templated text (a chat API); None for all others.
        replay: Token ids that the engine generates, whatever the model says; None for what the model says.
    """

    task: str
    problem_id: str
    sample_index: int = 0
    replicate: int = 0
    seed: int | None = None
    prompt: str
    prompt_token_ids: tuple[int, ...] | None
    prompt_sha256: str
    prompt_token_sha256: str | None
    sampling: Sampling
    intervention: Mapping[str, Any] | None = None
    turns: tuple[dict[str, str], ...] | None = None
    replay: tuple[int, ...] | None = None

    def key(self, setting: str) -> str:
        """Cache key: two requests with the same key give interchangeable samples.

        It covers all that can change a sample. The condition's name is not part of it: the prompt's tokens are. What
        grades the sample is not part of it either.

        Args:
            setting: What all samples of a run share, from `hash_setting`.
        """
        parts = (
            setting,
            self.prompt_token_sha256 or (self.prompt_sha256, self.turns),
            self.sampling.vllm(),
            self.intervention,
            self.seed,
            self.problem_id,
            self.sample_index,
            self.replicate,
        )
        return hash_json(parts)


def hash_setting(
    *, prompt_version: int, model: Mapping[str, Any], arguments: Mapping[str, Any], engine: Mapping[str, Any]
) -> str:
    """Hash of what all samples of a run share.

    Args:
        prompt_version: `PROMPT_VERSION` of the prompts.
        model: The model's fingerprint. A folder is known by what is in it, so that it may have another name.
        arguments: The model arguments that can change a sample: `config.fixed_arguments`.
        engine: The engine's name, its version and the type of device.
    """
    content = model.get("sha256") or model
    return hash_json({"prompts": prompt_version, "model": content, "arguments": arguments, "engine": engine})


def hash_json(value: Any) -> str:
    """SHA-256 of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_prompts(prompts: Iterable[Mapping[str, Any]]) -> str:
    """Hash over the texts and token ids of all prompts, in order; rows as `prompts.jsonl` has them."""
    hashes = (f"{row['prompt_sha256']} {row['prompt_token_sha256']}" for row in prompts)
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
