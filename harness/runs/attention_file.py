"""What a report shows of a folder of attention traces. The attention probe makes it, and the report draws it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionFile:
    """The mean curves of one folder of traces.

    Attributes:
        name: The file's name.
        model: The model's name, as in the run's receipt.
        figure: A panel for each head, titled with its label, such as `Layer 1 Head 12`.
        notes: Sentences that a reader must know about all its curves.
        prompts: The problem, the condition and the hash of each prompt that was traced.
        receipt: How the file was made.
    """

    name: str
    model: str
    figure: Figure
    notes: tuple[str, ...]
    prompts: tuple[tuple[str, str, str], ...]
    receipt: Mapping[str, Any]
