"""The definition of the probe's numbers: every measure and array of a trace, its axes and unit."""

from typing import NamedTuple


class Quantity(NamedTuple):
    """A recorded number. `layer` runs over the header's layers, `head` over all query heads."""

    unit: str
    definition: str
    axes: tuple[str, ...] = ("layer", "head")


SHARE = "share of one query's attention"
_OF_OUTPUT = "share of |o_wo|"

MEASURES: dict[str, Quantity] = {
    "mass_first": Quantity(
        SHARE, "Mean attention on the first token of the sequence, which may be a filler's."
    ),
    "mass_instruction": Quantity(
        SHARE, "Mean attention on the instruction, without the first token of the sequence."
    ),
    "mass_filler": Quantity(
        SHARE, "Mean attention on the filler, without the first token of the sequence."
    ),
    "mass_problem": Quantity(SHARE, "Mean attention on the problem."),
    "mass_completion": Quantity(
        SHARE, "Mean attention on the completion; 0 for a prompt's queries, which precede it."
    ),
    "mass_other": Quantity(
        SHARE, "Mean attention on everything else: template, separators, examples."
    ),
    "lambda": Quantity(
        "share", "1 - m, the factor of the attention on the tokens that are not inserted."
    ),
    "position_shift": Quantity(
        _OF_OUTPUT, "Mean |o_gap - o_wo| / |o_wo|: how far moved positions move the output."
    ),
    "scale": Quantity(
        _OF_OUTPUT, "Mean |m o_gap| / |o_wo|: how far the scaling by 1 - m moves the output."
    ),
    "bias": Quantity(
        _OF_OUTPUT, "Mean |b| / |o_wo|, b = what the inserted tokens add to the output."
    ),
    "bias_cosine": Quantity(
        "cosine", "Mean cosine of b with o_gap; every query has the same weight."
    ),
    "bias_relative_norm": Quantity("share of |o_gap|", "Mean |b| / |o_gap|."),
}
"""Every measure of a head, by name. All are means over the same queries in every condition: the
problem's tokens. With `--queries completion` they are means over the completion's tokens, which
differ between conditions. Queries before a filler within or after the problem do not see it: their
attention on it counts as 0, and they have no cosine.

The six masses add up to 1; m is the mass on all inserted tokens, the filler and its separator. o is
a head's output, b the inserted tokens' contribution to it, and the gap is the prompt without the
inserted tokens, in which later tokens keep their shifted positions. Then
o_with - o_wo = (o_gap - o_wo) + (-m o_gap) + b, which is exact in the first layer.
"""

_TOKEN, _CURVE = ("position",), ("layer", "head", "position")

ARRAYS: dict[str, Quantity] = {
    "token_ids": Quantity("vocabulary id", "The prompt, as the model got it.", _TOKEN),
    "roles": Quantity("index into token_roles.ROLES", "What each token belongs to.", _TOKEN),
    "original_pos": Quantity(
        "position", "The token's position without filler; -1 for inserted tokens.", _TOKEN
    ),
    "mean_all": Quantity(
        SHARE, "A key token's mean weight over all later queries: the published definition.", _CURVE
    ),
    "mean_common": Quantity(
        SHARE, "The same over those later queries that the prompt without filler has.", _CURVE
    ),
    "rows": Quantity(
        SHARE,
        "The weights of the last queries, the last token's at the end; none unless requested.",
        ("layer", "head", "query", "position"),
    ),
    "activation_histogram": Quantity(
        "activations",
        "See measure_activations.measure_activations; empty unless requested.",
        ("bin",),
    ),
}
"""Every array of a trace. A mean over no query is NaN."""

ONLY_OF_A_FILLER = {"mass_filler", "lambda", "position_shift", "scale", "bias"}
"""Measures that are 0 without a filler (`lambda` 1)."""
GUARANTEED = {name for name in MEASURES if name.startswith("mass_")} | ONLY_OF_A_FILLER
"""Measures whose contrast between a prompt with filler and one without is no finding. Softmax takes
the filler's mass from the other tokens whatever is inserted, later positions shift by its length
(so that the mass of a single region may even grow), and a norm that is 0 without filler can only
grow.
Between two fillers they are findings."""
