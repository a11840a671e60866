"""The attention curves that a report shows: made by the attention probe, drawn by the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.constants import JsonObject

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionView:
    """What the interactive view shows of one model.

    Attributes:
        facts: Names, notes, layers, heads, conditions, and the measures of heads by problem.
        prompts: For each problem, the packed prompts of all conditions.
    """

    facts: JsonObject
    prompts: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionFile:
    """The mean curves of a folder of traces.

    Attributes:
        name: The file's name.
        model: The model's name, as in the run's receipt.
        figure: A panel for each head, titled with its label, such as `Layer 1 Head 12`.
        view: The interactive view of its prompts.
        prompts: The problem, the condition and the hash of each traced prompt.
        receipt: The provenance of the file.
    """

    name: str
    model: str
    figure: Figure
    view: AttentionView
    prompts: tuple[tuple[str, str, str], ...]
    receipt: Mapping[str, Any]
