"""The probe's curves and masses from vLLM's engine, for models and layers that Hugging Face cannot reach here.

What needs single queries or head outputs (`--decompose`, `--queries completion`, `--activations`) is not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch

from attention_probe.measure.decomposition import key_regions, mass_measures
from attention_probe.prompts.token_roles import TokenizedPrompt, common_tokens
from harness.engines.attention import Asked, means, open_recorder, record
from harness.runs.receipts import model_fingerprint

Prompts = Mapping[str, Mapping[str, TokenizedPrompt]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """What `LoadedModel` tells of a model, of one that vLLM will load."""

    name: str
    config: Any
    layers: tuple[int, ...]

    @property
    def head_count(self) -> int:
        """Query heads of each layer."""
        return int(self.config.num_attention_heads)

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What identifies the weights."""
        found = model_fingerprint(self.name)
        return {"name": found.name, "revision": found.revision, "sha256": found.sha256}


def record_in_engine(
    model: EngineModel, prompts: Prompts, dtype: str
) -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """The measured fields of a `Trace` of each problem, by condition; problems as they are finished.

    Raises:
        ConfigError: the model's layers cannot be opened.
        ModelError: it cannot be loaded.
    """
    asked, regions = {}, {}
    for problem_id, by_condition in prompts.items():
        common = common_tokens(by_condition)
        for name, prompt in by_condition.items():
            problem = common[name] & prompt.has_role("problem")
            moved = prompt.positions - range(len(prompt))
            first = int(moved.argmax()) if moved.any() else 0
            asked[problem_id, name] = Asked(
                token_ids=prompt.token_ids.tolist(),
                sets=[[True] * len(prompt), common[name].tolist(), problem.tolist()],
                gap=(first, int(moved.max())) if moved.any() else None,
            )
            regions[problem_id, name] = key_regions(prompt)
    longest = max(len(one.token_ids) + (one.gap or (0, 0))[1] for one in asked.values())
    arguments = {"pretrained": model.name, "dtype": dtype, "max_model_len": longest + 2, "enforce_eager": True}
    found: dict[str, dict[str, dict[str, Any]]] = {problem_id: {} for problem_id in prompts}
    with closing(open_recorder(arguments, [layer + 1 for layer in model.layers])) as engine:
        for (problem_id, name), sums in record(engine, asked):
            one, inside = asked[problem_id, name], regions[problem_id, name]
            curves = means(sums, one)
            masses = torch.from_numpy(sums[:, -1].copy()) @ inside.float().T / max(1, sum(one.sets[-1]))
            layers = [mass_measures(layer[:, None]) for layer in masses]
            found[problem_id][name] = {
                "mean_all": curves[:, 0],
                "mean_common": curves[:, 1],
                "measures": {key: torch.stack([layer[key] for layer in layers]).numpy() for key in layers[0]},
            }
            if len(found[problem_id]) == len(prompts[problem_id]):
                yield problem_id, found.pop(problem_id)
