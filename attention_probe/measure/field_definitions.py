"""The definition of the probe's numbers: every measure and array of a trace, its axes and unit."""

from typing import NamedTuple


class Quantity(NamedTuple):
    """A recorded number.

    Attributes:
        unit: Its unit.
        definition: Its meaning, for readers of the documentation and of pages.
        axes: What it is recorded for. `layer` runs over the header's layers, `head` over all query
            heads.
    """

    unit: str
    definition: str
    axes: tuple[str, ...] = ("layer", "head")


SHARE_UNIT = "share of one query's attention"

MEASURES = {
    "mass_first": Quantity(
        SHARE_UNIT, "Mean attention on the first token of the sequence, which may be a filler's."
    ),
    "mass_instruction": Quantity(
        SHARE_UNIT, "Mean attention on the instruction, without the first token of the sequence."
    ),
    "mass_filler": Quantity(
        SHARE_UNIT, "Mean attention on the filler, without the first token of the sequence."
    ),
    "mass_problem": Quantity(SHARE_UNIT, "Mean attention on the problem."),
    "mass_examples": Quantity(
        SHARE_UNIT, "Mean attention on the examples, without the separators between them."
    ),
    "mass_other": Quantity(
        SHARE_UNIT, "Mean attention on everything else: template and separators."
    ),
    "lambda": Quantity("share", "Mean attention on the tokens that are not inserted."),
}
"""Every measure of a head, by name. All are means over the same queries in every condition: the
problem's tokens. Queries before a filler within or after the problem do not see it: their
attention on it counts as 0.

Without an intervention the six masses add up to 1, and `lambda` is 1 - m, with m the mass on all
inserted tokens: the filler and its separator. The contrast of a prompt with filler and one without
is not a finding: softmax takes the filler's mass from the other tokens whatever is inserted, and
later positions shift by its length (so that the mass of a single region may even grow). A contrast
between two fillers can be a finding.
"""

_TOKEN_AXES, _CURVE_AXES = ("position",), ("layer", "head", "position")

ARRAYS = {
    "token_ids": Quantity("vocabulary id", "The prompt, as the model got it.", _TOKEN_AXES),
    "roles": Quantity("index into token_roles.ROLES", "What each token belongs to.", _TOKEN_AXES),
    "original_pos": Quantity(
        "position", "The token's position without filler; -1 for inserted tokens.", _TOKEN_AXES
    ),
    "positions": Quantity("position", "The token's position in the model.", _TOKEN_AXES),
    "mean_all": Quantity(
        SHARE_UNIT,
        "A key token's mean weight over all later queries: the published definition.",
        _CURVE_AXES,
    ),
    "mean_common": Quantity(
        SHARE_UNIT,
        "The same over those later queries that the prompt without filler has.",
        _CURVE_AXES,
    ),
    "rows": Quantity(
        SHARE_UNIT,
        "The weights of the last queries, the last token's at the end; none unless requested.",
        ("layer", "head", "query", "position"),
    ),
    "norms": Quantity(
        "median of the original tokens",
        "Euclidean norm of a token's hidden state after the layer; empty unless requested.",
        ("layer", "position"),
    ),
    "activation_histogram": Quantity(
        "activations",
        "See activations.measure_activations; empty unless requested.",
        ("bin",),
    ),
}
"""Every array of a trace. A mean over no query is NaN."""
