"""Open the model of a probe: its first layers in Hugging Face, or all of it in vLLM."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain

from attention_probe.measure.engine_fields import measure_in_engine
from attention_probe.measure.prompt_fields import (
    QUERY_SET_COUNT,
    FieldsByCondition,
    measure_problem,
)
from attention_probe.probe_settings import ProbeSettings, check_prompt_and_row_sizes
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt
from attention_probe.self_check import self_check
from harness import smollm2_model
from harness.constants import JsonObject
from harness.engines.attention_sums import open_recorder
from harness.experiment.intervention_settings import find_gap

MeasureProblem = Callable[[PromptsByCondition], FieldsByCondition]
"""Measures a problem: see `measure_problem`."""


@contextmanager
def open_model(
    settings: ProbeSettings, prompts_by_problem: Mapping[str, PromptsByCondition]
) -> Iterator[tuple[MeasureProblem, JsonObject]]:
    """Open the model for these prompts alone; an engine is closed afterwards.

    Without `settings.engine` the first layers are loaded in Hugging Face and compared with other
    ways of computing them. With it all layers run in vLLM, which has no self-check.

    Yields:
        What measures a problem with the model, and the errors that the self-check measured.

    Raises:
        PromptMismatchError: a prompt is longer than the model's context.
        ModelError: the model cannot be loaded, or gives no attention.
        ConfigError: the rows to store are too large, or the engine cannot record the model.
    """
    prompts = list(flatten_prompts(prompts_by_problem))
    check_prompt_and_row_sizes(settings, prompts)
    options = settings.record
    if settings.engine is None:
        loaded_model = settings.load_model(settings.dtype)
        float32_model = None if settings.dtype == "float32" else settings.load_model("float32")
        check_results = self_check(loaded_model, prompts, options, float32_model)
        yield partial(measure_problem, loaded_model, options=options), check_results
        return
    # An intervention may leave a gap in the positions, which needs context as tokens do. Its size
    # is the second value of `find_gap`.
    most_positions = max(len(prompt) + find_gap(prompt.intervention)[1] for prompt in prompts)
    engine_arguments = settings.engine | {
        "pretrained": smollm2_model.resolve_model(str(settings.model)),
        "dtype": settings.dtype,
        # memory is reserved for the longest prompt and the token that the engine generates
        "max_model_len": 1 + most_positions,
    }
    # The engine sums attention over sets of queries: one set for each average, and one for each
    # stored row, which is that of a single query.
    set_count = QUERY_SET_COUNT + max(map(options.count_rows, prompts))
    # the layers by what interventions change in them (see `find_changed_layers`), and the layers
    # whose attention is recorded
    layers_by_use = settings.opened | {"recorded": sorted(settings.layers)}
    with closing(open_recorder(engine_arguments, layers_by_use, set_count)) as engine:
        yield partial(measure_in_engine, engine, options=options), {}


def flatten_prompts(
    prompts_by_problem: Mapping[str, PromptsByCondition],
) -> Iterable[TokenizedPrompt]:
    """All prompts of all problems, problem by problem."""
    return chain.from_iterable(
        problem_prompts.values() for problem_prompts in prompts_by_problem.values()
    )
