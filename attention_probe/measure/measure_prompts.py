"""Run problems under all conditions, and compute all measured fields of their traces."""

# jaxtyping's axis names are not forward references.
# ruff: noqa: F722
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from attention_probe.measure.measure_activations import Reference, measure_activations
from attention_probe.model.attention_statistics import Capture, CaptureRequest
from attention_probe.model.capture import capture
from attention_probe.model.load_first_layers import LoadedModel
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt, common_tokens
from harness.constants import BASELINE
from harness.engines.attention_sums import Floats, means
from harness.experiment.built_prompts import TOKEN_REGIONS, index_regions
from harness.layers_and_heads import count_rows

FieldsByCondition = dict[str, dict[str, Any]]
"""The measured fields of the `Trace` of each prompt of a problem, by condition."""


AVERAGES = 3
"""The number of sets in `query_sets`."""


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


QuerySets = Bool[np.ndarray, "query_set seq"]


def query_sets(prompt: TokenizedPrompt, common: NDArray[np.bool_], record: Record) -> QuerySets:
    """The sets of queries over which attention is averaged.

    They are all queries, the common ones, and the problem's among these. With `completion` each is
    the queries of the completion.
    """
    if record.completion:
        return np.stack([prompt.has_role("completion")] * AVERAGES)
    return np.stack([np.ones_like(common), common, common & prompt.has_role("problem")])


def average_sums(prompt: TokenizedPrompt, sets: QuerySets, sums: Floats) -> dict[str, Any]:
    """The measured fields of a `Trace`, from sums [layer, set, head, key] over `query_sets`."""
    curves = means(sums, sets)
    # each token is in exactly one region
    in_region = index_regions(prompt.roles) == np.arange(len(TOKEN_REGIONS))[:, None]
    regions = np.vstack([in_region, prompt.inserted]).astype(np.float32)
    # [layer, head, region] over the problem's queries. Unlike the other sets this one includes the
    # diagonal: in a mass, a query's attention to its own token counts.
    with np.errstate(invalid="ignore"):  # an empty completion has no queries
        masses = sums[:, -1] @ regions.T / np.float32(sets[-1].sum())
    *region_masses, inserted = np.moveaxis(masses, -1, 0)
    names = [f"mass_{name}" for name in TOKEN_REGIONS]
    return {
        "mean_all": curves[:, 0],
        "mean_common": curves[:, 1],
        "measures": dict(zip(names, region_masses, strict=True)) | {"lambda": 1 - inserted},
    }


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
        sets = [
            query_sets(prompt, by_condition[condition], record)
            for prompt, by_condition in zip(prompts, common, strict=True)
        ]
        captured = _run_condition(loaded, prompts, sets, record)
        layers = [captured[layer] for layer in captured.layer_indices]
        for row, prompt in enumerate(prompts):
            # [layer, set, head, key] and [layer, head, row, key]
            sums = torch.stack([layer.sums[row] for layer in layers])[..., : len(prompt)]
            rows = torch.stack([layer.rows[row] for layer in layers])[..., : len(prompt)]
            fields = average_sums(prompt, sets[row], sums.cpu().numpy())
            fields["rows"] = rows.cpu().numpy()
            if captured.activations is not None:
                is_problem = common[row][condition] & prompt.has_role("problem")
                problem = np.flatnonzero(is_problem)
                activations = captured.activations[row, problem]
                if condition == BASELINE:
                    references.append(Reference.of(activations))
                texts = _read_texts(prompt, problem)
                numbers, histogram = measure_activations(activations, references[row], texts)
                fields |= {"activations": numbers, "activation_histogram": histogram}
            measured[row][condition] = fields
    return measured


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
    sets: Sequence[QuerySets],
    record: Record,
) -> Capture:
    """One forward pass over prompts, padded on the right."""
    length = max(map(len, prompts))

    # On the right, padding comes after all real queries and cannot change them.
    def stack(values: Iterable[NDArray[Any] | Tensor]) -> Tensor:
        tensors = map(torch.as_tensor, values)
        padded = [pad(tensor, (0, length - tensor.shape[-1])) for tensor in tensors]
        return torch.stack(padded)

    return capture(
        loaded,
        stack(prompt.token_ids for prompt in prompts).long(),
        attention_mask=stack(torch.ones(len(prompt)) for prompt in prompts).long(),
        position_ids=stack(prompt.positions for prompt in prompts).long(),
        request=CaptureRequest(
            query_sets=stack(sets),
            activations=record.activations,
            rows=stack(
                torch.arange(len(prompt)) >= len(prompt) - record.count_rows(prompt)
                for prompt in prompts
            ),
        ),
    )
