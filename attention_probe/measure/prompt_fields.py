"""Run a problem under all conditions, and compute all measured fields of its traces."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probe.measure.activations import ReferenceActivations, measure_activations
from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture_attention
from attention_probe.model.first_layers import LoadedModel
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt, common_tokens
from harness.array_types import Integers
from harness.engines.attention_sums import Weights, average_weights
from harness.engines.engine_processes import LATER_SET_COUNT
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS, find_region_indices
from harness.layers_and_heads import count_rows

FieldsByCondition = dict[str, dict[str, Any]]
"""The measured fields of the `Trace` of each of a problem's prompts, by condition."""


AVERAGES = 3
"""The number of sets in `query_sets`."""


@dataclass(frozen=True, kw_only=True)
class MeasurementOptions:
    """Which measurements to make.

    Attributes:
        activations: Measure the first MLP.
        norms: Measure the norm of each token's hidden state after each layer.
        rows: Queries whose weights are stored: see `count_rows`. None for no query.
    """

    activations: bool = False
    norms: bool = False
    rows: str | None = None

    def __post_init__(self) -> None:
        if self.rows is not None:
            count_rows(self.rows, 0)  # for its error about other words

    def count_rows(self, prompt: TokenizedPrompt) -> int:
        """The number of the prompt's last queries whose weights are stored."""
        if self.rows is None:
            return 0
        return count_rows(self.rows, len(prompt))


QuerySets = NDArray[np.bool_]
"""[query set, token]"""


def query_sets(prompt: TokenizedPrompt, common: NDArray[np.bool_]) -> QuerySets:
    """The sets of queries over which attention is averaged.

    They are all queries, the common ones, and the problem's among these.
    """
    return np.stack([np.ones_like(common), common, common & prompt.has_role("problem")])


def average_sums(prompt: TokenizedPrompt, sets: QuerySets, sums: Weights) -> dict[str, Any]:
    """The measured fields of a `Trace`, from sums [layer, set, head, key] over `query_sets`."""
    curves = average_weights(sums[:, :LATER_SET_COUNT], sets[:LATER_SET_COUNT])
    # each token is in exactly one region
    in_region = find_region_indices(prompt.roles) == np.arange(len(TOKEN_REGIONS))[:, None]
    regions = np.vstack([in_region, ~prompt.is_inserted]).astype(np.float32)
    # [layer, head, region] over the problem's queries. Unlike the other sets this one includes the
    # diagonal: in a mass, a query's attention to its own token counts.
    with np.errstate(invalid="ignore"):  # all tokens of a problem may be merged with others
        masses = sums[:, -1] @ regions.T / np.float32(sets[-1].sum())
    *region_masses, original = np.moveaxis(masses, -1, 0)
    names = [f"mass_{name}" for name in TOKEN_REGIONS]
    return {
        "mean_all": curves[:, 0],
        "mean_common": curves[:, 1],
        "measures": dict(zip(names, region_masses, strict=True)) | {"lambda": original},
    }


def measure_problem(
    loaded: LoadedModel, prompts: PromptsByCondition, record: MeasurementOptions
) -> FieldsByCondition:
    """Measure a problem: the measured fields of a `Trace` by condition.

    Args:
        loaded: The model.
        prompts: The problem's prompts, the baseline first.
        record: Which measurements to make.
    """
    common, reference = common_tokens(prompts), None
    measured: FieldsByCondition = {}
    for condition, prompt in prompts.items():
        sets = query_sets(prompt, common[condition])
        captured = capture_attention(
            loaded,
            torch.from_numpy(prompt.token_ids).long(),
            positions=torch.from_numpy(prompt.positions).long(),
            request=CaptureRequest(
                query_sets=torch.from_numpy(sets),
                activations=record.activations,
                norms=record.norms,
                row_count=record.count_rows(prompt),
            ),
        )
        layers = captured.layers.values()  # ascending, as they are computed
        sums = torch.stack([layer.sums for layer in layers])
        fields = average_sums(prompt, sets, sums.cpu().numpy())
        fields["rows"] = torch.stack([layer.rows for layer in layers]).cpu().numpy()
        if captured.norms:
            norms = torch.stack([*captured.norms.values()]).cpu().numpy()
            # of the original tokens, because most tokens may be a filler's
            medians = np.median(norms[:, ~prompt.is_inserted], axis=1, keepdims=True)
            fields["norms"] = norms / medians
        if captured.activations is not None:
            problem = np.flatnonzero(common[condition] & prompt.has_role("problem"))
            activations = captured.activations[problem]
            # the thresholds of all conditions are those of the baseline
            reference = reference or ReferenceActivations.of(activations)
            texts = _read_texts(prompt, problem)
            numbers, histogram = measure_activations(activations, reference, texts)
            fields |= {"activations": numbers, "activation_histogram": histogram}
        measured[condition] = fields
    return measured


def _read_texts(prompt: TokenizedPrompt, positions: Integers) -> list[str]:
    """The texts of tokens; one that continues a character has its last part, for its class."""
    texts: list[str] = []
    for position in positions:
        text = prompt.tokens[position]
        if not text:  # it continues a character
            text = "".join(texts)[-1:]
        texts.append(text)
    return texts
