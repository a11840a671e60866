"""The attention that tokens receive, summed in the engine while prompts are prefilled.

`mless probe` has the same numbers and many more, for models that Hugging Face runs in one process.
Here only sums over queries leave the engine, so all layers of a large model can be recorded.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from harness.constants import JsonObject
from harness.engines.interventions.open_layers import refuse_to_open
from harness.engines.library_messages import LOG, library_log, quieten_libraries
from harness.engines.vllm_engine import VLLMEngine, device_type
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Request
from harness.resources import cache_folder

Weights = NDArray[np.float32]
"""Weights of attention, or their sums."""


def open_recorder(arguments: Mapping[str, Any], layers: JsonObject, set_count: int) -> VLLMEngine:
    """An engine in which these layers are open.

    Its messages are in libraries.log in the cache of mless.

    Args:
        arguments: The model's arguments.
        layers: Those that `opened_layers` names, and `recorded`: indices, from 0, ascending.
        set_count: The number of sets of queries of each prompt, for which memory is reserved.

    Raises:
        ConfigError: no such layer, or the model's attention cannot be opened.
        ModelError: the model cannot be loaded, or the recorded sums do not fit into memory.
    """
    quieten_libraries()
    with library_log(cache_folder() / LOG):
        refuse_to_open(arguments, layers)
        layers = layers | {"set_count": set_count}
        options: JsonObject = {**arguments, "interventions": {"layers": layers}}
        if device_type() == "cpu":  # one token is generated for each prompt, so compiling is slower
            options.setdefault("enforce_eager", True)
        return VLLMEngine(options, sampled=False)


def recorded_prompt(
    token_ids: Sequence[int],
    sets: Sequence[Sequence[int]],
    name: str,
    intervention: list[JsonObject] | None = None,
) -> Request:
    """A request for the attention of a prompt and for one token. Sets: see `Request.query_sets`."""
    return Request(
        task="",
        problem_id=name,
        prompt="",
        prompt_token_ids=tuple(token_ids),
        prompt_sha256="",
        prompt_token_sha256=None,
        sampling=Sampling(max_tokens=1),
        intervention=intervention,
        query_sets=sets,
    )


def single_queries(query_count: int, token_count: int, set_count: int) -> list[list[int]]:
    """Sets of queries [set, token]: each of the last queries alone, and empty sets."""
    first_query = token_count - query_count
    # row i is 1 at the query first_query + i; further rows would have it after the prompt's end
    sets: list[list[int]] = np.eye(set_count, token_count, k=first_query, dtype=int).tolist()
    return sets


def record_sums(engine: VLLMEngine, requests: Sequence[Request]) -> list[Weights]:
    """The sums [layer, set, head, key] of each request, in their order."""
    sums: dict[str, Weights] = {}
    for finished in engine.stream(requests):
        for request, completion in finished:
            assert completion.attention is not None  # because the request has `record`
            sums[request.problem_id] = completion.attention
    return [sums[request.problem_id] for request in requests]


def means(sums: Weights, sets: ArrayLike) -> Weights:
    """The mean weight [layer, set, head, key] over the queries of each set.

    It is NaN where a key has no later query in the set.

    Args:
        sums: [layer, set, head, key] Without a query's attention to its own token.
        sets: [set, token] Whether a query is in the set.
    """
    queries = np.array(sets, dtype=np.float32)
    # [set, key] the queries of a set that come after a key
    later = np.cumsum(queries[:, ::-1], axis=1)[:, ::-1] - queries
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_weights: Weights = (sums / later[None, :, None]).astype(np.float32)
    return mean_weights
