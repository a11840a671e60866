"""Measure prompts in vLLM, which sums their attention over sets of queries while it prefills them.

The numbers are those of `prompt_fields`, without position gaps and activations.
"""

from attention_probe.measure.prompt_fields import (
    AVERAGES,
    FieldsByCondition,
    MeasurementOptions,
    average_sums,
    query_sets,
)
from attention_probe.prompts.token_roles import PromptsByCondition, common_tokens
from harness.engines.attention_sums import (
    record_sums,
    recording_request,
    single_query_sets,
)
from harness.engines.vllm_engine import VLLMEngine


def measure_in_engine(
    engine: VLLMEngine, prompts: PromptsByCondition, record: MeasurementOptions
) -> FieldsByCondition:
    """Measure a problem as `measure_problem` does: each stored row is a set with a single query."""
    common = common_tokens(prompts)
    # vLLM's worker stacks the sets of several requests, so all must have the same number of sets
    most_rows = max(map(record.count_rows, prompts.values()))
    requests, averages = [], []
    for condition, prompt in prompts.items():
        averages.append(query_sets(prompt, common[condition]))
        sets = averages[-1].astype(int).tolist()
        sets += single_query_sets(record.count_rows(prompt), len(prompt), most_rows)
        token_ids = prompt.token_ids.tolist()
        requests.append(recording_request(token_ids, sets, condition, prompt.intervention))
    measured = {}
    all_sums = record_sums(engine, requests)
    for prompt, sets, sums in zip(prompts.values(), averages, all_sums, strict=True):
        fields = average_sums(prompt, sets, sums[:, :AVERAGES])
        stop = AVERAGES + record.count_rows(prompt)
        fields["rows"] = sums[:, AVERAGES:stop].swapaxes(1, 2)
        measured[prompt.condition] = fields
    return measured
