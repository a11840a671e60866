"""Interventions: changes inside the model while it answers under a condition, for any engine.

- `filler`: a token after a filler attends to original tokens and to the filler, so its attention
  output is `scale x original + bias`. The intervention switches either term off in some layers, and
  decides whether the other layers see the filler. If they do not, the filler is not in the prompt:
  positions after it are moved, and in Layer 1 its keys and values are added, which depend only on
  its tokens and their positions. With `keep`, later tokens see only some of the filler's tokens.
- `sink`: the first token, on which heads put the attention that they do not need (an attention
  sink), counts as if it stood there several times.
- `redistribute`: the activations of an MLP that are nearest to zero move outward. It follows ARM of
  Shi et al. (arXiv 2510.01032), which takes its statistics over a prompt. Here the statistics are
  of one token, as tokens come in chunks and from caches.
- `function`: activations are changed by a function of the user.
"""

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.constants import DEFAULT_SEED, JsonObject
from harness.errors import ConfigError, PromptMismatchError
from harness.layers_and_heads import parse_numbers
from harness.yaml_settings import Strict, UserPath

Resolved = JsonObject
"""An intervention on one prompt as plain values. Layers and token positions count from 0."""


Layers = Annotated[
    tuple[int, ...], Field(min_length=1), BeforeValidator(partial(parse_numbers, where="layers"))
]


def name_layers(layers: Sequence[int]) -> str:
    """The first and the last of some layers, such as `4-10`, or the only one."""
    return f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0])


class _Layered(Strict):
    layers: Layers
    """A number, `4-10`, or a list, from 1."""

    @property
    def layer_indices(self) -> list[int]:
        """The layers, counted from 0."""
        return [layer - 1 for layer in self.layers]


class FillerIntervention(_Layered):
    """Changes the attention of later tokens to the filler and its separator."""

    kind: Literal["filler"]
    """`filler`"""
    other_layers: bool = True
    """Other layers see the filler."""
    scale: bool = True
    """Original tokens get less weight, as with the filler."""
    bias: bool = True
    """The filler's values are added."""
    keep: Literal["first", "middle", "last"] | None = None
    """Later tokens see only these tokens of the filler: `first`, `middle` or `last`."""
    count: int = Field(default=1, ge=1)
    """The number of tokens to keep."""
    hide: Literal["filler", "examples"] = "filler"
    """With `keep`: the tokens that are hidden. `examples` is a sham: as many tokens of the
    examples, and all of the filler is seen."""

    @property
    def has_phantoms(self) -> bool:
        """Whether keys are added for a filler that is not in the prompt."""
        return not self.other_layers and (self.scale or self.bias)

    @model_validator(mode="after")
    def _check_switches(self) -> Self:
        if self.keep:
            if not (self.other_layers and self.scale and self.bias):
                raise ValueError("keep: expected no other_layers, scale or bias beside it")
            return self
        if self.hide != "filler" or self.count != 1:
            raise ValueError("count and hide: expected keep, one of first, middle, last")
        if self.other_layers and self.scale and self.bias:
            raise ValueError("other_layers, scale and bias are all on, which changes nothing")
        if self.has_phantoms and self.layers != (1,):
            raise ValueError(
                "other_layers is off, so scale and bias need Layer 1: "
                "later layers depend on earlier layers"
            )
        return self

    def resolve(
        self,
        location: str,
        prompt_ids: tuple[int, ...],
        baseline_ids: tuple[int, ...],
        filler_span: tuple[int, int] | None,
        example_span: tuple[int, int] | None = None,
    ) -> Resolved:
        """The intervention on one prompt.

        Args:
            location: The condition and the problem, for error messages.
            prompt_ids: The prompt's token ids.
            baseline_ids: The token ids of the same prompt without a filler.
            filler_span: The half-open range of the filler's positions.
            example_span: The half-open range of the examples' positions.

        Raises:
            PromptMismatchError: the prompt is not the baseline with consecutive tokens inserted, or
                has fewer tokens than are to be kept or hidden.
        """
        size = len(prompt_ids) - len(baseline_ids)
        first, last = filler_span or (0, 0)
        # the inserted separator stands after the filler or before it
        starts = [
            start
            for start in (first, last - size)
            # without these tokens the prompt must be the baseline's, token by token
            if prompt_ids[:start] + prompt_ids[start + size :] == baseline_ids
        ]
        if size <= 0 or not starts:
            raise PromptMismatchError(
                f"{location}: expected a filler of consecutive tokens, and without them the "
                "prompt of the baseline."
            )
        start = starts[0]
        resolved: dict[str, Any] = {
            "kind": self.kind,
            "layers": self.layer_indices,
            "start": start,
            "size": size,
            "scale": self.scale and not self.keep,
            "bias": self.bias and not self.keep,
        }
        if self.keep:
            kept = self._find_kept(location, first, last)
            if self.hide == "filler":
                return resolved | {"kept": kept}
            return resolved | _hide_examples(location, last - first - self.count, example_span)
        if self.other_layers:
            return resolved
        if self.has_phantoms:
            return resolved | {"phantom": list(prompt_ids[start : start + size])}
        # without both only the position gap remains, which is the same for all layers
        return resolved | {"layers": [], "phantom": []}

    def _find_kept(self, location: str, first: int, last: int) -> list[int]:
        """The half-open range of the tokens to keep, of a filler from `first` to before `last`."""
        spare = last - first - self.count
        if spare < 0:
            raise PromptMismatchError(
                f"{location}: keep: expected count up to the filler's {last - first} tokens, "
                f"got {self.count}."
            )
        kept = first + {"first": 0, "middle": spare // 2, "last": spare}[str(self.keep)]
        return [kept, kept + self.count]


def _hide_examples(
    location: str, size: int, example_span: tuple[int, int] | None
) -> dict[str, int]:
    """The range of the first tokens of the examples, as many as `keep` would hide of the filler."""
    start, end = example_span or (0, 0)
    if end - start < size:
        raise PromptMismatchError(
            f"{location}: hide: expected {size} tokens of examples, got {end - start}."
        )
    return {"start": start, "size": size}


class _SameOnAllPrompts(_Layered):
    def resolve(self, location: str, *_: object) -> Resolved:
        """The intervention on any prompt; `location` is for error messages."""
        return self.model_dump() | {"layers": self.layer_indices}


class SinkIntervention(_SameOnAllPrompts):
    """Counts the first token several times, as if its copies stood there: adds log(count)."""

    kind: Literal["sink"]
    """`sink`"""
    count: float = Field(gt=0, allow_inf_nan=False)
    """How many times the first token counts; below 1 it counts less."""


class RedistributeIntervention(_SameOnAllPrompts):
    """Moves the activations nearest to zero outward."""

    kind: Literal["redistribute"]
    """`redistribute`"""
    share: float = Field(gt=0, lt=1)
    """The share of a token's activations that moves."""
    sham: Literal["inward", "random"] | None = None
    """A control: the largest activations move `inward`, or `random` ones outward, by the same
    norm."""
    seed: int = DEFAULT_SEED
    """The seed of distances and random activations."""

    @model_validator(mode="after")
    def _check_sham(self) -> Self:
        if self.sham and self.share > 0.5:
            raise ValueError(
                f"sham moves as many others: expected share up to 0.5, got {self.share:g}"
            )
        return self


class FunctionIntervention(_SameOnAllPrompts):
    """Changes activations by `change(activations, positions, **arguments)` of a Python file."""

    kind: Literal["function"]
    """`function`"""
    file: UserPath
    """Its function gets activations [token, unit] and positions [token], perhaps of several
    prompts, and returns activations."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the function."""

    def resolve(self, location: str, *_: object) -> Resolved:
        """The intervention, which is the same on all prompts.

        Raises:
            ConfigError: the file cannot be read.
        """
        try:
            sha256 = hashlib.sha256(self.file.read_bytes()).hexdigest()
        except OSError as error:
            raise ConfigError(
                f"{location}: the function's file {self.file}: {error.strerror}."
            ) from None
        return {**super().resolve(location), "file": str(self.file.resolve()), "sha256": sha256}


CHANGES_ATTENTION = ("filler", "sink")
"""The kinds that change attention; the others change activations."""

Intervention = Annotated[
    FillerIntervention | SinkIntervention | RedistributeIntervention | FunctionIntervention,
    Field(discriminator="kind"),
]
