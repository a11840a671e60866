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
    turns: tuple[dict[str, str], ...] | None = None
    replay: tuple[int, ...] | None = None

    def key(self, setting: str) -> str:
        """What the sample is filed under: equal keys mean that one sample may stand for the other.

        Args:
            setting: What all samples of a run share, from `hash_setting`.
        """
        parts = (
            setting,
            self.task,
            self.problem_id,
            self.sample_index,
            self.replicate,
            self.prompt_token_sha256 or self.prompt_sha256,
            self.seed,
        )
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def hash_setting(
    *, task_version: float, sampling: Sampling, model: Mapping[str, Any], engine: Mapping[str, Any]
) -> str:
    """Hash of what all samples of a run share.

    Args:
        task_version: The task's.
        sampling: The parameters in force.
        model: The model's fingerprint.
        engine: The engine's name and version.
    """
    parts = {"task_version": task_version, "sampling": sampling.record(), "model": model, "engine": engine}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def hash_prompts(prompts: Iterable[Mapping[str, Any]]) -> str:
    """Hash over the texts and token ids of all prompts, in order; rows as `prompts.jsonl` has them."""
    hashes = (f"{row['prompt_sha256']} {row['prompt_token_sha256']}" for row in prompts)
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
