"""Measure prompts in vLLM, which sums their attention over sets of queries while it prefills them.

The numbers are those of `measure_prompts`, without position gaps and activations.
"""

from collections.abc import Sequence
from itertools import chain

from attention_probe.measure.measure_prompts import (
    AVERAGES,
    FieldsByCondition,
    Record,
    average_sums,
    query_sets,
)
from attention_probe.prompts.token_roles import PromptsByCondition, common_tokens
from harness.engines.attention_sums import (
    record_sums,
    recorded_prompt,
    separate_rows,
    single_queries,
)
from harness.engines.vllm_engine import VLLMEngine


def measure_in_engine(
    engine: VLLMEngine, group: Sequence[PromptsByCondition], record: Record
) -> list[FieldsByCondition]:
    """Measure problems as `measure_group` does: each stored row is a set with a single query."""
    prompts = [*chain.from_iterable(by_condition.values() for by_condition in group)]
    commons = [*chain.from_iterable(common_tokens(prompts).values() for prompts in group)]
    # vLLM's worker stacks the sets of several requests, so all must have the same number of sets
    most_rows = max(map(record.count_rows, prompts))
    averages = [
        query_sets(prompt, common, record) for prompt, common in zip(prompts, commons, strict=True)
    ]
    requests = []
    for index, (prompt, sets) in enumerate(zip(prompts, averages, strict=True)):
        row_sets = single_queries(record.count_rows(prompt), len(prompt), most_rows)
        row_sets += sets.astype(int).tolist()
        requests.append(recorded_prompt(prompt.token_ids.tolist(), row_sets, name=str(index)))
    measured: dict[str, FieldsByCondition] = {}
    for prompt, sets, sums in zip(prompts, averages, record_sums(engine, requests), strict=True):
        fields = average_sums(prompt, sets, sums[:, -AVERAGES:])
        fields["rows"] = separate_rows(sums, record.count_rows(prompt))
        measured.setdefault(prompt.problem_id, {})[prompt.condition] = fields
    return list(measured.values())
