"""Interventions: what is done inside the model while it answers under a condition. This module knows no engine.

- `filler`: a token behind a filler attends to original tokens and to the filler, so its attention output is
  `scale x original + bias`. The intervention switches either part off in some layers, and decides whether the other
  layers see the filler. Where they do not, the filler is not in the prompt: positions after it are moved, and in
  Layer 1 its keys and values are added, which depend on nothing but its tokens and their positions.
- `redistribute`: for each token, the activations of an MLP that are nearest to zero move outward. It follows ARM of
  Shi et al. (arXiv 2510.01032), which takes its statistics over a whole prompt; here they are of one token, as tokens
  come in chunks and from caches.
- `function`: activations are changed by a function of the user's own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.constants import DEFAULT_SEED
from harness.errors import ConfigError, PromptMismatchError
from harness.layers_and_heads import parse_numbers
from harness.yaml_settings import Strict

Resolved = Mapping[str, Any]
"""An intervention on one prompt, plain values: layers count from 0, and tokens are named by their place."""


Layers = Annotated[
    tuple[int, ...], Field(min_length=1), BeforeValidator(partial(parse_numbers, where="layers"))
]


class _Layered(Strict):
    layers: Layers
    """The layers, counted from 1: a number, `4-10`, or a list. `layer` is the same."""

    @model_validator(mode="before")
    @classmethod
    def _one_layer(cls, values: Any) -> Any:
        if isinstance(values, dict) and "layer" in values and "layers" not in values:
            values = {("layers" if key == "layer" else key): value for key, value in values.items()}
        return values

    @property
    def numbers(self) -> list[int]:
        """The layers, counted from 0."""
        return [layer - 1 for layer in self.layers]


class FillerIntervention(_Layered):
    """Attention to the filler, part by part, for the tokens behind it. The filler's separator counts as filler."""

    kind: Literal["filler"]
    """`filler`"""
    other_layers: bool = True
    """Whether the other layers see the filler."""
    scale: bool = True
    """Whether original tokens get less weight, as they do beside a filler."""
    bias: bool = True
    """Whether the filler's values are added."""

    @property
    def cell(self) -> dict[str, Any]:
        """The layers, and which switches are on: whether other layers see the filler, scale, bias."""
        first, last = self.layers[0], self.layers[-1]
        layers = str(first) if first == last else f"{first}-{last}"
        return {"layers": layers, "on": [self.other_layers, self.scale, self.bias]}

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.other_layers and self.scale and self.bias:
            raise ValueError("other_layers, scale and bias are all on: that changes nothing")
        if not self.other_layers and (self.scale or self.bias) and self.layers != (1,):
            raise ValueError(
                "other_layers is off, so scale and bias need Layer 1: later layers depend on what is below"
            )
        return self


class RedistributeIntervention(_Layered):
    """Activations nearest to zero move outward, token by token."""

    kind: Literal["redistribute"]
    """`redistribute`"""
    share: float = Field(gt=0, lt=1)
    """Which share of a token's activations moves."""
    sham: Literal["inward", "random"] | None = None
    """As many others, as far: the largest `inward`, or `random` ones outward."""
    seed: int = DEFAULT_SEED
    """Draws how far each moves, and which."""


class FunctionIntervention(_Layered):
    """Activations changed by `change(activations, positions, **arguments)` of a Python file."""

    kind: Literal["function"]
    """`function`"""
    file: Path
    """The file. Its function gets [token, unit] and [token], perhaps of several prompts, and
    returns the first changed."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What else the function gets."""


Intervention = Annotated[
    FillerIntervention | RedistributeIntervention | FunctionIntervention,
    Field(discriminator="kind"),
]


def resolve(
    change: FillerIntervention | RedistributeIntervention | FunctionIntervention,
    where: str,
    *,
    with_filler: Sequence[int],
    without: Sequence[int],
    filler: tuple[int, int] | None,
) -> Resolved:
    """The intervention on one prompt.

    Args:
        change: The intervention.
        where: The prompt, for a message.
        with_filler: The prompt's token ids.
        without: Those of the same prompt without a filler.
        filler: Where the filler's tokens are.

    Raises:
        ConfigError: the file of a function cannot be read.
        PromptMismatchError: the filler is not one run of tokens without which the other prompt is left.
    """
    layers = change.numbers
    if isinstance(change, FunctionIntervention):
        try:
            sha256 = hashlib.sha256(change.file.read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(
                f"{where}: the function's file {change.file}: {error.strerror}."
            ) from None
        return {
            "kind": change.kind,
            "layers": layers,
            "file": str(change.file.resolve()),
            "sha256": sha256,
        } | ({"arguments": change.arguments})
    if isinstance(change, RedistributeIntervention):
        how = {"share": change.share, "sham": change.sham, "seed": change.seed}
        return {"kind": change.kind, "layers": layers, **how}
    size, (first, last) = len(with_filler) - len(without), filler or (0, 0)
    starts = [
        one
        for one in (first, last - size)
        if tuple(with_filler[:one]) + tuple(with_filler[one + size :]) == tuple(without)
    ]
    if size <= 0 or not starts:
        raise PromptMismatchError(
            f"{where}: the filler is not one run of tokens whose removal leaves the baseline's."
        )
    start, parts = starts[0], {"scale": change.scale, "bias": change.bias}
    if change.other_layers:
        return {"kind": change.kind, "layers": layers, "start": start, "size": size, **parts}
    seen = change.scale or change.bias  # without either it is the gap alone, whatever the layer
    phantom = list(with_filler[start : start + size]) if seen else []
    return {
        "kind": change.kind,
        "layers": layers if seen else [],
        "start": start,
        "size": size,
        **parts,
    } | ({"phantom": phantom})
