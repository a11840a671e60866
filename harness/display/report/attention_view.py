"""The interactive view of attention: what its script gets, packed for the page.

The script shows elements: a token, or the tokens that share a character, or a run of filler tokens
as a whole, which stands before its tokens. A weight w is one byte, the rounded value of
WEIGHT_LEVELS sqrt(w), so that small weights are stored more precisely than large ones.
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.constants import JsonObject
from harness.display.figures.figure_style import STYLES, choose_styles
from harness.display.report.page_template import fill_template
from harness.display.report.report_samples import pack
from harness.display.value_texts import label
from harness.experiment.prompts.built_prompts import (
    FILLER_INDEX,
    TOKEN_REGIONS,
    TOKEN_ROLES,
    find_region_indices,
)

Array = NDArray[Any]
"""An array of numbers. Its axes stand in brackets, such as [layer, head, key]."""

WEIGHT_LEVELS, UNSEEN_LEVEL = 254, 255
"""The byte of the weight 1, and that of a key (an attended token) which the query does not see."""

PALETTE = tuple(style.colour for style in STYLES.values())
"""The colours of conditions and the spare ones: `--s0`, `--s1` and so on in the style sheet."""

MASS_DIGITS = 5
"""Digits after the point of the attention on a region."""


def describe_conditions(names: Sequence[str]) -> list[JsonObject]:
    """Name, label and colour (`slot`) of each condition, in their order."""
    return [
        {"name": name, "label": label(name), "slot": PALETTE.index(style.colour)}
        for name, style in choose_styles(names).items()
    ]


class AttentionView(NamedTuple):
    """What the page shows of one model.

    Attributes:
        facts: Names, notes, layers, heads, conditions, and the measures of heads by problem.
        prompts: For each problem, the packed prompts of all conditions.
        receipt: The provenance of the traces.
    """

    facts: JsonObject
    prompts: Sequence[str]
    receipt: Mapping[str, Any] = {}


def make_page(views: Sequence[AttentionView]) -> str:
    """One HTML file with these views."""
    facts = {
        "views": [view.facts for view in views],
        "regions": TOKEN_REGIONS,
        "roles": TOKEN_ROLES,
        "levels": WEIGHT_LEVELS,
        "missing": UNSEEN_LEVEL,
    }
    return fill_template(
        "attention_page.html.jinja",
        {
            "title": " + ".join(view.facts["name"] for view in views),
            "attention_facts": pack(facts),
            "attention_prompts": [*chain.from_iterable(view.prompts for view in views)],
            "receipts": [
                (view.facts["name"], json.dumps(view.receipt, indent=1))
                for view in views
                if view.receipt
            ],
        },
    )


def describe_prompt(
    tokens: Sequence[str],
    mean_weights: Array,
    query_weights: Array,
    roles: NDArray[np.int8],
    original_positions: Array,
) -> JsonObject:
    """The elements of a prompt with their weights, as the page's script reads them.

    The first query is the mean over later queries, and the last queries of the prompt follow.
    `layers` has the elements' weights from `_pack_weights`, one text for each layer. `sums` has the
    weights of all tokens of each region as numbers [layer, head, query, region], because
    differences of bytes would be as large as the changes that they are to show.

    Args:
        tokens: Their texts, from `token_texts`.
        mean_weights: [layer, head, key] Those of the mean query; NaN where there is no later query.
        query_weights: [layer, head, query, key] Those of the last queries; no layer without
            queries.
        roles: Indices into TOKEN_ROLES.
        original_positions: The number that a token shares with the same token under other
            conditions; below 0 if there is none.
    """
    elements = np.array([*_list_elements(tokens, roles)])
    starts, ends = elements.T
    query_count = query_weights.shape[2]
    key_positions = np.arange(len(tokens))
    # the mean sees every key, as if its query came after the prompt
    query_positions = np.array([len(tokens), *key_positions[len(tokens) - query_count :]])
    # [query, key] whether the key comes after the query, which therefore does not see it
    is_later_key = key_positions > query_positions[:, None]
    # [key, region] 1 where the region has the key, else 0
    region_masks = np.eye(len(TOKEN_REGIONS))[find_region_indices(roles)]
    packed_layers = []
    region_sums = []
    for layer, layer_means in enumerate(mean_weights):
        # [head, query, key]
        all_weights = layer_means[:, None]
        # without queries, `query_weights` has no layer
        if query_count:
            all_weights = np.concatenate([all_weights, query_weights[layer]], axis=1)
        is_unseen = is_later_key | np.isnan(all_weights)
        seen_weights = np.where(is_unseen, 0, all_weights.astype(np.float64))
        region_sums.append((seen_weights @ region_masks).round(MASS_DIGITS).tolist())
        packed_layers.append(_pack_weights(seen_weights, is_unseen, elements))
    return {
        "text": ["".join(tokens[start:end]) for start, end in elements],
        "role": roles[starts].tolist(),
        "original": original_positions[starts].tolist(),
        "position": starts.tolist(),
        "size": (ends - starts).tolist(),
        "tokens": len(tokens),
        "rows": query_count,
        "layers": packed_layers,
        "sums": region_sums,
    }


def _pack_weights(weights: Array, is_unseen: Array, elements: Array) -> str:
    """The bytes of one layer's weights [head, query, element], in base64.

    An element's weight is the sum of the weights of its tokens. The element is unseen if its first
    token is.

    Args:
        weights: [head, query, key] With 0 for unseen keys.
        is_unseen: [head, query, key] Whether the query does not see the key.
        elements: From `_list_elements`.
    """
    starts, ends = elements.T
    # [head, query, key + 1] With 0 in front, the sum of an element's tokens is the cumulated sum at
    # its end less that at its start.
    cumulated_sums = np.pad(weights.cumsum(axis=-1), ((0, 0), (0, 0), (1, 0)))
    element_weights = cumulated_sums[..., ends] - cumulated_sums[..., starts]
    levels = np.rint(WEIGHT_LEVELS * np.sqrt(element_weights.clip(0, 1))).astype(np.uint8)
    levels[is_unseen[..., starts]] = UNSEEN_LEVEL
    return base64.b64encode(levels.tobytes()).decode()


def _list_elements(tokens: Sequence[str], roles: NDArray[np.int8]) -> Iterator[tuple[int, int]]:
    """The range of each element in the order of the prompt: its first token, and one past its last.

    A run of filler tokens is one element, which comes before those of its tokens.
    """
    # a token without text continues the character of the token before it
    starts = [index for index, token in enumerate(tokens) if token or index == 0]
    elements = zip(starts, [*starts[1:], len(tokens)], strict=True)
    for role, group in groupby(elements, key=lambda element: roles[element[0]]):
        role_elements = list(group)
        if role == FILLER_INDEX:
            # the page also has the whole run as one element, before those of its tokens
            yield role_elements[0][0], role_elements[-1][1]
        yield from role_elements
