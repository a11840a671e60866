"""Measure prompts in vLLM, which sums their attention over sets of queries while it prefills them.

The numbers are those of `measure_prompts`, without position gaps and activations.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probe.measure.measure_prompts import (
    FieldsByCondition,
    Record,
    key_regions,
    mass_measures,
)
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt, common_tokens
from harness.engines.attention_sums import (
    Floats,
    means,
    record_sums,
    recorded_prompt,
    separate_rows,
    single_queries,
)
from harness.engines.vllm_engine import VLLMEngine

AVERAGES = 3
"""The number of sets in `query_sets`."""


def query_sets(
    prompt: TokenizedPrompt, common: NDArray[np.bool_], *, completion: bool = False
) -> list[list[int]]:
    """The sets of queries over which attention is averaged.

    They are all queries, the common ones, and the problem's among these. With `completion` each is
    the queries of the completion.
    """
    sets = [np.ones(len(prompt), np.bool_), common, common & prompt.has_role("problem")]
    if completion:
        sets = [prompt.has_role("completion")] * AVERAGES
    return [queries.astype(int).tolist() for queries in sets]


def average_sums(prompt: TokenizedPrompt, sets: Any, sums: Floats) -> dict[str, Any]:
    """The measured fields of a `Trace`, from sums [layer, set, head, key].

    The last sets are `query_sets`.
    """
    curves = means(sums[:, -AVERAGES:], sets[-AVERAGES:])
    # [layer, head, key] over the problem's queries. Unlike the other sets this one includes the
    # diagonal: in a mass, a query's attention to its own token counts.
    problem_sums = torch.from_numpy(sums[:, -1].copy())
    masses = problem_sums @ key_regions(prompt).float().T / sum(sets[-1])
    return {
        "mean_all": curves[:, 0],
        "mean_common": curves[:, 1],
        "measures": mass_measures(masses),
    }


def measure_in_engine(
    engine: VLLMEngine, group: Sequence[PromptsByCondition], record: Record
) -> list[FieldsByCondition]:
    """Measure problems as `measure_group` does: each stored row is a set with a single query."""
    prompts = [*chain.from_iterable(by_condition.values() for by_condition in group)]
    commons = [*chain.from_iterable(common_tokens(prompts).values() for prompts in group)]
    # vLLM's worker stacks the sets of several requests, so all must have the same number of sets
    most_rows = max(map(record.count_rows, prompts))
    requests = []
    for index, (prompt, common) in enumerate(zip(prompts, commons, strict=True)):
        row_sets = single_queries(record.count_rows(prompt), len(prompt), most_rows)
        averages = query_sets(prompt, common, completion=record.completion)
        token_ids = prompt.token_ids.tolist()
        requests.append(recorded_prompt(token_ids, [*row_sets, *averages], name=str(index)))
    measured: dict[str, FieldsByCondition] = {}
    for prompt, request, sums in zip(prompts, requests, record_sums(engine, requests), strict=True):
        fields = average_sums(prompt, request.record, sums)
        fields["rows"] = separate_rows(sums, record.count_rows(prompt))
        measured.setdefault(prompt.problem_id, {})[prompt.condition] = fields
    return list(measured.values())
