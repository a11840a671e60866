"""Open the model of a probe: its first layers in Hugging Face, or all of it in vLLM."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain

from attention_probe.measure.engine_fields import measure_in_engine
from attention_probe.measure.prompt_fields import AVERAGES, FieldsByCondition, measure_problem
from attention_probe.probe_settings import ProbeSettings, refuse_large_prompts
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt
from attention_probe.self_check import self_check
from harness import smollm2_model
from harness.constants import JsonObject
from harness.engines.attention_sums import open_recorder
from harness.experiment.intervention_settings import find_gap

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
    longest = 0
    for prompt in every_prompt:
        _, gap_size = find_gap(prompt.intervention)
        longest = max(longest, len(prompt) + gap_size)
    arguments = settings.engine | {
        "pretrained": smollm2_model.resolve_model(str(settings.model)),
        "dtype": settings.dtype,
        # memory is reserved for the longest prompt and the token that the engine generates
        "max_model_len": 1 + longest,
    }
    # the sets that are averaged, and one for each stored row
    set_count = AVERAGES + max(map(record.count_rows, every_prompt))
    layers = settings.opened | {"recorded": sorted(settings.layers)}
    with closing(open_recorder(arguments, layers, set_count)) as engine:
        yield partial(measure_in_engine, engine, record=record), {}


def flatten_prompts(prompts: Mapping[str, PromptsByCondition]) -> Iterable[TokenizedPrompt]:
    """All prompts of all problems, problem by problem."""
    return chain.from_iterable(by_condition.values() for by_condition in prompts.values())
