"""Run problems under all conditions, and compute all measured fields of their traces."""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from attention_probe.measure.measure_activations import Reference, measure_activations
from attention_probe.model.attention_statistics import Capture, CaptureRequest
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt, common_tokens
from harness.constants import BASELINE
from harness.experiment.built_prompts import TOKEN_REGIONS, index_regions
from harness.layers_and_heads import count_rows

FieldsByCondition = dict[str, dict[str, Any]]
"""The measured fields of the `Trace` of each prompt of a problem, by condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Which measurements to make.

    Attributes:
        completion: Average over the recorded completion's queries instead of the prompt's.
        activations: Measure the first MLP.
        rows: Queries whose weights are stored: see `count_rows`. None for no query.
    """

    completion: bool = False
    activations: bool = False
    rows: str | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            count_rows(self.rows, 0)  # for its error about other words

    def count_rows(self, prompt: TokenizedPrompt) -> int:
        """The number of the prompt's last queries whose weights are stored."""
        if self.rows is None:
            return 0
        return count_rows(self.rows, len(prompt), int(prompt.has_role("completion").sum()))


def key_regions(prompt: TokenizedPrompt) -> Bool[Tensor, "region seq"]:
    """The tokens of each of TOKEN_REGIONS, and all inserted tokens: the filler with its separator.

    Each token is in exactly one of TOKEN_REGIONS.
    """
    in_region = index_regions(prompt.roles) == np.arange(len(TOKEN_REGIONS))[:, None]
    return torch.from_numpy(np.vstack([in_region, prompt.inserted]))


def mass_measures(
    mass: Float[Tensor, "layer head region"],
) -> dict[str, Float32[np.ndarray, "layer head"]]:
    """The measures of a trace, from the mean attention of its queries on each of `key_regions`."""
    *regions, inserted = np.moveaxis(mass.cpu().numpy(), -1, 0)
    measures = {f"mass_{name}": region for name, region in zip(TOKEN_REGIONS, regions, strict=True)}
    return measures | {"lambda": 1 - inserted}


def measure_group(
    loaded: LoadedModel, group: Sequence[PromptsByCondition], record: Record
) -> list[FieldsByCondition]:
    """Measure problems of similar length: one pass for each condition.

    Args:
        loaded: The model.
        group: The prompts of each problem by condition, the baseline among them.
        record: Which measurements to make.

    Returns:
        For each problem, the measured fields of a `Trace` by condition.
    """
    common = [common_tokens(prompts) for prompts in group]
    measured: list[FieldsByCondition] = [{} for _ in group]
    references: list[Reference] = []
    # The baseline is first, because the thresholds of all other conditions refer to it.
    for condition in dict.fromkeys((BASELINE, *group[0])):
        prompts = [by_condition[condition] for by_condition in group]
        is_common = [by_condition[condition] for by_condition in common]
        captured = _run_condition(loaded, prompts, is_common, record)
        for row, (prompt, mask) in enumerate(zip(prompts, is_common, strict=True)):
            problem = np.flatnonzero(mask & prompt.has_role("problem"))
            queries = problem
            if record.completion:
                queries = np.flatnonzero(prompt.has_role("completion"))
            fields = _read_attention(captured, row, prompt, queries)
            if captured.activations is not None:
                activations = captured.activations[row, problem]
                if condition == BASELINE:
                    references.append(Reference.of(activations))
                texts = _read_texts(prompt, problem)
                numbers, histogram = measure_activations(activations, references[row], texts)
                fields |= {"activations": numbers, "activation_histogram": histogram}
            measured[row][condition] = fields
    return measured


def _read_attention(
    captured: Capture, row: int, prompt: TokenizedPrompt, queries: Int64[np.ndarray, " query"]
) -> dict[str, Any]:
    """The fields of one prompt that describe its attention.

    Args:
        captured: The capture of a pass.
        row: The prompt's row in it.
        prompt: The prompt.
        queries: Positions of the queries whose masses are averaged.
    """
    layers = [captured[layer] for layer in captured.layer_indices]
    # [layer, query_set, head, key]
    means = torch.stack([layer.column_mean[row] for layer in layers])[..., : len(prompt)]
    means = means.cpu().float()
    # [layer, head, row, key]
    rows = torch.stack([layer.rows[row] for layer in layers])[..., : len(prompt)]
    # [layer, head, query, region]
    masses = torch.stack([layer.region_mass[row] for layer in layers])
    return {
        "mean_all": means[:, 0].numpy(),
        "mean_common": means[:, 1].numpy(),
        "rows": rows.cpu().numpy(),
        "measures": mass_measures(masses[:, :, queries].mean(2)),
    }


def _read_texts(prompt: TokenizedPrompt, positions: Int64[np.ndarray, " position"]) -> list[str]:
    """The texts of tokens; one that continues a character has its last part, for its class."""
    texts: list[str] = []
    for position in positions:
        text = prompt.tokens[position]
        if not text:  # it continues a character
            text = "".join(texts)[-1:]
        texts.append(text)
    return texts


def _run_condition(
    loaded: LoadedModel,
    prompts: Sequence[TokenizedPrompt],
    is_common: Sequence[NDArray[np.bool_]],
    record: Record,
) -> Capture:
    """One forward pass over prompts, padded on the right."""
    length = max(map(len, prompts))

    # On the right, padding comes after all real queries and cannot change them.
    def stack(values: Iterable[NDArray[Any] | Tensor]) -> Tensor:
        tensors = map(torch.as_tensor, values)
        padded = [pad(tensor, (0, length - tensor.shape[-1])) for tensor in tensors]
        return torch.stack(padded)

    # [definition, query] of each prompt: `published` is over all queries, `common` over the common
    query_sets = [(np.ones_like(mask), mask) for mask in is_common]
    if record.completion:
        query_sets = [(prompt.has_role("completion"),) * 2 for prompt in prompts]
    return capture(
        loaded,
        stack(prompt.token_ids for prompt in prompts).long(),
        attention_mask=stack(torch.ones(len(prompt)) for prompt in prompts).long(),
        position_ids=stack(prompt.positions for prompt in prompts).long(),
        request=CaptureRequest(
            query_sets=stack(map(np.stack, query_sets)),
            key_regions=stack(map(key_regions, prompts)),
            activations=record.activations,
            rows=stack(
                torch.arange(len(prompt)) >= len(prompt) - record.count_rows(prompt)
                for prompt in prompts
            ),
        ),
    )
