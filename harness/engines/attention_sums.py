"""The attention that tokens receive, summed in the engine while prompts are prefilled.

`mless probe` has the same numbers and many more, for models that Hugging Face runs in one process.
Here only sums over sets of queries leave the engine, so all layers of a large model can be
recorded. A query is a token that attends, and a key a token that receives attention. A layer is
open if the engine records or changes its attention or activations.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.constants import JsonObject
from harness.engines.interventions.open_layers import refuse_to_open
from harness.engines.library_messages import LIBRARY_LOG, library_log, quieten_libraries
from harness.engines.vllm_engine import VLLMEngine, device_type
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Request
from harness.resources import cache_folder

Weights = NDArray[np.float32]
"""Weights of attention, or their sums."""


def open_recorder(
    arguments: Mapping[str, Any], layers_by_use: JsonObject, set_count: int
) -> VLLMEngine:
    """An engine in which these layers are open.

    Its messages are in libraries.log in the cache of mless.

    Args:
        arguments: The model's arguments.
        layers_by_use: Ascending indices, from 0, of the open layers. The key `recorded` has those
            whose attention is recorded. `attention`, `activations` and `outputs` (of MLPs), the
            keys of `find_changed_layers`, have those in which an intervention changes these.
        set_count: The number of sets of queries of each prompt, for which memory is reserved.

    Raises:
        ConfigError: the model lacks a layer, or its attention cannot be opened.
        ModelError: the model cannot be loaded, or the recorded sums do not fit into memory.
    """
    quieten_libraries()
    with library_log(cache_folder() / LIBRARY_LOG):
        refuse_to_open(arguments, layers_by_use)
        # the engine takes the number of sets together with the layers for which it reserves memory
        intervention_options = {"layers": {**layers_by_use, "set_count": set_count}}
        options = {**arguments, "interventions": intervention_options}
        # one token is generated for each prompt, so compiling takes longer than it saves
        if device_type() == "cpu":
            options.setdefault("enforce_eager", True)
        return VLLMEngine(options, has_sampled_requests=False)


def recording_request(
    token_ids: Sequence[int],
    query_sets: Sequence[Sequence[int]],
    prompt_name: str,
    intervention: list[JsonObject] | None = None,
) -> Request:
    """A request for the attention of a prompt and for one token; see `Request.query_sets`.

    `prompt_name` differs between the requests of one `record_sums`, which tells them apart by it.
    """
    return Request(
        task="",
        problem_id=prompt_name,
        prompt="",
        prompt_token_ids=tuple(token_ids),
        prompt_sha256="",
        prompt_token_sha256=None,
        sampling=Sampling(max_tokens=1),
        intervention=intervention,
        query_sets=query_sets,
    )


def single_query_sets(query_count: int, token_count: int, set_count: int) -> list[list[int]]:
    """Sets of queries [set, token]: each of the last queries alone, then empty sets.

    Set i has a 1 for its only query, the token token_count - query_count + i. An engine expects the
    same number of sets of every prompt, so a prompt with fewer queries has empty sets at the end.
    """
    first_query_index = token_count - query_count
    # `eye` puts a 1 into column first_query_index + i of row i, and none into the last rows, which
    # have no such column
    return list(np.eye(set_count, token_count, k=first_query_index, dtype=int).tolist())


def record_sums(engine: VLLMEngine, requests: Sequence[Request]) -> list[Weights]:
    """The sums [layer, set, head, key] of each request, in their order."""
    sums_by_name = {}
    for batch in engine.stream(requests):
        for request, completion in batch:
            assert completion.attention is not None  # because the request has `query_sets`
            sums_by_name[request.problem_id] = completion.attention
    return [sums_by_name[request.problem_id] for request in requests]


def average_weights(sums: Weights, query_sets: ArrayLike) -> Weights:
    """The mean weight [layer, set, head, key] over the queries of each set.

    It is NaN where a key has no later query in the set.

    Args:
        sums: [layer, set, head, key] Without a query's attention to its own token.
        query_sets: [set, token] Whether a query is in the set.
    """
    is_in_set = np.array(query_sets, dtype=np.float32)
    # [set, key] the number of queries of a set that come after a key: a sum from the right, without
    # the key's own query
    later_query_counts = np.cumsum(is_in_set[:, ::-1], axis=1)[:, ::-1] - is_in_set
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums / later_query_counts[:, None]
