"""Run some problems under all conditions, and compute everything that is kept of them."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from attention_probe.measure.head_decomposition import (
    REGIONS,
    decompose,
    key_regions,
    mass_measures,
)
from attention_probe.measure.measure_activations import Reference, measure_activations
from attention_probe.model.attention_statistics import Capture
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.prompts.token_roles import TokenizedPrompt, common_tokens
from harness.constants import BASELINE

INSERTED = REGIONS.index("inserted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What to keep.

    Attributes:
        completion: Average over the recorded completion's queries instead of the prompt's.
        decompose: Also run the position-gap control and split the change of every head's output.
        activations: Also measure the first MLP.
    """

    completion: bool = False
    decompose: bool = False
    activations: bool = False


def measure_group(
    loaded: LoadedModel, group: Sequence[Mapping[str, TokenizedPrompt]], record: Record
) -> list[dict[str, dict[str, Any]]]:
    """Measure problems of like length: one pass for each condition, and one more for its position-gap control.

    Args:
        loaded: The model.
        group: The prompts of each problem by condition, the baseline among them.
        record: What to keep.

    Returns:
        For each problem, by condition, the fields of a `Trace` that are measured. Its `self_check` has
        `decomposition_residual`, what the decomposition leaves of the first layer's outputs, as a share, in the worst
        head; it is empty if nothing was decomposed, or that layer is not asked.
    """
    common = [common_tokens(prompts) for prompts in group]
    found: list[dict[str, dict[str, Any]]] = [{} for _ in group]
    baselines: list[_Passed] = []
    references: list[Reference] = []
    for name in dict.fromkeys((BASELINE, *group[0])):
        rows = [
            _Row.of(prompts[name], shared[name], record)
            for prompts, shared in zip(group, common, strict=True)
        ]
        passed = _run(loaded, rows, record)
        gaps: Sequence[_Passed | None] = [None] * len(rows)
        if name == BASELINE:
            baselines = passed
            references = (
                [Reference.of(one.activations) for one in passed] if record.activations else []
            )
        elif record.decompose:
            whole = [
                (prompts[name], shared[name]) for prompts, shared in zip(group, common, strict=True)
            ]
            left = [
                _Row.of(one.position_gap(), shared[~one.inserted], record) for one, shared in whole
            ]
            gaps = _run(loaded, left, replace(record, activations=False))
        for place, (one, baseline, gap) in enumerate(zip(passed, baselines, gaps, strict=True)):
            layers = [_head_measures(layer, one, baseline, gap) for layer in loaded.layers]
            residuals = [layer.pop("residual") for layer in layers if "residual" in layer]
            exact = residuals and loaded.layers[0] == 0
            found[place][name] = one.curves(loaded.layers) | {
                "measures": {key: np.stack([layer[key] for layer in layers]) for key in layers[0]},
                "self_check": {"decomposition_residual": float(residuals[0].max())}
                if exact
                else {},
            }
            if record.activations:
                texts = [one.row.prompt.tokens[i] for i in one.row.problem.tolist()]
                activations, histogram = measure_activations(
                    one.activations, references[place], texts
                )
                found[place][name] |= {
                    "activations": activations,
                    "activation_histogram": histogram,
                }
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One prompt as it enters a pass.

    Attributes:
        prompt: Whose it is.
        query_sets: Queries to average over: all, and the common ones.
        regions: See REGIONS.
        queries: Whose masses and outputs are averaged: the problem's common tokens, or the completion's.
        problem: The problem's common tokens.
    """

    prompt: TokenizedPrompt
    query_sets: Bool[Tensor, "2 seq"]
    regions: Bool[Tensor, "region seq"]
    queries: Int[Tensor, " query"]
    problem: Int[Tensor, " problem_token"]

    @classmethod
    def of(cls, prompt: TokenizedPrompt, common: NDArray[np.bool_], record: Record) -> _Row:
        """The whole prompt; `common` are the tokens that every condition has."""
        shared = torch.from_numpy(common)
        problem = (shared & torch.from_numpy(prompt.has_role("problem"))).nonzero()[:, 0]
        completion = torch.from_numpy(prompt.has_role("completion"))
        everything = torch.ones(len(prompt), dtype=torch.bool)
        return cls(
            prompt=prompt,
            query_sets=torch.stack(
                [completion, completion] if record.completion else [everything, shared]
            ),
            regions=key_regions(prompt),
            queries=completion.nonzero()[:, 0] if record.completion else problem,
            problem=problem,
        )


@dataclass(frozen=True, slots=True)
class _Passed:
    """One prompt after a pass, which it shared with others of like length."""

    row: _Row
    given: Capture
    place: int

    @property
    def activations(self) -> Float[Tensor, "problem_token width"]:
        """The first MLP's activations over the problem's common tokens."""
        assert self.given.activations is not None  # asked
        return self.given.activations[self.place, self.row.problem]

    def outputs(self, layer: int) -> Float[Tensor, "head query head_dim"]:
        """Head outputs of the queries."""
        output = self.given[layer].output
        assert output is not None  # asked
        return output[self.place][:, self.row.queries]

    def curves(self, layers: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """Average attention weights over all queries, and over the common ones."""
        means = torch.stack([self.given[layer].column_mean[self.place] for layer in layers])
        means = means[..., : len(self.row.prompt)].cpu().float()
        return {"mean_all": means[:, 0].numpy(), "mean_common": means[:, 1].numpy()}


def _run(loaded: LoadedModel, rows: Sequence[_Row], record: Record) -> list[_Passed]:
    """One forward pass over rows padded on the right."""
    length = max(len(row.prompt) for row in rows)

    def padded(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, length - values.shape[-1]))

    token_ids = [torch.from_numpy(row.prompt.token_ids.astype(np.int64)) for row in rows]
    positions = [torch.from_numpy(row.prompt.positions.astype(np.int64)) for row in rows]
    given = capture(
        loaded,
        torch.stack([padded(ids) for ids in token_ids]),
        attention_mask=torch.stack([padded(torch.ones_like(ids)) for ids in token_ids]),
        position_ids=torch.stack([padded(one) for one in positions]),
        query_sets=torch.stack([padded(row.query_sets) for row in rows]),
        key_regions=torch.stack([padded(row.regions) for row in rows]),
        output_region=INSERTED if record.decompose else None,
        activations=record.activations,
    )
    return [_Passed(row, given, place) for place, row in enumerate(rows)]


def _head_measures(
    layer: int, one: _Passed, baseline: _Passed, gap: _Passed | None
) -> dict[str, NDArray[np.float32]]:
    """The measures of one prompt's heads in one layer, and `residual` where the change was decomposed."""
    found, queries = one.given[layer], one.row.queries
    mass = found.region_mass[one.place][:, queries]
    measures = mass_measures(mass)
    if gap is not None and one.row.regions[REGIONS.index("filler")].any():
        assert found.region_output is not None  # asked
        parts, residual = decompose(
            without=baseline.outputs(layer),
            gap=gap.outputs(layer),
            with_filler=one.outputs(layer),
            bias=found.region_output[one.place][:, queries],
            mass=mass[..., INSERTED],
        )
        measures |= parts | {"residual": residual}
    return {name: values.float().cpu().numpy() for name, values in measures.items()}
