"""Some problems under all conditions: the forward passes, and everything that is kept of them."""

from __future__ import annotations

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from attention_probe.measure.activations import Reference, measure
from attention_probe.measure.decomposition import REGIONS, decompose, key_regions, mass_measures, value_measures
from attention_probe.model.capture import Capture, capture
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.model.token_table import TokenTable
from attention_probe.prompts.token_roles import TokenizedPrompt, common_tokens
from harness.runs.prompt_source import BASELINE


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What to keep.

    Attributes:
        completion: Average over the recorded completion's queries instead of the prompt's.
        decompose: Also run the position-gap control and split the change of every head's output.
        activations: Also measure the first MLP.
        visible: Average over those queries that a sliding window lets see a key, instead of over all later ones.
    """

    completion: bool = False
    decompose: bool = False
    activations: bool = False
    visible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One prompt's numbers, with the axes of a `Trace`.

    Attributes:
        mean: [definition, layer, head, position]: over all later queries, and over the common ones.
        count: [definition, layer, position].
        measures: [layer, head] each.
        activations: Of the first MLP, over the problem's tokens.
        residual: What the decomposition leaves of the first layer's outputs, as a share, in the worst head; None if
            there is none, or that layer is not asked.
    """

    mean: NDArray[np.float32]
    count: NDArray[np.int32]
    measures: Mapping[str, NDArray[np.float32]]
    activations: Mapping[str, float]
    residual: float | None


def measure_group(
    loaded: LoadedModel,
    group: Sequence[Mapping[str, TokenizedPrompt]],
    record: Record,
    *,
    table: TokenTable | None = None,
) -> list[dict[str, Measurement]]:
    """Measure problems of like length: one pass a condition, and one more for its position-gap control.

    Args:
        loaded: The model.
        group: The prompts of each problem by condition, the baseline among them.
        record: What to keep.
        table: The first layer's projections, if they are looked up.

    Returns:
        The measurements of each problem by condition.
    """
    common = [common_tokens(prompts) for prompts in group]
    conditions = [BASELINE, *(name for name in group[0] if name != BASELINE)]
    found: list[dict[str, Measurement]] = [{} for _ in group]
    references: list[Reference] = []
    without: Capture | None = None
    for name in conditions:
        rows = [_Row.of(prompts[name], shared[name], record) for prompts, shared in zip(group, common, strict=True)]
        whole = _pass(loaded, rows, record, table, outputs=record.decompose)
        without = whole if without is None else without
        control = None
        if record.decompose and name != BASELINE:
            shifted = [row.without_inserted() for row in rows]
            control = _pass(loaded, shifted, replace(record, activations=False), table, outputs=True)
        for place, row in enumerate(rows):
            statistics: Mapping[str, float] = {}
            if whole.activations is not None:
                kept = whole.activations[place, row.problem]
                if name == BASELINE:
                    references.append(Reference.of(kept))
                statistics = measure(kept, references[place], [row.prompt.tokens[i] for i in row.problem.tolist()])
            baseline = _Row.of(group[place][BASELINE], common[place][BASELINE], record)
            heads = [_head_measures(whole, without, control, layer, place, row, baseline) for layer in loaded.layers]
            mean, count = _curves(whole, loaded.layers, place, row, visible=record.visible)
            found[place][name] = Measurement(
                mean=mean,
                count=count,
                measures={key: np.stack([layer[key] for layer in heads]) for key in heads[0] if key != "residual"},
                activations=statistics,
                residual=float(heads[0]["residual"].max())
                if loaded.layers[0] == 0 and "residual" in heads[0]
                else None,
            )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One prompt of a pass.

    Attributes:
        prompt: Whose it is.
        kept: Positions in it that stand in this row; all but in the position-gap control.
        query_sets: Queries to average over: all, and the common ones.
        regions: See REGIONS.
        queries: Whose masses and outputs are averaged: the problem's common tokens, or the completion's.
        problem: The problem's common tokens.
    """

    prompt: TokenizedPrompt
    kept: Int[Tensor, " seq"]
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
            kept=torch.arange(len(prompt)),
            query_sets=torch.stack([completion, completion] if record.completion else [everything, shared]),
            regions=key_regions(prompt),
            queries=completion.nonzero()[:, 0] if record.completion else problem,
            problem=problem,
        )

    def without_inserted(self) -> _Row:
        """The position-gap control: what was inserted is left out, every other token keeps its position."""
        inserted = self.regions[REGIONS.index("inserted")]
        kept = (~inserted).nonzero()[:, 0]
        place = (~inserted).cumsum(0) - 1
        return replace(
            self,
            kept=kept,
            query_sets=self.query_sets[:, kept],
            regions=self.regions[:, kept],
            queries=place[self.queries],
            problem=place[self.problem],
        )


def _pass(
    loaded: LoadedModel, rows: Sequence[_Row], record: Record, table: TokenTable | None, *, outputs: bool
) -> Capture:
    """One forward pass over rows padded on the right."""
    length = max(len(row.kept) for row in rows)

    def padded(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, length - values.shape[-1]))

    token_ids = [torch.from_numpy(row.prompt.token_ids.astype(np.int64))[row.kept] for row in rows]
    return capture(
        loaded,
        torch.stack([padded(ids) for ids in token_ids]),
        attention_mask=torch.stack([padded(torch.ones_like(ids)) for ids in token_ids]),
        position_ids=torch.stack([padded(row.kept) for row in rows]),
        query_sets=torch.stack([padded(row.query_sets) for row in rows]),
        key_regions=torch.stack([padded(row.regions) for row in rows]),
        entropy_regions=[REGIONS.index("filler")],
        output_region=REGIONS.index("inserted") if outputs else None,
        output=outputs,
        values=outputs,
        activations=record.activations,
        table=table,
    )


def _curves(
    whole: Capture, layers: Sequence[int], place: int, row: _Row, *, visible: bool
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """The average attention weights of one prompt, and over how many queries."""
    size = len(row.kept)
    captures = [whole[layer] for layer in layers]
    means = torch.stack([(c.visible_mean if visible else c.column_mean)[place, ..., :size] for c in captures], 1)
    counts = torch.stack([(c.visible_count if visible else c.column_count)[place, :, :size] for c in captures], 1)
    return means.cpu().numpy().astype(np.float32), counts.cpu().numpy().astype(np.int32)


def _head_measures(
    whole: Capture, without: Capture, control: Capture | None, layer: int, place: int, row: _Row, baseline: _Row
) -> dict[str, NDArray[np.float32]]:
    """The measures of one prompt's heads in one layer, and `residual` where the change was decomposed."""
    found, queries = whole[layer], row.queries
    mass = found.region_mass[place][:, queries]
    fillers = row.regions[REGIONS.index("filler")].nonzero()[:, 0]
    measures = mass_measures(mass, found.region_entropy[place][:, queries], filler_tokens=len(fillers))
    if control is not None and len(fillers):
        gap, original = control[layer], without[layer]
        assert found.output is not None and found.region_output is not None and found.values is not None
        assert gap.output is not None and original.output is not None
        parts, residual = decompose(
            without=original.output[place][:, baseline.queries],
            gap=gap.output[place][:, row.without_inserted().queries],
            with_filler=found.output[place][:, queries],
            bias=found.region_output[place][:, queries],
            mass=mass[..., REGIONS.index("inserted")],
        )
        measures |= parts | value_measures(found.values[place][:, fillers], mass.shape[0]) | {"residual": residual}
    return {name: values.float().cpu().numpy() for name, values in measures.items()}
