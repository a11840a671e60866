"""The probe's curves and masses from vLLM's engine, for models and layers that Hugging Face cannot reach here.

What needs single queries or head outputs (`--decompose`, `--queries completion`, `--activations`) is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probe.measure.decomposition import key_regions, mass_measures
from attention_probe.prompts.token_roles import TokenizedPrompt, common_tokens
from harness import models
from harness.engines.attention import Floats, means, open_recorder, record, recorded_prompt
from harness.runs.receipts import model_fingerprint

Prompts = Mapping[str, Mapping[str, TokenizedPrompt]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """What `LoadedModel` tells of a model, of one that vLLM loads."""

    name: str
    config: Any
    layers: tuple[int, ...]
    revision: str | None = None

    @classmethod
    def of(cls, model: str, layers: Sequence[int] | Literal["all"], revision: str | None = None) -> EngineModel:
        """The model of this name, and which of its layers, from 0, are recorded."""
        from transformers import AutoConfig

        name = models.resolve_model(model)
        config = AutoConfig.from_pretrained(name, revision=revision).get_text_config()
        numbers = range(config.num_hidden_layers) if layers == "all" else layers
        return cls(name=name, config=config, layers=tuple(numbers), revision=revision)

    @property
    def head_count(self) -> int:
        """Query heads of each layer."""
        return int(self.config.num_attention_heads)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What identifies the weights."""
        found = model_fingerprint(self.name, self.revision)
        return {"name": found.name, "revision": found.revision, "sha256": found.sha256}


def record_in_engine(
    model: EngineModel, prompts: Prompts, dtype: str
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """The measured fields of a `Trace` of each problem, by condition; problems as they are finished.

    Raises:
        ConfigError: the model's layers cannot be opened.
        ModelError: it cannot be loaded.
    """
    asked = {}
    for problem_id, by_condition in prompts.items():
        common = common_tokens(by_condition)
        for name, prompt in by_condition.items():
            moved = prompt.positions - range(len(prompt))
            gap = {"start": int(moved.argmax()), "size": int(moved.max()), "phantom": []} if moved.any() else None
            arm = gap and {"kind": "filler", "layers": [], "scale": True, "bias": True, **gap}
            asked[problem_id, name] = recorded_prompt(
                prompt.token_ids.tolist(), query_sets(prompt, common[name]), intervention=arm
            )
    last = max(int(prompt.positions[-1]) for several in prompts.values() for prompt in several.values())
    arguments = {"pretrained": model.name, "dtype": dtype, "max_model_len": last + 3, "enforce_eager": True}
    found: dict[str, dict[str, dict[str, Any]]] = {problem_id: {} for problem_id in prompts}
    with closing(open_recorder(arguments, [layer + 1 for layer in model.layers])) as engine:
        for (problem_id, name), sums in record(engine, asked):
            found[problem_id][name] = measured_fields(prompts[problem_id][name], asked[problem_id, name].record, sums)
            if len(found[problem_id]) == len(prompts[problem_id]):
                yield problem_id, found.pop(problem_id)


def query_sets(prompt: TokenizedPrompt, common: NDArray[np.bool_]) -> list[list[int]]:
    """The queries over which attention is summed: all, the common ones, and those of the problem among them."""
    everything = np.ones(len(prompt), np.bool_)
    sets = [everything, common, common & prompt.has_role("problem")]
    return [one.astype(int).tolist() for one in sets]


def measured_fields(prompt: TokenizedPrompt, sets: Any, sums: Floats) -> dict[str, Any]:
    """What a `Trace` has of the sums [layer, set, head, key] over these sets of queries."""
    curves, inside = means(sums, sets), key_regions(prompt)
    masses = torch.from_numpy(sums[:, -1].copy()) @ inside.float().T / max(1, sum(sets[-1]))
    layers = [mass_measures(layer[:, None]) for layer in masses]
    measures = {key: torch.stack([layer[key] for layer in layers]).numpy() for key in layers[0]}
    return {"mean_all": curves[:, 0], "mean_common": curves[:, 1], "measures": measures}
