"""Run problems under all conditions, and compute all measured fields of their traces."""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from attention_probe.measure.head_decomposition import (
    REGIONS,
    decompose,
    key_regions,
    mass_measures,
)
from attention_probe.measure.measure_activations import Reference, measure_activations
from attention_probe.model.attention_statistics import Capture, CaptureRequest
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.prompts.token_roles import ConditionPrompts, TokenizedPrompt, common_tokens
from harness.constants import BASELINE
from harness.layers_and_heads import count_rows

INSERTED = REGIONS.index("inserted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Which measurements to make.

    Attributes:
        completion: Average over the recorded completion's queries instead of the prompt's.
        decompose: Run the position-gap control and decompose the change of every head's output.
        activations: Measure the first MLP.
        rows: Queries whose weights are stored: see `count_rows`. None for no query.
    """

    completion: bool = False
    decompose: bool = False
    activations: bool = False
    rows: str | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            count_rows(self.rows, 0)  # refuses other words

    def is_row(self, prompt: TokenizedPrompt) -> NDArray[np.bool_]:
        """The queries of the prompt whose weights are stored."""
        count = 0
        if self.rows is not None:
            completion = int(prompt.has_role("completion").sum())
            count = count_rows(self.rows, len(prompt), completion)
        return np.arange(len(prompt)) >= len(prompt) - count


def measure_group(
    loaded: LoadedModel, group: Sequence[ConditionPrompts], record: Record
) -> list[dict[str, dict[str, Any]]]:
    """Measure problems of similar length: one pass for each condition and position gap.

    Args:
        loaded: The model.
        group: The prompts of each problem by condition, the baseline among them.
        record: Which measurements to make.

    Returns:
        For each problem, the measured fields of a `Trace` by condition. Its `self_check` has
        `decomposition_residual`: the share of the first layer's outputs that the decomposition does
        not explain, in the worst head. It is empty without a decomposition or without that layer.
    """
    common = [common_tokens(prompts) for prompts in group]
    measured: list[dict[str, dict[str, Any]]] = [{} for _ in group]
    baselines: list[_PassResult] = []
    references: list[Reference] = []
    # The baseline is first, because the outputs and thresholds of all other conditions refer to it.
    for condition in dict.fromkeys((BASELINE, *group[0])):
        prompts = [by_condition[condition] for by_condition in group]
        is_common = [by_condition[condition] for by_condition in common]
        results = _run_condition(loaded, prompts, is_common, record)
        gaps: Sequence[_PassResult | None] = [None] * len(group)
        if condition == BASELINE:
            baselines = results
            if record.activations:
                references = [Reference.of(result.activations) for result in results]
        elif record.decompose:
            gaps = _run_condition(
                loaded,
                [prompt.position_gap() for prompt in prompts],
                [mask[~prompt.inserted] for prompt, mask in zip(prompts, is_common, strict=True)],
                # activations are compared with the baseline's alone
                replace(record, activations=False),
            )
        for index, (result, baseline, gap) in enumerate(zip(results, baselines, gaps, strict=True)):
            fields = result.curves(loaded.layers) | _measure_heads(loaded, result, baseline, gap)
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
        queries: Positions of the queries whose masses and outputs are averaged: the problem's
            common tokens, or the completion's.
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

    def of_queries(
        self, values: Float[Tensor, "batch head seq width"] | None
    ) -> Float[Tensor, "head query width"]:
        """The values of this prompt's queries."""
        assert values is not None  # the decomposition requests outputs
        return values[self.row][:, self.queries]

    def curves(self, layers: Sequence[int]) -> dict[str, Any]:
        """Average attention weights [layer, head, key] over all and over common queries; rows."""
        means = torch.stack([self.captured[layer].column_mean[self.row] for layer in layers])
        means = means[..., : len(self.prompt)].cpu().float()
        # [layer, head, row, key]
        rows = torch.stack([self.captured[layer].rows[self.row] for layer in layers])
        return {
            "mean_all": means[:, 0].numpy(),
            "mean_common": means[:, 1].numpy(),
            "rows": rows[..., : len(self.prompt)].cpu().numpy(),
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
            output_region=INSERTED if record.decompose else None,
            activations=record.activations,
            rows=stack(torch.from_numpy(record.is_row(prompt)) for prompt in prompts),
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


def _measure_heads(
    loaded: LoadedModel, result: _PassResult, baseline: _PassResult, gap: _PassResult | None
) -> dict[str, Any]:
    """The fields `measures` and `self_check` of one prompt."""
    layers = [_measure_layer(layer, result, baseline, gap) for layer in loaded.layers]
    residuals = [measures.pop("residual") for measures in layers if "residual" in measures]
    self_check = {}
    # the decomposition is exact only in the first layer
    if residuals and loaded.layers[0] == 0:
        self_check["decomposition_residual"] = float(residuals[0].max())
    measures = {name: np.stack([layer[name] for layer in layers]) for name in layers[0]}
    return {"measures": measures, "self_check": self_check}


def _measure_layer(
    layer: int, result: _PassResult, baseline: _PassResult, gap: _PassResult | None
) -> dict[str, NDArray[np.float32]]:
    """The measures of one prompt's heads in one layer, and the `residual` of a decomposition."""
    captured = result.captured[layer]
    mass = result.of_queries(captured.region_mass)
    measures = mass_measures(mass)
    if gap is not None and result.prompt.filler_span:
        components, residual = decompose(
            without=baseline.of_queries(baseline.captured[layer].output),
            gap=gap.of_queries(gap.captured[layer].output),
            with_filler=result.of_queries(captured.output),
            bias=result.of_queries(captured.region_output),
            mass=mass[..., INSERTED],
        )
        measures |= components | {"residual": residual}
    return {name: values.float().cpu().numpy() for name, values in measures.items()}


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
