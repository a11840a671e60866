"""Attention curves for the report: plain numbers and words, which the attention probe makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanCurve:
    """One head's average attention weights over prompts, under one condition.

    Attributes:
        head: Its label, counted from 1, such as `Layer 1 Head 12`.
        condition: The condition.
        x: Positions of the original tokens.
        mean: Share of a query's attention at each of them.
        low: Lower end of the band; None at a position without one, or everywhere.
        high: Upper end.
        prompts: How many prompts went in.
    """

    head: str
    condition: str
    x: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float | None, ...] | None
    high: tuple[float | None, ...] | None
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCurves:
    """The curves of one prompt.

    Attributes:
        problem_id, condition: Of the prompt.
        prompt_sha256: Hash of the prompt's text. It finds the same prompt in the run.
        tokens: The tokens' texts.
        roles: The tokens' roles, such as `filler`.
        original_pos: The tokens' positions in the prompt without filler; -1 for tokens that it lacks.
        values: [head][token] Attention weights; None where undefined.
    """

    problem_id: str
    condition: str
    prompt_sha256: str
    tokens: tuple[str, ...]
    roles: tuple[str, ...]
    original_pos: tuple[int, ...]
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFile:
    """The curves of one folder of traces.

    Attributes:
        name: The file's name.
        model: The model's name, as in the run's receipt.
        layout: How the prompts were built.
        heads: Labels of the heads, in the order of the values.
        notes: Sentences that a reader must know about all its curves.
        means: Curves over all its prompts.
        prompts: Curves of single prompts.
        receipt: How the file was made.
    """

    name: str
    model: str
    layout: str
    heads: tuple[str, ...]
    notes: tuple[str, ...]
    means: tuple[MeanCurve, ...]
    prompts: tuple[PromptCurves, ...]
    receipt: Mapping[str, Any]
