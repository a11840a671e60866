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
from attention_probe.prompts.token_roles import ConditionPrompts, TokenizedPrompt, common_tokens
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
            count_rows(self.rows, 0)  # refuses other words

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
    loaded: LoadedModel, group: Sequence[ConditionPrompts], record: Record
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
        results = _run_condition(loaded, prompts, is_common, record)
        if condition == BASELINE and record.activations:
            references = [Reference.of(result.activations) for result in results]
        for index, result in enumerate(results):
            fields = result.attention(loaded.layers)
            if record.activations:
                fields |= _measure_first_mlp(result, references[index])
            measured[index][condition] = fields
    return measured


@dataclass(frozen=True, slots=True, kw_only=True)
class _PassResult:
    """One prompt after a pass.

    Attributes:
        prompt: The prompt.
        captured: The capture of the whole pass.
        row: The prompt's row in it.
        problem: Positions of the problem's common tokens.
        queries: Positions of the queries whose masses are averaged: the problem's common tokens, or
            the completion's.
    """

    prompt: TokenizedPrompt
    captured: Capture
    row: int
    problem: Int64[np.ndarray, " problem_token"]
    queries: Int64[np.ndarray, " query"]

    @property
    def activations(self) -> Float[Tensor, "problem_token width"]:
        """The first MLP's activations over the problem's common tokens."""
        assert self.captured.activations is not None
        return self.captured.activations[self.row, self.problem]

    def attention(self, layers: Sequence[int]) -> dict[str, Any]:
        """Weights [layer, head, key] averaged over all and over common queries; rows; masses."""
        means = torch.stack([self.captured[layer].column_mean[self.row] for layer in layers])
        means = means[..., : len(self.prompt)].cpu().float()
        # [layer, head, row, key]
        rows = torch.stack([self.captured[layer].rows[self.row] for layer in layers])
        # [layer, head, query, region]
        masses = torch.stack([self.captured[layer].region_mass[self.row] for layer in layers])
        return {
            "mean_all": means[:, 0].numpy(),
            "mean_common": means[:, 1].numpy(),
            "rows": rows[..., : len(self.prompt)].cpu().numpy(),
            "measures": mass_measures(masses[:, :, self.queries].mean(2)),
        }


def _run_condition(
    loaded: LoadedModel,
    prompts: Sequence[TokenizedPrompt],
    is_common: Sequence[NDArray[np.bool_]],
    record: Record,
) -> list[_PassResult]:
    """One forward pass over prompts, padded on the right."""
    length = max(map(len, prompts))

    # On the right, padding comes after all real queries and cannot change them.
    def stack(values: Iterable[NDArray[Any] | Tensor]) -> Tensor:
        tensors = map(torch.as_tensor, values)
        padded = [pad(tensor, (0, length - tensor.shape[-1])) for tensor in tensors]
        return torch.stack(padded)

    completions = [prompt.has_role("completion") for prompt in prompts]
    # the queries of the definitions `published` and `common`
    query_sets = [(np.ones_like(mask), mask) for mask in is_common]
    if record.completion:
        query_sets = [(completion, completion) for completion in completions]
    captured = capture(
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
    results = []
    for row, (prompt, mask) in enumerate(zip(prompts, is_common, strict=True)):
        problem = np.flatnonzero(mask & prompt.has_role("problem"))
        queries = np.flatnonzero(completions[row]) if record.completion else problem
        results.append(
            _PassResult(prompt=prompt, captured=captured, row=row, problem=problem, queries=queries)
        )
    return results


def _measure_first_mlp(result: _PassResult, reference: Reference) -> dict[str, Any]:
    """The fields of one prompt that describe the first MLP's activations."""
    texts: list[str] = []
    for position in result.problem:
        text = result.prompt.tokens[position]
        if not text:  # it continues a character, and has its class
            text = "".join(texts)[-1:]
        texts.append(text)
    activations, histogram = measure_activations(result.activations, reference, texts)
    return {"activations": activations, "activation_histogram": histogram}
