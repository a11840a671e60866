"""How completions are sampled: the effective parameters, their source, and the seeds of samples."""

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from harness.constants import MAX_GEN_TOKS, JsonObject
from harness.errors import ModelError
from harness.yaml_settings import Strict

TRANSFORMERS_TOP_K = 50
"""The default top_k of transformers' `generate`, if the model's generation_config has none."""

SamplingSource = Literal["greedy", "model_default", "server_default", "explicit"]
"""Who sets the parameters; see `Sampling`."""

_UNSUPPORTED_SETTINGS = (
    "num_beams no_repeat_ngram_size typical_p epsilon_cutoff eta_cutoff diversity_penalty "
    "penalty_alpha encoder_repetition_penalty encoder_no_repeat_ngram_size suppress_tokens "
    "begin_suppress_tokens bad_words_ids forced_bos_token_id forced_eos_token_id sequence_bias"
).split()
"""Settings of transformers' `generate` that vLLM does not have."""
_OFF_VALUES: tuple[Any, ...] = (None, 0, 1, [], {})
"""Values with which such a setting has no effect."""


class ExplicitSampling(Strict):
    """Sampling parameters. Omitted ones are off."""

    temperature: float = Field(ge=0, allow_inf_nan=False)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens with this total probability."""
    top_k: int = Field(default=0, ge=0)
    """Only this number of the likeliest tokens; 0 is off."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Only tokens with at least this share of the highest probability."""
    repetition_penalty: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Above 1, repeated tokens become less likely."""
    thinking_token_budget: int | None = Field(default=None, ge=1)
    """The maximum length of the reasoning, in tokens. vLLM then ends it."""


_PARAMETER_NAMES = tuple(ExplicitSampling.model_fields)
"""The names of the parameters, temperature first. `Sampling` has the same names."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The effective parameters of all requests of a run.

    Attributes:
        source: `greedy`, `model_default` (the model's generation_config, as plain `generate` reads
            it), `server_default` (no temperature is sent), or `explicit`.
        temperature: 0 is greedy; None is the server's own.
        top_p, top_k, min_p, repetition_penalty, thinking_token_budget: As in vLLM; the defaults
            switch them off.
        max_tokens: The maximum number of generated tokens.
        stop: Strings that end a completion.
    """

    source: SamplingSource = "greedy"
    temperature: float | None = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    thinking_token_budget: int | None = None
    max_tokens: int = MAX_GEN_TOKS
    stop: tuple[str, ...] = ()

    @property
    def is_greedy(self) -> bool:
        """Whether the same prompt always gives the same completion (up to numerical noise)."""
        return self.temperature == 0

    def vllm_arguments(self) -> JsonObject:
        """The arguments of vLLM's SamplingParams."""
        arguments = {name: getattr(self, name) for name in _PARAMETER_NAMES}
        # A sample's key is a hash of these arguments, and should not depend on a budget that is not
        # set.
        if self.thinking_token_budget is None:
            del arguments["thinking_token_budget"]
        return arguments | {"max_tokens": self.max_tokens, "stop": list(self.stop)}

    def lm_eval_arguments(self) -> JsonObject:
        """lm-eval's generation arguments, for its results file, without parameters that are off."""
        return {
            "until": list(self.stop),
            "max_gen_toks": self.max_tokens,
            "do_sample": not self.is_greedy,
            "temperature": self.temperature,
            **self._changed_parameters,
        }

    def openai_arguments(self) -> JsonObject:
        """The arguments of OpenAI's API. A parameter that OpenAI lacks is left out if it is off."""
        stop_argument = {"stop": list(self.stop)} if self.stop else {}
        return {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            **stop_argument,
            **self._changed_parameters,
        }

    @property
    def _changed_parameters(self) -> JsonObject:
        """The parameters besides temperature that are not off."""
        # The first field is the temperature. An attribute of the class is the default, with which
        # the parameter is off.
        return {
            name: getattr(self, name)
            for name in _PARAMETER_NAMES[1:]
            if getattr(self, name) != getattr(Sampling, name)
        }


def read_model_default(generation_config: JsonObject) -> JsonObject:
    """The parameters of a generation_config, for `gen_kwargs: model_default`.

    Raises:
        ModelError: vLLM cannot follow it.
    """
    unsupported_names = [
        name for name in _UNSUPPORTED_SETTINGS if generation_config.get(name) not in _OFF_VALUES
    ]
    if unsupported_names:
        raise ModelError(
            "`gen_kwargs: model_default`: generation_config.json sets "
            f"{', '.join(unsupported_names)}, unknown to vLLM."
        )
    parameter_names = _PARAMETER_NAMES
    # the defaults of plain `generate` for parameters that the model does not set
    default_parameters = {"temperature": 1.0, "top_k": TRANSFORMERS_TOP_K}
    if not generation_config.get("do_sample"):
        # greedy decoding of plain `generate` ignores all parameters but this penalty
        parameter_names = ("repetition_penalty",)
        default_parameters = {}
    model_parameters = {
        name: generation_config[name]
        for name in parameter_names
        if generation_config.get(name) is not None
    }
    return {"source": "model_default", **default_parameters, **model_parameters}


def sample_seed(run_seed: int, problem_id: str, sample_index: int, replicate: int) -> int:
    """The seed of a sample, below 2**31. It does not depend on the condition.

    So the seed is the same whatever else runs, and the conditions of a problem have equal seeds.
    Equal seeds give equal noise if vLLM draws step by step, as its V1 model runner does on CPUs.
    Its V2 model runner, on GPUs, draws by absolute position, which a filler shifts.
    """
    seed_text = f"{run_seed}:{problem_id}:{sample_index}:{replicate}"
    return int.from_bytes(hashlib.sha256(seed_text.encode()).digest()[:4], "big") >> 1
