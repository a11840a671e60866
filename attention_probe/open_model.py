"""Open the model of a probe: its first layers in Hugging Face, or all of it in vLLM."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain

import numpy as np

from attention_probe.check_probe import self_check
from attention_probe.measure.measure_in_engine import measure_in_engine
from attention_probe.measure.measure_prompts import AVERAGES, FieldsByCondition, measure_problem
from attention_probe.probe_settings import ProbeSettings
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt
from harness import smollm2_model
from harness.constants import JsonObject
from harness.engines.attention_sums import open_recorder
from harness.engines.completions import count_positions
from harness.errors import ConfigError, PromptMismatchError, print_message

ROW_BYTES = 1 << 31
"""Most bytes of rows that are stored of all prompts."""

Measure = Callable[[PromptsByCondition], FieldsByCondition]
"""Measures a problem: see `measure_problem`."""


@contextmanager
def open_model(
    settings: ProbeSettings, prompts: Mapping[str, PromptsByCondition]
) -> Iterator[tuple[Measure, JsonObject]]:
    """Open the model for these prompts alone, and check it; close it afterwards.

    Yields:
        What measures with the model, and the errors that the self-check measured.

    Raises:
        PromptMismatchError: a prompt is longer than the model's context.
        ModelError: the model cannot be loaded, or gives no attention.
        ConfigError: the rows to store are too large, or the engine cannot record the model.
    """
    record, every_prompt = settings.record, list(flatten_prompts(prompts))
    refuse_large_prompts(settings, every_prompt)
    if settings.engine is None:
        loaded = settings.load_model(settings.dtype)
        float32_model = None if settings.dtype == "float32" else settings.load_model("float32")
        checks = self_check(loaded, every_prompt, record, float32_model)
        yield partial(measure_problem, loaded, record=record), checks
        return
    sizes = [count_positions(len(prompt), prompt.intervention) for prompt in every_prompt]
    arguments = settings.engine | {
        "pretrained": smollm2_model.resolve_model(str(settings.model)),
        "dtype": settings.dtype,
        # memory is reserved for the longest prompt and the token that the engine generates
        "max_model_len": 1 + max(sizes),
    }
    set_count = AVERAGES + max(map(record.count_rows, every_prompt))
    layers = settings.opened | {"recorded": sorted(settings.layers)}
    with closing(open_recorder(arguments, layers, set_count)) as engine:
        yield partial(measure_in_engine, engine, record=record), {}


def refuse_large_prompts(settings: ProbeSettings, prompts: Sequence[TokenizedPrompt]) -> None:
    """Refuse prompts that are too long, and rows that are too large, and print the rows' size.

    Raises:
        PromptMismatchError: a prompt is longer than the model's context.
        ConfigError: the rows are larger than ROW_BYTES.
    """
    config = settings.load_config()
    context = getattr(config, "max_position_embeddings", None)
    # an engine generates a token after each prompt, which needs a position too
    reserved = int(settings.engine is not None)
    for prompt in prompts:
        if context is not None and len(prompt) + reserved > context:
            raise PromptMismatchError(
                f"Problem {prompt.problem_id}, condition {prompt.condition!r}: {len(prompt)} "
                f"tokens; {settings.model} has a context of {context}."
            )
    record = settings.record
    if record.rows is None:
        return
    lengths = np.array(list(map(len, prompts)))
    rows = np.array(list(map(record.count_rows, prompts)))
    row_bytes = len(set(settings.layers)) * int(config.num_attention_heads) * 4  # float32
    size = row_bytes * int(rows @ lengths)
    if size > ROW_BYTES:
        most = lengths.max()
        while row_bytes * (np.minimum(most, lengths) @ lengths) > ROW_BYTES:
            most -= 1
        remedy = f"at most last:{most}, or fewer" if most else "fewer"
        raise ConfigError(
            f"--rows {record.rows} takes {size / 1e9:.1f} GB for {len(lengths)} prompts, and "
            f"{ROW_BYTES / 1e9:.1f} GB are the most: expected {remedy} problems, conditions or "
            "layers."
        )
    print_message(f"rows of {size / 1e6:.1f} MB")


def flatten_prompts(prompts: Mapping[str, PromptsByCondition]) -> Iterable[TokenizedPrompt]:
    """All prompts of all problems, problem by problem."""
    return chain.from_iterable(by_condition.values() for by_condition in prompts.values())
