"""Does the engine compute what Hugging Face computes? First-token log-probabilities of some prompts, side by side.

Use it once per machine and model before you believe completions, above all on a GPU in float32: tf32 keeps 10 of
float32's 23 bits of a factor, and nothing else shows that it was used. The limits lie between the two. On the bundled
model and 20 prompts vLLM on a CPU is 1.2e-5 away from Hugging Face at most, 3.8e-6 in the mean; attention whose factors
are rounded to tf32 is 4.4e-3 and 7.8e-4 away (`tests/engines/test_logits.py` measures both).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.engines.vllm import VLLMEngine

TOP = 20
"""Tokens compared for each prompt: the engine's most likely ones. 20 is vLLM's own limit."""

LARGEST, MEAN = 1e-3, 1e-4
"""Under these differences, in nats, both compute in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities of one prompt's first generated token, from both sides.

    Attributes:
        token_ids: The engine's `TOP` most likely tokens.
        ours: The engine's log-probabilities of these tokens.
        theirs: Hugging Face's log-probabilities of these tokens.
        most_likely: Hugging Face's most likely token of all.
    """

    token_ids: tuple[int, ...]
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    most_likely: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitCheck:
    """How far the engine's first-token log-probabilities are from Hugging Face's.

    Attributes:
        prompts: Prompts compared.
        largest: Largest absolute difference, in nats, over all prompts and each prompt's `TOP` most likely tokens.
        mean: Mean absolute difference over the same.
        same_first: Prompts whose most likely token is the same on both sides, so that greedy decoding starts alike.
    """

    prompts: int
    largest: float
    mean: float
    same_first: int

    @classmethod
    def of(cls, prompts: Sequence[Logprobs]) -> LogitCheck:
        """The comparison over all prompts."""
        differences = [abs(a - b) for prompt in prompts for a, b in zip(prompt.ours, prompt.theirs, strict=True)]
        return cls(
            prompts=len(prompts),
            largest=max(differences),
            mean=sum(differences) / len(differences),
            same_first=sum(p.token_ids[p.ours.index(max(p.ours))] == p.most_likely for p in prompts),
        )


def read_logprobs(
    engine: VLLMEngine, model: str, prompts: Sequence[Sequence[int]], *, device: str = "cpu"
) -> list[Logprobs]:
    """Ask a loaded engine and Hugging Face's eager attention, in float32, for the first token of each prompt.

    Args:
        engine: Loaded with `dtype: float32`; nothing may be in it.
        model: The same model's folder or hub name.
        prompts: Token ids of each prompt.
        device: Where Hugging Face computes, as torch names it. A CPU is exact and slow for large models. On a GPU
            torch's matrix products must be left at their default, which is true float32.

    Raises:
        EngineError: the engine died.
    """
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    reference = reference.to(device).eval()
    found = []
    for prompt in prompts:
        ours = engine.first_logprobs(prompt, TOP)
        with torch.inference_mode():
            logits = reference(torch.tensor([list(prompt)], device=device)).logits[0, -1]
        theirs = torch.log_softmax(logits.double(), dim=-1)
        found.append(
            Logprobs(
                token_ids=tuple(ours),
                ours=tuple(ours.values()),
                theirs=tuple(float(theirs[token]) for token in ours),
                most_likely=int(theirs.argmax()),
            )
        )
    return found
