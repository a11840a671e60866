"""What is asked of a model: one request per completion."""

from __future__ import annotations

from collections.abc import Mapping
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
