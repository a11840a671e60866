"""The attention that pages show: read by the attention probe, drawn by the pages' script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.constants import JsonObject


@dataclass(frozen=True, kw_only=True)
class AttentionView:
    """What the interactive view shows of one model.

    Attributes:
        facts: Names, notes, layers, heads, conditions, and the measures of heads by problem.
        prompts: For each problem, the packed prompts of all conditions.
        model: The model's name, as in the run's receipt.
        hashes: The problem, the condition and the hash of each traced prompt.
        receipt: The provenance of the traces.
    """

    facts: JsonObject
    prompts: Sequence[str]
    model: str = ""
    hashes: Sequence[tuple[str, str, str]] = ()
    receipt: Mapping[str, Any] = field(default_factory=dict)
