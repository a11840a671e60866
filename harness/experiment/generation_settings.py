"""How completions are drawn: the effective sampling parameters, where each came from, and each sample's own seed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from pydantic import Field

from harness.constants import MAX_GEN_TOKS
from harness.errors import ModelError
from harness.yaml_settings import Strict

GENERATE_TOP_K = 50
"""What transformers' `generate` takes where a sampling model names no top_k."""

Source = Literal["greedy", "model_default", "explicit"]

_UNSUPPORTED = (
    *(
        "num_beams",
        "no_repeat_ngram_size",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "diversity_penalty",
    ),
    *(
        "penalty_alpha",
        "encoder_repetition_penalty",
        "encoder_no_repeat_ngram_size",
        "suppress_tokens",
    ),
    *(
        "begin_suppress_tokens",
        "bad_words_ids",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "sequence_bias",
    ),
)
"""Settings of transformers' `generate` that vLLM has no word for."""
_OFF: tuple[Any, ...] = (None, 0, 1, [], {})


class ExplicitSampling(Strict):
    """Values of your own; what is left out is off."""

    temperature: float = Field(ge=0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """The likeliest tokens with together this probability."""
    top_k: int = Field(default=0, ge=0)
    """So many of the likeliest tokens; 0 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """No tokens below this share of the likeliest one."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Above 1 makes repeated tokens less likely."""


_FIELDS = tuple(ExplicitSampling.model_fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The parameters in force, for every request of a run.

    Attributes:
        source: `greedy`, `model_default` (the model's generation_config, as plain `generate` reads it), `explicit`.
        temperature: 0 is greedy.
        top_p, top_k, min_p, repetition_penalty: vLLM's meaning; the defaults switch them off.
        max_tokens: Tokens generated at most.
        stop: Strings that end a completion.
        from_model: What of these the model's generation_config set.
        switched_off: What the generation_config also sets and this source passes over; None where it was not read.
    """

    source: Source = "greedy"
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = MAX_GEN_TOKS
    stop: tuple[str, ...] = ()
    from_model: Mapping[str, float] = field(default_factory=dict)
    switched_off: Mapping[str, float] | None = None

    @property
    def greedy(self) -> bool:
        """Whether the same prompt always gives the same completion (up to numerical noise)."""
        return self.temperature == 0

    def vllm(self) -> dict[str, Any]:
        """As vLLM's SamplingParams takes them."""
        values = {name: getattr(self, name) for name in _FIELDS}
        return {**values, "max_tokens": self.max_tokens, "stop": list(self.stop)}

    def lm_eval(self) -> dict[str, Any]:
        """As lm-eval's generation arguments, which its results file shows; what is off is left out."""
        fixed = {"until": list(self.stop), "max_gen_toks": self.max_tokens}
        return {
            **fixed,
            "do_sample": not self.greedy,
            "temperature": self.temperature,
            **self._changed,
        }

    def openai(self) -> dict[str, Any]:
        """As a server of OpenAI's API takes them; what OpenAI does not know is left out if it is off."""
        stop = {"stop": list(self.stop)} if self.stop else {}
        fixed = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
        }
        return {**fixed, **stop, **self._changed}

    @property
    def _changed(self) -> dict[str, Any]:
        """The parameters beside temperature that are not off."""
        off = Sampling()
        return {
            name: value
            for name in _FIELDS[1:]
            if (value := getattr(self, name)) != getattr(off, name)
        }

    def record(self) -> dict[str, Any]:
        """As the journal keeps them."""
        return {**asdict(self), "stop": list(self.stop)}


def resolve_sampling(
    choice: Literal["greedy", "model_default"] | ExplicitSampling,
    max_tokens: int,
    stop: tuple[str, ...],
    generation_config: Mapping[str, Any] | None,
) -> Sampling:
    """The parameters in force for a run config's choice.

    Args:
        choice: The config's.
        max_tokens: Tokens generated at most.
        stop: Stop strings.
        generation_config: The model's own, None where it has none or could not be read.

    Raises:
        ModelError: `model_default`, and there is no generation_config, or one that vLLM cannot obey.
    """
    limits: dict[str, Any] = {"max_tokens": max_tokens, "stop": stop}
    own = {
        name: value
        for name in _FIELDS
        if (value := (generation_config or {}).get(name)) is not None
    }
    if choice != "model_default":
        limits["switched_off"] = None if generation_config is None else own
        return (
            Sampling(**limits)
            if choice == "greedy"
            else Sampling(source="explicit", **choice.model_dump(), **limits)
        )
    assert generation_config is not None  # whoever reads it refuses a model without one
    if lost := [name for name in _UNSUPPORTED if generation_config.get(name) not in _OFF]:
        raise ModelError(
            f"`gen_kwargs: model_default`: generation_config.json sets {', '.join(lost)}, unknown to vLLM."
        )
    sampled = generation_config.get("do_sample")
    # greedy as plain `generate` would be, where a repetition penalty applies too
    kept = (
        own
        if sampled
        else {name: value for name, value in own.items() if name == "repetition_penalty"}
    )
    filled = {"temperature": 1.0, "top_k": GENERATE_TOP_K} | own if sampled else kept
    off = {name: value for name, value in own.items() if name not in kept}
    return Sampling(source="model_default", **filled, **limits, from_model=kept, switched_off=off)


def sample_seed(run_seed: int, problem_id: str, sample_index: int, replicate: int = 0) -> int:
    """A sample's own seed, below 2**31: from problem and sample index, never from the condition.

    So a sample's seed does not depend on what else runs, and the conditions of one problem have equal seeds. Equal
    seeds give equal noise where vLLM draws step by step (its V1 model runner, which CPUs have). Its V2 runner, which
    GPUs have, draws by absolute position, and a filler shifts that.
    """
    text = f"{run_seed}:{problem_id}:{sample_index}:{replicate}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1
