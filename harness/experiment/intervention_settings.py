"""Interventions: changes inside the model while it answers under a condition, for any engine.

- `attention`: before the softmax, the attention of later tokens to a part of the prompt is
  multiplied by a weight; 0 hides the part. ZeroTuning (arXiv 2505.11739) scales the first token's.
- `mlp_output`: tokens of a part get the output that the prompt's first token has in an MLP, which
  can make them attention sinks (Yona et al., arXiv 2503.08908), or a sham of it.
- `filler`: a token after a filler attends to original tokens and to the filler, so its attention
  output is `scale x original + bias`. The intervention switches either term off in some layers, and
  decides whether the other layers see the filler. If they do not, the filler is not in the prompt:
  positions after it are moved, and in Layer 1 its keys and values are added, which depend only on
  its tokens and their positions. In code such tokens, which are not in the prompt, are phantoms.
- `redistribute`: the activations of an MLP that are nearest to zero move outward. It follows ARM of
  Shi et al. (arXiv 2510.01032), which takes its statistics over a prompt. Here the statistics are
  of one token, as tokens come in chunks and from caches.
- `function`: activations are changed by a function of the user.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.constants import DEFAULT_SEED, JsonObject
from harness.errors import PromptMismatchError, list_near
from harness.layers_and_heads import parse_numbers
from harness.yaml_settings import Strict, UserPath

ResolvedChange = JsonObject
"""A change of one prompt as plain values. Layers and token positions count from 0."""
PositionsByPart = Mapping[str, Sequence[int]]
"""The positions of the tokens of each part of a prompt; see `built_prompts.find_parts`."""

LARGEST_WEIGHT = 1e38
"""A larger weight would be infinite in float32."""
Layers = Annotated[
    tuple[int, ...], Field(min_length=1), BeforeValidator(partial(parse_numbers, option="layers"))
]
"""Numbers of layers, counted from 1."""


class _LayerIntervention(Strict):
    """What all interventions have: the layers in which they change the model."""

    layers: Layers
    """A layer, from 1; a range such as `4-10`; or a list."""

    @property
    def layer_indices(self) -> list[int]:
        """The layers, counted from 0."""
        return [layer - 1 for layer in self.layers]


class FillerIntervention(_LayerIntervention):
    """Changes the attention of later tokens to the filler and its separator."""

    kind: Literal["filler"]
    """Says which kind of intervention this is."""
    other_layers: bool = True
    """Other layers see the filler."""
    scale: bool = True
    """Original tokens get less weight, as with the filler."""
    bias: bool = True
    """The filler's values are added."""

    @property
    def has_phantoms(self) -> bool:
        """Whether keys are added for a filler that is not in the prompt."""
        return not self.other_layers and (self.scale or self.bias)

    @model_validator(mode="after")
    def _check_switches(self) -> Self:
        if self.other_layers and self.scale and self.bias:
            raise ValueError("other_layers, scale and bias are all on, which changes nothing")
        if self.other_layers and not (self.scale or self.bias):
            raise ValueError(
                "scale and bias are both off, which hides the filler: expected kind attention, "
                "part filler and weight 0"
            )
        if self.has_phantoms and self.layers != (1,):
            raise ValueError(
                "other_layers is off, so scale and bias need Layer 1: "
                "later layers depend on earlier layers"
            )
        return self

    def resolve(
        self, positions_by_part: PositionsByPart, token_ids: Sequence[int]
    ) -> ResolvedChange:
        """The intervention on one prompt.

        `start` and `size` are the position and the number of the filler's tokens. If the filler is
        in the prompt, there is no `phantom`. Otherwise `phantom` has the token ids whose keys are
        added; it is empty if none are, so that only a gap between positions remains.

        Raises:
            PromptMismatchError: the prompt is not the baseline with consecutive tokens inserted.
        """
        positions = positions_by_part["inserted"]
        token_count = len(positions)
        is_consecutive = token_count > 0 and positions[-1] - positions[0] < token_count
        if not is_consecutive:
            raise PromptMismatchError(
                "expected a filler of consecutive tokens, and without them the prompt of the "
                "baseline."
            )
        start = positions[0]
        change: JsonObject = {
            "kind": self.kind,
            "layers": self.layer_indices,
            "start": start,
            "size": token_count,
            "scale": self.scale,
            "bias": self.bias,
        }
        if self.has_phantoms:
            change["phantom"] = list(token_ids[start : start + token_count])
        elif not self.other_layers:
            # only the gap remains, which is the same for all layers
            change |= {"layers": [], "phantom": []}
        return change


def _refuse_few_tokens(part: str, positions: Sequence[int], fewest_tokens: int) -> None:
    """Raise PromptMismatchError if a part has fewer tokens than an intervention needs."""
    if len(positions) < fewest_tokens:
        raise PromptMismatchError(
            f"part {part}: expected {fewest_tokens} or more tokens in the prompt, "
            f"got {len(positions)}."
        )


class AttentionIntervention(_LayerIntervention):
    """Multiplies, before the softmax, the attention of later tokens to a part of the prompt."""

    kind: Literal["attention"]
    """Says which kind of intervention this is."""
    part: Literal["first", "instruction", "examples", "filler", "problem"]
    """`first` (the first token), `instruction`, `examples` with what separates them, `filler` with
    its separators, or `problem`. Later tokens are those after its last token."""
    weight: float = Field(ge=0, le=LARGEST_WEIGHT)
    """The factor of the attention, whose logarithm is added to the scores; 0 hides the part."""
    keep: int | None = Field(default=None, ge=1)
    """This number of the part's tokens is not changed."""
    count: int | None = Field(default=None, ge=1)
    """The part has only this number of its tokens, so that later tokens begin after these."""
    which: Literal["first", "middle", "last"] | None = None
    """The tokens of `keep` or `count`: the `first` (default), `middle` or `last`, in a filler
    without its separators."""

    @model_validator(mode="after")
    def _check_number(self) -> Self:
        if self.keep and self.count:
            raise ValueError("expected keep or count, not both")
        if self.which and not (self.keep or self.count):
            raise ValueError("which: expected keep or count beside it")
        return self

    def find_ranges(self, positions_by_part: PositionsByPart) -> list[list[float]]:
        """Ranges of tokens as start, end, the position of the first later token, and the weight.

        With `count` they have only the selected tokens, and with `keep` all except these. Otherwise
        they have the entire part. That of a filler includes its separators, which are not selected.

        Raises:
            PromptMismatchError: the prompt has too few tokens of this part.
        """
        # `keep` and `count` select among these: the tokens of a filler without its separators
        selectable_positions = positions_by_part[self.part]
        # without `keep` and `count` the selection is not used, but the part needs a token
        selected_count = self.keep or self.count or 1
        _refuse_few_tokens(self.part, selectable_positions, selected_count)
        last_start = len(selectable_positions) - selected_count
        start_by_choice = {"first": 0, "middle": last_start // 2, "last": last_start}
        start = start_by_choice[self.which or "first"]
        selected_positions = selectable_positions[start : start + selected_count]
        # the part of a filler here is the inserted text: the filler with its separators
        part_positions = positions_by_part["inserted" if self.part == "filler" else self.part]
        if self.count:
            # the selected tokens are then the entire part, as if the others did not belong to it
            part_positions = selected_positions
        changed_positions = [
            position
            for position in part_positions
            if not self.keep or position not in selected_positions
        ]
        # `keep` may leave the last token of the part as it is, but later tokens are still those
        # after it
        first_later_position = part_positions[-1] + 1
        return [
            [start, end, first_later_position, self.weight]
            for start, end in _join_positions(changed_positions)
        ]


def _join_positions(positions: Sequence[int]) -> list[list[int]]:
    """Join positions that follow one another into ranges of a start and an end."""
    ranges: list[list[int]] = []
    for position in positions:
        if ranges and ranges[-1][1] == position:
            ranges[-1][1] += 1
        else:
            ranges.append([position, position + 1])
    return ranges


class MLPOutputIntervention(_LayerIntervention):
    """Replaces the outputs of MLPs on tokens of a part, but never on the prompt's first token."""

    kind: Literal["mlp_output"]
    """Says which kind of intervention this is."""
    part: Literal["instruction", "examples", "filler", "problem"]
    """As in the kind attention; a `filler` has no separators here."""
    count: int | None = Field(default=None, ge=1)
    """Only this number of the part's tokens, from its first on."""
    origin: Literal["first", "ordinary", "random", "permuted", "removed", "permuted_own"] = Field(
        alias="from"
    )
    """The new output: that of the prompt's `first` token; of an `ordinary` one, the instruction's
    last; a `random` direction with the norm of the first token's; the first token's with its units
    `permuted`; the token's own with the first token's direction `removed`, or with its units
    permuted (`permuted_own`). Other tokens' outputs are those without interventions."""
    seed: int = DEFAULT_SEED
    """The seed of direction and permutation, which are the same in all layers."""

    def resolve(
        self, positions_by_part: PositionsByPart, token_ids: Sequence[int]
    ) -> ResolvedChange:
        """The intervention on one prompt.

        Its `source` is the beginning of the prompt up to the token whose output is used.

        Raises:
            PromptMismatchError: the prompt has too few tokens of this part, or no instruction.
        """
        # without the prompt's first token, whose position is 0
        positions = [position for position in positions_by_part[self.part] if position]
        _refuse_few_tokens(self.part, positions, self.count or 1)
        source_length = 1
        if self.origin == "ordinary":
            instruction_positions = positions_by_part["instruction"]
            _refuse_few_tokens("instruction", instruction_positions, 1)
            source_length = instruction_positions[-1] + 1
        return {
            "kind": self.kind,
            "layers": self.layer_indices,
            "tokens": positions[: self.count],
            "from": self.origin,
            "seed": self.seed,
            "source": list(token_ids[:source_length]),
        }


class _UniformIntervention(_LayerIntervention):
    """An intervention on all tokens, which does not depend on the prompt."""

    def resolve(self, *_: object) -> ResolvedChange:
        """The intervention on any prompt."""
        return self.model_dump() | {"layers": self.layer_indices}


class RedistributeIntervention(_UniformIntervention):
    """Moves the activations nearest to zero outward."""

    kind: Literal["redistribute"]
    """Says which kind of intervention this is."""
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


class FunctionIntervention(_UniformIntervention):
    """Changes activations by `change(activations, positions, **arguments)` of a Python file."""

    kind: Literal["function"]
    """Says which kind of intervention this is."""
    file: UserPath
    """Its function gets activations [token, unit] and positions [token], perhaps of several
    prompts, and returns activations."""
    arguments: JsonObject = Field(default_factory=dict)
    """Further arguments of the function."""

    def resolve(self, *_: object) -> ResolvedChange:
        """The intervention, which is the same on all prompts; `refuse_change` has read the file."""
        sha256 = hashlib.sha256(self.file.read_bytes()).hexdigest()
        return {**super().resolve(), "file": str(self.file.resolve()), "sha256": sha256}


TARGET_BY_KIND = {
    "attention": "attention",
    "filler": "attention",
    "mlp_output": "outputs",
    "redistribute": "activations",
    "function": "activations",
}
"""What each kind of intervention changes; `outputs` are those of MLPs."""


def _check_kind(settings: Any) -> Any:
    """Replaces pydantic's message, which does not name the key."""
    if isinstance(settings, Mapping) and (kind := settings.get("kind")) not in TARGET_BY_KIND:
        raise ValueError(
            f"kind: expected one of {list_near(str(kind), TARGET_BY_KIND)}, got {kind!r}"
        )
    return settings


Intervention = Annotated[
    AttentionIntervention
    | MLPOutputIntervention
    | FillerIntervention
    | RedistributeIntervention
    | FunctionIntervention,
    Field(discriminator="kind"),
    BeforeValidator(_check_kind),
]


def as_list(value: Any) -> Any:
    """A list as it is, and a single value, such as an intervention, as a list of one."""
    return value if isinstance(value, list | tuple) else [value]


def concerns_filler(interventions: Any) -> bool:
    """Whether an intervention of a config, or one of a list, is of a filler."""
    return any(
        isinstance(settings, Mapping) and "filler" in (settings.get("kind"), settings.get("part"))
        for settings in as_list(interventions)
    )


def resolve_interventions(
    interventions: Sequence[Intervention],
    positions_by_part: PositionsByPart,
    token_ids: Sequence[int],
) -> list[ResolvedChange]:
    """The changes of one prompt by a list of interventions, as the engines get them.

    First come the changes of all other kinds, in the order of the list, then those of the kind
    `attention`. The ranges of these are joined by layer, so that a layer is in at most one such
    change. Its `weights` are the ranges of `AttentionIntervention.find_ranges`; where ranges
    overlap, the last one holds.

    Raises:
        PromptMismatchError: an intervention does not fit the prompt.
    """
    changes = []
    ranges_by_layer_index: dict[int, list[list[float]]] = {}
    for intervention in interventions:
        if intervention.kind != "attention":
            changes.append(intervention.resolve(positions_by_part, token_ids))
            continue
        ranges = intervention.find_ranges(positions_by_part)
        for layer_index in intervention.layer_indices:
            ranges_by_layer_index.setdefault(layer_index, []).extend(ranges)
    # neighbouring layers with the same ranges are one change
    for ranges, layer_indices in groupby(
        sorted(ranges_by_layer_index), key=ranges_by_layer_index.__getitem__
    ):
        changes.append({"kind": "attention", "layers": [*layer_indices], "weights": ranges})
    return changes


def find_gap(changes: Sequence[Mapping[str, Any]] | None) -> tuple[int, int]:
    """Where the positions of a prompt have a gap for a filler that is not in it, and its size.

    Both are 0 if there is no gap.
    """
    for change in changes or ():
        # only a filler that is left out of the prompt has phantoms, or an empty list of them
        if "phantom" in change:
            return change["start"], change["size"]
    return 0, 0
