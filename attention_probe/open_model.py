"""Open the model of a probe: its first layers in Hugging Face, or all of it in vLLM."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attention_probe.check_probe import self_check
from attention_probe.measure.measure_in_engine import AVERAGES, measure_in_engine
from attention_probe.measure.measure_prompts import measure_group
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import ConditionPrompts, TokenizedPrompt
from harness import smollm2_model
from harness.constants import JsonObject
from harness.engines.attention_sums import open_recorder
from harness.errors import ConfigError, PromptMismatchError
from harness.execution.generate_samples import quieten_libraries
from harness.experiment.tokenizer import load_model_config
from harness.runs.records import as_json
from harness.runs.versions_and_hashes import model_fingerprint

if TYPE_CHECKING:
    from transformers import PretrainedConfig

ROW_BYTES = 1 << 31
"""Most bytes of rows that are stored of all prompts. A group's rows are also in memory at once."""


Measure = Callable[[Sequence[ConditionPrompts]], list[dict[str, dict[str, Any]]]]
"""Measures problems of similar length: see `measure_group`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModel:
    """A model that is ready to measure prompts.

    Attributes:
        config: Its config; of a multimodal model, that of its text layers.
        fingerprint: What identifies its weights.
        checks: The errors that its self-check measured.
        measure: Measures problems.
    """

    config: PretrainedConfig
    fingerprint: JsonObject
    checks: JsonObject
    measure: Measure


@contextmanager
def open_model(
    settings: ProbeSettings, prompts: Mapping[str, ConditionPrompts]
) -> Iterator[OpenModel]:
    """Open the model for these prompts alone, and close it afterwards.

    Raises:
        PromptMismatchError: a prompt is longer than the model's context.
        ModelError: the model cannot be loaded, or gives no attention.
        ConfigError: the rows to store are too large, or the engine cannot record the model.
    """
    record = settings.record
    if settings.engine is None:
        loaded = settings.load_model(settings.dtype)
        refuse_large_prompts(loaded.config, settings, prompts)
        token_ids = np.concatenate([prompt.token_ids for prompt in flatten_prompts(prompts)])
        loaded.keep_embeddings(torch.from_numpy(np.unique(token_ids)).long())
        float32_model = None if settings.dtype == "float32" else settings.load_model("float32")
        yield OpenModel(
            config=loaded.config,
            fingerprint=as_json(model_fingerprint(loaded.name, loaded.revision)),
            checks=self_check(loaded, prompts, record, float32_model),
            measure=partial(measure_group, loaded, record=record),
        )
        return
    name = smollm2_model.resolve_model(str(settings.model))
    revision = settings.engine.get("revision")
    config = load_model_config(name, revision)
    refuse_large_prompts(config, settings, prompts)
    arguments = dict(settings.engine)
    arguments |= {"pretrained": name, "dtype": settings.dtype}
    # memory is reserved for the longest prompt, and the engine generates a token after it
    arguments["max_model_len"] = 1 + max(map(len, flatten_prompts(prompts)))
    set_count = AVERAGES + max(map(record.count_rows, flatten_prompts(prompts)))
    layers = [layer + 1 for layer in settings.layers]
    quieten_libraries()
    with closing(open_recorder(arguments, layers, set_count)) as engine:
        yield OpenModel(
            config=config,
            fingerprint=as_json(model_fingerprint(name, revision)),
            checks={},
            measure=partial(measure_in_engine, engine, record=record),
        )


def refuse_large_prompts(
    config: PretrainedConfig, settings: ProbeSettings, prompts: Mapping[str, ConditionPrompts]
) -> None:
    """Print the size of the rows that will be stored.

    Raises:
        PromptMismatchError: a prompt is longer than the model's context.
        ConfigError: the rows are larger than ROW_BYTES.
    """
    context = getattr(config, "max_position_embeddings", None)
    # the engine generates one token after each prompt
    reserved = int(settings.engine is not None)
    for prompt in flatten_prompts(prompts):
        if context is not None and len(prompt) + reserved > context:
            raise PromptMismatchError(
                f"Problem {prompt.problem_id}, condition {prompt.condition!r}: {len(prompt)} "
                f"tokens; {settings.model} has a context of {context}."
            )
    record = settings.record
    if record.rows is None:
        return
    every_prompt = list(flatten_prompts(prompts))
    lengths = np.array([len(prompt) for prompt in every_prompt])
    rows = np.array(list(map(record.count_rows, every_prompt)))
    row_bytes = len(set(settings.layers)) * int(config.num_attention_heads) * 4  # float32
    size = row_bytes * int(rows @ lengths)
    if size > ROW_BYTES:
        most = lengths.max()
        while row_bytes * (np.minimum(most, lengths) @ lengths) > ROW_BYTES:
            most -= 1
        raise ConfigError(
            f"--rows {record.rows} takes {size / 1e9:.1f} GB for {len(lengths)} prompts, and "
            f"{ROW_BYTES / 1e9:.1f} GB are the most: expected at most last:{most}, or fewer "
            "problems, conditions or layers."
        )
    print(f"mless: rows of {size / 1e6:.1f} MB", file=sys.stderr, flush=True)


def flatten_prompts(prompts: Mapping[str, ConditionPrompts]) -> Iterable[TokenizedPrompt]:
    """All prompts of all problems, problem by problem."""
    return chain.from_iterable(by_condition.values() for by_condition in prompts.values())
