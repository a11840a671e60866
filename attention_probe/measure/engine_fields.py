"""Measure prompts in vLLM, which sums their attention over sets of queries while it prefills them.

The numbers are those of `prompt_fields`, without position gaps and activations.
"""

from attention_probe.measure.prompt_fields import (
    QUERY_SET_COUNT,
    FieldsByCondition,
    MeasurementOptions,
    average_sums,
    query_sets,
)
from attention_probe.prompts.token_roles import PromptsByCondition, common_tokens
from harness.engines.attention_sums import record_sums, recording_request, single_query_sets
from harness.engines.vllm_engine import VLLMEngine


def measure_in_engine(
    engine: VLLMEngine, prompts: PromptsByCondition, options: MeasurementOptions
) -> FieldsByCondition:
    """Measure a problem as `measure_problem` does: each stored row is a set with a single query."""
    common_by_condition = common_tokens(prompts)
    # vLLM's worker stacks the sets of several requests, so all must have the same number of sets
    most_rows = max(map(options.count_rows, prompts.values()))
    requests, averaged_sets = [], []
    for condition, prompt in prompts.items():
        averaged_sets.append(query_sets(prompt, common_by_condition[condition]))
        query_rows = averaged_sets[-1].astype(int).tolist()
        query_rows += single_query_sets(options.count_rows(prompt), len(prompt), most_rows)
        requests.append(
            recording_request(prompt.token_ids.tolist(), query_rows, condition, prompt.intervention)
        )
    fields_by_condition = {}
    sums_by_prompt = record_sums(engine, requests)
    for prompt, sets, sums in zip(prompts.values(), averaged_sets, sums_by_prompt, strict=True):
        fields = average_sums(prompt, sets, sums[:, :QUERY_SET_COUNT])
        # the rows follow the averaged sets; any sets after them are empty
        row_stop = QUERY_SET_COUNT + options.count_rows(prompt)
        fields["rows"] = sums[:, QUERY_SET_COUNT:row_stop].swapaxes(1, 2)
        fields_by_condition[prompt.condition] = fields
    return fields_by_condition
