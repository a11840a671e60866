"""Run a problem under all conditions, and compute all measured fields of its traces.

A query is a token that attends, and a key a token that receives attention. The common tokens of a
prompt are those that the problem's prompts of all conditions share.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from attention_probe.measure.activations import BaselineStatistics, measure_activations
from attention_probe.model.attention_statistics import Capture, CaptureRequest
from attention_probe.model.capture import capture_attention
from attention_probe.model.first_layers import LoadedModel
from attention_probe.prompts.token_roles import PromptsByCondition, TokenizedPrompt, common_masks
from harness.array_types import Integers
from harness.engines.attention_sums import Weights, average_weights
from harness.engines.engine_processes import SETS_WITHOUT_OWN_TOKEN
from harness.experiment.prompts.built_prompts import TOKEN_REGIONS, find_region_indices
from harness.layers_and_heads import count_rows

FieldsByCondition = dict[str, dict[str, Any]]
"""The measured fields of the `Trace` of each of a problem's prompts, by condition."""

QUERY_SET_COUNT = 3
"""The number of sets that `select_queries` makes."""


@dataclass(frozen=True)
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
        count_rows(self.rows, 0)  # raises an error if the text names no rows

    def count_rows(self, prompt: TokenizedPrompt) -> int:
        """The number of the prompt's last queries whose weights are stored."""
        return count_rows(self.rows, len(prompt))


QuerySets = NDArray[np.bool_]
"""[query set, token] Which tokens are queries of each set; `select_queries` makes it."""


def select_queries(prompt: TokenizedPrompt, is_common: NDArray[np.bool_]) -> QuerySets:
    """The three sets of queries over which attention is averaged.

    1. All tokens.
    2. The common tokens.
    3. The common tokens of the problem.
    """
    return np.stack([np.ones_like(is_common), is_common, is_common & prompt.has_role("problem")])


def attention_fields(prompt: TokenizedPrompt, sets: QuerySets, sums: Weights) -> dict[str, Any]:
    """The measured fields of a `Trace`, from the sums of attention over `select_queries`.

    The first two sets give the mean weight of each token. The last one gives the masses: the mean
    attention on each region, and on all original (not inserted) tokens together (`lambda`). A
    query's attention to its own token counts only in masses.

    Args:
        prompt: The prompt.
        sets: [set, token] Those of `select_queries`.
        sums: [layer, set, head, key] The sums of weights over the queries of each set.
    """
    curves = average_weights(sums[:, :SETS_WITHOUT_OWN_TOKEN], sets[:SETS_WITHOUT_OWN_TOKEN])
    # [region, token] Regions do not overlap, so a query's masses on them add up to 1.
    is_in_region = find_region_indices(prompt.roles) == np.arange(len(TOKEN_REGIONS))[:, None]
    region_masks = np.vstack([is_in_region, ~prompt.is_inserted]).astype(np.float32)
    # The last set has no query if the tokenizer merged every token of the problem with text beside
    # it. Then 0 / 0 is NaN.
    with np.errstate(invalid="ignore"):
        masses = sums[:, -1] @ region_masks.T / np.float32(sets[-1].sum())
    # `masses` is [layer, head, region], and each region becomes a field
    mass_names = [*(f"mass_{name}" for name in TOKEN_REGIONS), "lambda"]
    return {
        "mean_all": curves[:, 0],
        "mean_common": curves[:, 1],
        "measures": dict(zip(mass_names, np.moveaxis(masses, -1, 0), strict=True)),
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
    is_common_by_condition = common_masks(prompts)
    fields_by_condition = {}
    baseline_statistics = None
    for condition, prompt in prompts.items():
        sets = select_queries(prompt, is_common_by_condition[condition])
        capture = capture_attention(
            loaded_model,
            torch.from_numpy(prompt.token_ids).long(),
            positions=torch.from_numpy(prompt.positions).long(),
            request=CaptureRequest(
                query_sets=torch.from_numpy(sets),
                keeps_activations=options.activations,
                keeps_norms=options.norms,
                row_count=options.count_rows(prompt),
            ),
        )
        fields = _measure_attention(prompt, sets, capture)
        if capture.activations is not None:
            # the last set is the problem's common tokens, which the prompts of all conditions have
            positions = np.flatnonzero(sets[-1])
            activations = capture.activations[positions]
            # the first prompt is the baseline's, whose threshold and bins serve for all conditions
            if baseline_statistics is None:
                baseline_statistics = BaselineStatistics.of(activations)
            fields["activations"], fields["activation_histogram"] = measure_activations(
                activations, baseline_statistics, _read_texts(prompt, positions)
            )
        fields_by_condition[condition] = fields
    return fields_by_condition


def _measure_attention(
    prompt: TokenizedPrompt, sets: QuerySets, capture: Capture
) -> dict[str, Any]:
    """The fields of attention and of the norms of hidden states, which are recorded by layer."""
    layers = capture.layers.values()  # ascending, as they are computed
    sums = torch.stack([layer.sums for layer in layers])
    fields = attention_fields(prompt, sets, sums.cpu().numpy())
    fields["rows"] = torch.stack([layer.rows for layer in layers]).cpu().numpy()
    if capture.norms:
        norms = torch.stack([*capture.norms.values()]).cpu().numpy()
        # norms are relative to those of the original tokens, because most may be a filler's
        fields["norms"] = norms / np.median(norms[:, ~prompt.is_inserted], axis=1, keepdims=True)
    return fields


def _read_texts(prompt: TokenizedPrompt, positions: Integers) -> list[str]:
    """The texts of tokens; a token that continues a character has that character as its text."""
    texts: list[str] = []
    for position in positions:
        # the text is empty if the token continues the last character before it
        texts.append(prompt.tokens[position] or "".join(texts)[-1:])
    return texts
