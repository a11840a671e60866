"""The definition of the probe's numbers: every measure and array of a trace, its axes and unit."""

from typing import NamedTuple

SHARE_UNIT = "share of one query's attention"


class Quantity(NamedTuple):
    """A recorded number.

    Attributes:
        definition: Its meaning, for readers of the documentation and of pages.
        unit: Its unit. Most numbers are shares of attention.
        axes: What it is recorded for. `layer` runs over the header's layers, `head` over all query
            heads.
    """

    definition: str
    unit: str = SHARE_UNIT
    axes: tuple[str, ...] = ("layer", "head")


MEASURES = {
    "mass_first": Quantity(
        "Mean attention on the first token of the sequence, which may be a filler's."
    ),
    "mass_instruction": Quantity(
        "Mean attention on the instruction, without the first token of the sequence."
    ),
    "mass_filler": Quantity(
        "Mean attention on the filler, without the first token of the sequence."
    ),
    "mass_problem": Quantity("Mean attention on the problem."),
    "mass_examples": Quantity(
        "Mean attention on the examples, without the separators between them."
    ),
    "mass_other": Quantity("Mean attention on everything else: template and separators."),
    "lambda": Quantity("Mean attention on the tokens that are not inserted.", "share"),
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

_TOKEN_AXES = ("position",)
_CURVE_AXES = ("layer", "head", "position")

ARRAYS = {
    "token_ids": Quantity("The prompt, as the model got it.", "vocabulary id", _TOKEN_AXES),
    "roles": Quantity("What each token belongs to.", "index into token_roles.ROLES", _TOKEN_AXES),
    "original_pos": Quantity(
        "The token's position without filler; -1 for inserted tokens.", "position", _TOKEN_AXES
    ),
    "positions": Quantity("The token's position in the model.", "position", _TOKEN_AXES),
    "mean_all": Quantity(
        "A key token's mean weight over all later queries: the published definition.",
        axes=_CURVE_AXES,
    ),
    "mean_common": Quantity(
        "The same over those later queries that the prompt without filler has.",
        axes=_CURVE_AXES,
    ),
    "rows": Quantity(
        "The weights of the last queries, the last token's at the end; none unless requested.",
        axes=("layer", "head", "query", "position"),
    ),
    "norms": Quantity(
        "Euclidean norm of a token's hidden state after the layer; empty unless requested.",
        "median of the original tokens",
        ("layer", "position"),
    ),
    "activation_histogram": Quantity(
        "See activations.measure_activations; empty unless requested.",
        "activations",
        ("bin",),
    ),
}
"""Every array of a trace. A mean over no query is NaN."""
