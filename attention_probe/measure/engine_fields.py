"""Measure prompts in vLLM, which sums their attention over sets of queries while it prefills them.

The numbers are those of `prompt_fields`, without position gaps and activations. A stored row is the
weights of a single query, so it is requested as the sum over a set with this query alone.
"""

import numpy as np

from attention_probe.measure.prompt_fields import (
    QUERY_SET_COUNT,
    FieldsByCondition,
    MeasurementOptions,
    attention_fields,
    select_queries,
)
from attention_probe.prompts.token_roles import PromptsByCondition, common_masks
from harness.engines.attention_sums import record_sums, recording_request, single_query_sets
from harness.engines.vllm_engine import VLLMEngine


def measure_in_engine(
    engine: VLLMEngine, prompts: PromptsByCondition, options: MeasurementOptions
) -> FieldsByCondition:
    """Measure a problem: the measured fields of a `Trace` by condition, as `measure_problem`."""
    is_common_by_condition = common_masks(prompts)
    # vLLM's worker stacks the sets of several requests, so all must have the same number of sets
    most_rows = max(map(options.count_rows, prompts.values()))
    requests = []
    for condition, prompt in prompts.items():
        sets = select_queries(prompt, is_common_by_condition[condition])
        row_sets = single_query_sets(options.count_rows(prompt), len(prompt), most_rows)
        requested_sets = sets.astype(int).tolist() + row_sets
        requests.append(
            recording_request(
                prompt.token_ids.tolist(), requested_sets, condition, prompt.intervention
            )
        )
    fields_by_condition = {}
    for (condition, prompt), sums in zip(
        prompts.items(), record_sums(engine, requests), strict=True
    ):
        # sums is [layer, set, head, key]: the sets of `select_queries`, then one for each row
        set_sums, rows = np.split(sums, [QUERY_SET_COUNT], axis=1)
        sets = select_queries(prompt, is_common_by_condition[condition])
        fields = attention_fields(prompt, sets, set_sums)
        # without the empty sets after the rows, and as [layer, head, query, key]
        fields["rows"] = rows[:, : options.count_rows(prompt)].swapaxes(1, 2)
        fields_by_condition[condition] = fields
    return fields_by_condition
