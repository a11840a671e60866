"""Run a problem under all conditions, and compute all measured fields of its traces."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probe.measure.activations import ActivationReference, measure_activations
from attention_probe.model.attention_statistics import CaptureRequest
from attention_probe.model.capture import capture_attention
from attention_probe.model.first_layers import LoadedModel
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt, common_tokens
from harness.array_types import Integers
from harness.engines.attention_sums import Weights, average_weights
from harness.engines.engine_processes import SETS_WITHOUT_OWN_TOKEN
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS, find_region_indices
from harness.layers_and_heads import count_rows

FieldsByCondition = dict[str, dict[str, Any]]
"""The measured fields of the `Trace` of each of a problem's prompts, by condition."""

QUERY_SET_COUNT = 3
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
            count_rows(self.rows, 0)  # raises the error about a text that names no rows

    def count_rows(self, prompt: TokenizedPrompt) -> int:
        """The number of the prompt's last queries whose weights are stored."""
        if self.rows is None:
            return 0
        return count_rows(self.rows, len(prompt))


QuerySets = NDArray[np.bool_]
"""[query set, token] Which tokens are queries of each set; `query_sets` makes it."""


def query_sets(prompt: TokenizedPrompt, is_common: NDArray[np.bool_]) -> QuerySets:
    """The sets of queries over which attention is averaged.

    They are all queries; the common ones, which are tokens that the prompts of all conditions
    share; and the problem's tokens among these.
    """
    return np.stack([np.ones_like(is_common), is_common, is_common & prompt.has_role("problem")])


def average_sums(prompt: TokenizedPrompt, sets: QuerySets, sums: Weights) -> dict[str, Any]:
    """The measured fields of a `Trace`, from sums [layer, set, head, key] over `query_sets`.

    The first two sets give the mean weight of each token. The last one gives the masses: the mean
    attention on each region, and on all original (not inserted) tokens together.
    """
    curves = average_weights(sums[:, :SETS_WITHOUT_OWN_TOKEN], sets[:SETS_WITHOUT_OWN_TOKEN])
    # [region, token] Regions do not overlap, so a query's masses on them add up to 1.
    is_in_region = find_region_indices(prompt.roles) == np.arange(len(TOKEN_REGIONS))[:, None]
    region_masks = np.vstack([is_in_region, ~prompt.is_inserted]).astype(np.float32)
    # [layer, head, region] over the problem's queries. Unlike the other sets this one includes the
    # diagonal: in a mass, a query's attention to its own token counts. No query is left if the
    # tokenizer merged every token of the problem with text beside it, and 0 / 0 is then NaN.
    with np.errstate(invalid="ignore"):
        masses = sums[:, -1] @ region_masks.T / np.float32(sets[-1].sum())
    *region_masses, original_mass = np.moveaxis(masses, -1, 0)
    mass_names = [f"mass_{name}" for name in TOKEN_REGIONS]
    return {
        "mean_all": curves[:, 0],
        "mean_common": curves[:, 1],
        "measures": dict(zip(mass_names, region_masses, strict=True)) | {"lambda": original_mass},
    }


def measure_problem(
    loaded_model: LoadedModel, prompts: PromptsByCondition, options: MeasurementOptions
) -> FieldsByCondition:
    """Measure a problem: the measured fields of a `Trace` by condition.

    Args:
        loaded_model: The model.
        prompts: The problem's prompts, the baseline first.
        options: Which measurements to make.
    """
    common_by_condition, reference = common_tokens(prompts), None
    fields_by_condition: FieldsByCondition = {}
    for condition, prompt in prompts.items():
        sets = query_sets(prompt, common_by_condition[condition])
        statistics = capture_attention(
            loaded_model,
            torch.from_numpy(prompt.token_ids).long(),
            positions=torch.from_numpy(prompt.positions).long(),
            request=CaptureRequest(
                query_sets=torch.from_numpy(sets),
                activations=options.activations,
                norms=options.norms,
                row_count=options.count_rows(prompt),
            ),
        )
        layers = statistics.layers.values()  # ascending, as they are computed
        sums = torch.stack([layer.sums for layer in layers])
        fields = average_sums(prompt, sets, sums.cpu().numpy())
        fields["rows"] = torch.stack([layer.rows for layer in layers]).cpu().numpy()
        if statistics.norms:
            norms = torch.stack([*statistics.norms.values()]).cpu().numpy()
            # norms are relative to those of the original tokens, because most may be a filler's
            medians = np.median(norms[:, ~prompt.is_inserted], axis=1, keepdims=True)
            fields["norms"] = norms / medians
        if statistics.activations is not None:
            positions = np.flatnonzero(common_by_condition[condition] & prompt.has_role("problem"))
            activations = statistics.activations[positions]
            # The baseline comes first, and its thresholds serve for all conditions.
            if reference is None:
                reference = ActivationReference.of(activations)
            texts = _read_texts(prompt, positions)
            activation_measures, histogram = measure_activations(activations, reference, texts)
            fields |= {"activations": activation_measures, "activation_histogram": histogram}
        fields_by_condition[condition] = fields
    return fields_by_condition


def _read_texts(prompt: TokenizedPrompt, positions: Integers) -> list[str]:
    """The texts of tokens; a token that continues a character has that character as its text."""
    texts: list[str] = []
    for position in positions:
        text = prompt.tokens[position]
        if not text:
            text = "".join(texts)[-1:]
        texts.append(text)
    return texts
