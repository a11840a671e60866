"""The attention that tokens receive, summed in the engine while prompts are prefilled: any model that vLLM runs.

Hugging Face has the same numbers and many more (`mless probe`), for models that fit one process. Here only sums over
queries leave the engine, so all layers of a large model can be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from harness import models
from harness.engines.interventions.checks import refuse_to_open
from harness.engines.vllm import VLLMEngine
from harness.errors import ConfigError

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A prompt whose attention is recorded.

    Attributes:
        token_ids: The prompt.
        sets: Sets of queries, each a bool for every token. Of all but the last those queries count that stand after a
            key; of the last all that see it.
        gap: From which position on all positions are moved, and by how much; None for none.
    """

    token_ids: Sequence[int]
    sets: Sequence[Sequence[bool]]
    gap: tuple[int, int] | None = None


def attention(
    model: str,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    layers: Sequence[int] | Literal["all"] = "all",
    **arguments: Any,
) -> list[Floats]:
    """The attention that each token of a prompt receives from the tokens after it, by layer and head.

    Use it where `mless probe` does not reach: large models, all layers, tensor parallel.

    Args:
        model: A folder, a hub name, or `smollm2`.
        prompts: Texts, to which the tokenizer adds what it adds before any text, or token ids.
        layers: Counted from 1; they come back in ascending order.
        **arguments: Further model arguments, such as `dtype` or `tensor_parallel_size`.

    Returns:
        For each prompt [layer, head, position]: the mean share of one query's attention, over all later queries; NaN at
        the last position, which has none.

    Raises:
        ConfigError: no such layer, or the model's attention cannot be opened (sliding windows, sinks, soft caps).
        ModelError: the model cannot be loaded.
    """
    from harness.experiment.tokenizer import encode, load_tokenizer

    name = models.resolve_model(model)
    tokenizer = load_tokenizer(name)
    ids = [list(encode(one, tokenizer)[0]) if isinstance(one, str) else list(map(int, one)) for one in prompts]
    with closing(open_recorder({"pretrained": name, **arguments}, layers)) as engine:
        every = {place: Asked(token_ids=one, sets=[[True] * len(one)] * 2) for place, one in enumerate(ids)}
        found = {place: means(sums, every[place])[:, 0] for place, sums in record(engine, every)}
    return [found[place] for place in range(len(ids))]


def open_recorder(arguments: Mapping[str, Any], layers: Sequence[int] | Literal["all"]) -> VLLMEngine:
    """An engine in which the attention of these layers, counted from 1, is open.

    Raises:
        ConfigError, ModelError: as `attention`.
    """
    asked = [] if layers == "all" else [layer - 1 for layer in layers]
    count = refuse_to_open(arguments, {"attention": asked, "activations": []})
    if any(layer < 0 for layer in asked):
        raise ConfigError(f"layers: expected numbers from 1, got {min(asked) + 1}.")
    opened = {"layers": {"attention": sorted({*(asked or range(count))}), "activations": []}}
    return VLLMEngine({**arguments, "interventions": opened}, sampled=False)


def record(engine: VLLMEngine, prompts: Mapping[Any, Asked]) -> Iterator[tuple[Any, Floats]]:
    """The sums of each prompt [layer, set, head, key], as it is finished.

    Args:
        engine: As `open_recorder` gives it.
        prompts: By what each is told apart by.

    Raises:
        EngineError: the engine died, or a hook was skipped.
    """
    names = {str(number): name for number, name in enumerate(prompts)}
    for number, name in names.items():
        one = prompts[name]
        gap = {} if one.gap is None else {"start": one.gap[0], "size": one.gap[1], "phantom": []}
        sets = [[int(query) for query in each] for each in one.sets]
        engine.submit_recorded(number, list(one.token_ids), {"kind": "record", "name": number, "sets": sets, **gap})
    left = set(names)
    while left:
        for done in engine.step():
            left.remove(done.request_id)
            parts = [
                np.frombuffer(data, np.float32).reshape(shape) for shape, data in engine.take_attention(done.request_id)
            ]
            yield names[done.request_id], np.concatenate(parts, axis=2)  # each rank has some of the heads


def means(sums: Floats, asked: Asked) -> Floats:
    """The mean weight [layer, set, head, key] over the queries of each set but the last; NaN where there is none."""
    sets = np.array(asked.sets, dtype=np.float32)[:-1]
    later = np.cumsum(sets[:, ::-1], axis=1)[:, ::-1] - sets
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = (sums[:, :-1] / later[None, :, None]).astype(np.float32)
    return found
