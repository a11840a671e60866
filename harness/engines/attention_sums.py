"""The attention that tokens receive, summed in the engine while prompts are prefilled.

`mless probe` has the same numbers and many more, for models that Hugging Face runs in one process.
Here only sums over queries leave the engine, so all layers of a large model can be recorded.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness import smollm2_model
from harness.engines.interventions.open_layers import refuse_to_open
from harness.engines.vllm_engine import VLLMEngine
from harness.experiment.generation_settings import Sampling
from harness.experiment.plan import Request
from harness.layers_and_heads import parse_numbers

Floats = NDArray[np.float32]


def attention(
    model: str,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    layers: Sequence[int] | str = "all",
    **arguments: Any,
) -> list[Floats]:
    """The attention that each token of a prompt receives from later tokens, by layer and head.

    Use it where `mless probe` does not reach: large models, all layers, tensor parallel.

    Args:
        model: A folder, a hub name, or `smollm2`.
        prompts: Token ids, or texts, before which the tokenizer puts its special tokens.
        layers: Counted from 1, such as `[1, 3]` or `1-3`, or `all`; they are returned in ascending
            order.
        **arguments: Further model arguments, such as `dtype` or `tensor_parallel_size`.

    Returns:
        For each prompt [layer, head, position]: the mean share of a query's attention, over all
        later queries; NaN at the last position, which has no later query.

    Raises:
        ConfigError: no such layer, or the model's attention cannot be opened (sliding windows,
            sinks, soft caps).
        ModelError: the model cannot be loaded, or the recorded sums do not fit into memory.
    """
    from harness.experiment.tokenizer import encode, load_tokenizer

    name = smollm2_model.resolve_model(model)
    tokenizer = load_tokenizer(name)
    requests: list[Request] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            token_ids = list(encode(prompt, tokenizer)[0])
        else:  # perhaps numpy's integers
            token_ids = list(map(int, prompt))
        # the only set of queries, and the last one, which `means` leaves out
        sets = [[1] * len(token_ids)] * 2
        requests.append(recorded_prompt(token_ids, sets, name=str(len(requests))))
    curves: dict[str, Floats] = {}
    with closing(open_recorder({"pretrained": name, **arguments}, layers)) as engine:
        for finished in engine.stream(requests):
            for request, completion in finished:
                mean_weights = means(completion.attention, request.record)
                curves[request.problem_id] = mean_weights[:, 0]
    return [curves[request.problem_id] for request in requests]


def open_recorder(arguments: Mapping[str, Any], layers: Sequence[int] | str) -> VLLMEngine:
    """An engine in which the attention of these layers, counted from 1, is open.

    Raises:
        ConfigError, ModelError: as `attention`.
    """
    recorded: Sequence[int] | str = "all"
    if layers != "all":
        recorded = sorted(layer - 1 for layer in parse_numbers(layers, "layers"))
    open_layers = {"attention": [], "activations": [], "recorded": recorded}
    refuse_to_open(arguments, open_layers)
    return VLLMEngine({**arguments, "interventions": {"layers": open_layers}}, sampled=False)


def recorded_prompt(token_ids: Sequence[int], sets: Sequence[Sequence[int]], name: str) -> Request:
    """A request for the attention of a prompt and for one token; `sets` as of `Request.record`."""
    return Request(
        task="",
        problem_id=name,
        prompt="",
        prompt_token_ids=tuple(token_ids),
        prompt_sha256="",
        prompt_token_sha256=None,
        sampling=Sampling(max_tokens=1),
        record=sets,
    )


def means(sums: Floats | None, sets: Sequence[Sequence[int]] | None) -> Floats:
    """The mean weight [layer, set, head, key] over the queries of each set but the last.

    It is NaN where a key has no later query in the set.
    """
    assert sums is not None  # the request has `record`
    queries = np.array(sets, dtype=np.float32)[:-1]
    # [set, key] the queries of a set that come after a key
    later = np.cumsum(queries[:, ::-1], axis=1)[:, ::-1] - queries
    with np.errstate(invalid="ignore", divide="ignore"):
        mean_weights: Floats = (sums[:, :-1] / later[None, :, None]).astype(np.float32)
    return mean_weights
