"""One record of the probe, and what all records of a folder share. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention_probe.measure.definitions import ARRAYS, MEASURES
from harness.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceEntry:
    """What a record is about.

    Attributes:
        problem_id: Which problem of the source.
        condition: Under which condition.
        subject: The problem's subject, if it has one.
        level: The problem's level, if it has one.
        outcome: What became of the problem between the selection's two conditions, such as `wrong_to_right`.
        control: Whether it was chosen as an unflipped control.
        prompt_sha256: Hash of the prompt's text, as in the run.
        filler_span: Half-open positions of the filler; None without one.
    """

    problem_id: str
    condition: str
    subject: str | None = None
    level: int | None = None
    outcome: str | None = None
    control: bool = False
    prompt_sha256: str
    filler_span: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace(TraceEntry):
    """One prompt's first layers: see ARRAYS and MEASURES for axes and units of its arrays.

    Attributes:
        tokens: The text of each token, for people.
        measures: [layer, head] arrays by name; each name is in MEASURES.
        activations: First-MLP statistics of the problem's tokens, by name; see activations.ACTIVATION_MEASURES.
        self_check: Largest errors against other ways to compute the same, by name.

    Raises:
        ValueError: an array has another shape than the axes say, or a measure is not in MEASURES.
    """

    tokens: tuple[str, ...]
    token_ids: NDArray[np.int32]
    roles: NDArray[np.int8]
    original_pos: NDArray[np.int32]
    mean_all: NDArray[np.float32]
    mean_common: NDArray[np.float32]
    count_all: NDArray[np.int32]
    count_common: NDArray[np.int32]
    value_norm: NDArray[np.float32]
    activation_histogram: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    measures: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    activations: Mapping[str, float] = field(default_factory=dict)
    self_check: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = dict(zip(("layer", "head", "position"), self.mean_all.shape, strict=True))
        sizes["bin"] = self.activation_histogram.size
        axes = {name: axes for name, (axes, _) in ARRAYS.items()} | dict.fromkeys(self.measures, ("layer", "head"))
        for name, values in self.arrays.items():
            if name not in ARRAYS and name not in MEASURES:
                raise ValueError(f"{name} is not in MEASURES: give it a unit and a definition there")
            if values.shape != (expected := tuple(sizes[axis] for axis in axes[name])):
                raise ValueError(f"{name} has the shape {values.shape}, expected {axes[name]} = {expected}")
        if len(self.tokens) != sizes["position"]:
            raise ValueError(f"{len(self.tokens)} token texts for {sizes['position']} tokens")

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name, the measures among them."""
        return {name: getattr(self, name) for name in ARRAYS} | dict(self.measures)

    @property
    def facts(self) -> dict[str, Any]:
        """What is no array, by name."""
        return {name: getattr(self, name) for name in FACTS}


FACTS = tuple(one.name for one in fields(Trace) if one.name not in (*ARRAYS, "measures"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What all traces of one folder share; records of another kind are refused.

    Attributes:
        model: The model's name.
        fingerprint: What identifies the weights that were loaded.
        layers: Recorded decoder layers, ascending from 0.
        head_count: Query heads of a layer.
        conditions: In the order in which figures show them; may grow when a folder is continued.
        baseline: The condition that `original_pos` and the common queries refer to.
        layout: How the prompts were built.
        queries: `prompt`, or `completion` where the recorded completion was read too.
        dtype: What the model was run in.
        options: What else decides the numbers: decomposition, activation thresholds, windows.
        on_outcome: The problems were chosen by what became of them.
    """

    model: str
    fingerprint: Mapping[str, Any] = field(default_factory=dict)
    layers: tuple[int, ...]
    head_count: int
    conditions: tuple[str, ...]
    baseline: str = "wo"
    layout: str = "raw"
    queries: str = "prompt"
    dtype: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)
    on_outcome: bool = False

    def __post_init__(self) -> None:
        if not self.layers or list(self.layers) != sorted(set(self.layers)) or self.layers[0] < 0:
            raise ValueError(f"layers must be ascending indices from 0, got {self.layers}")
        if self.head_count < 1:
            raise ValueError(f"head_count must be at least 1, got {self.head_count}")

    @property
    def stamps(self) -> tuple[str, ...]:
        """What must be said wherever numbers of these traces are shown."""
        return ("selected on outcome",) if self.on_outcome else ()

    def layer_index(self, layer: int) -> int:
        """Where a layer stands on the layer axis.

        Raises:
            ConfigError: it was not recorded.
        """
        if layer not in self.layers:
            known = ", ".join(f"{number} (Layer {number + 1})" for number in self.layers)
            raise ConfigError(
                f"layer {layer} (Layer {layer + 1}) is not in these traces; they hold {known}. Ask for one of these, "
                "or probe again with --layers."
            )
        return self.layers.index(layer)

    def check_head(self, head: int) -> int:
        """The head, if the model has it.

        Raises:
            ConfigError: the model does not have it.
        """
        if not 0 <= head < self.head_count:
            raise ConfigError(
                f"head {head} (Head {head + 1}) does not exist: the model has heads 0 to {self.head_count - 1} "
                f"(Head 1 to Head {self.head_count}). Ask for one of these."
            )
        return head
