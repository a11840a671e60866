"""What the probe records, and of which model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from attention_probe.measure.measure_prompts import Record
from attention_probe.model.load_first_layers import LoadedModel, load_model
from harness import resources
from harness.constants import BASELINE, Dtype
from harness.errors import ConfigError, list_first
from harness.experiment.conditions import yardstick
from harness.experiment.tokenizer import load_tokenizer
from harness.runs.prompts_of_run import Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What to record, and of which model.

    Attributes:
        model: Folder, hub name or `demo`; None for the model that was run.
        tokenizer: Another tokenizer than the model's own.
        revision: Branch, tag or commit of the model on the hub.
        layers: Decoder layers, from 0.
        heads: Heads that will be looked at, from 0. All heads are recorded; these are refused at once if the model
            does not have them.
        conditions: Names of conditions; empty for all that the source has but yardsticks. The baseline is always
            recorded.
        record: What to keep.
        dtype: What the layers are computed in. If it is not float32, one prompt is compared with float32.
        device: `cpu`, `cuda`, ...

    Raises:
        ConfigError: a decomposition over completions.
    """

    model: str | None = None
    tokenizer: str | None = None
    revision: str | None = None
    layers: tuple[int, ...] = (0,)
    heads: tuple[int, ...] | None = None
    conditions: tuple[str, ...] = ()
    record: Record = field(default_factory=Record)
    dtype: Dtype = "float32"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.record.completion and self.record.decompose:
            raise ConfigError("--decompose compares the same queries, and those of --queries completion differ.")

    def fitted(self, source: Source) -> ProbeSettings:
        """The settings with the model and the conditions filled in from the source.

        Raises:
            ConfigError: a condition or the baseline is not in the source, a condition's filler stands in the answer, or
                nothing names a model.
        """
        if BASELINE not in source.conditions:
            raise ConfigError(
                f"{source.name} has {', '.join(source.conditions)} and not {BASELINE!r}, to align the others with."
            )
        usual = [name for name in source.conditions if not yardstick(name)]
        conditions = tuple(dict.fromkeys((BASELINE, *(self.conditions or usual))))
        if absent := [name for name in conditions if name not in source.conditions]:
            raise ConfigError(
                f"{source.name} has no condition {absent[0]!r}: expected one of {list_first(source.conditions, 6)}."
            )
        if hidden := [name for name in conditions if name in source.filled_answers]:
            others = [name for name in usual if name not in (*source.filled_answers, BASELINE)]
            raise ConfigError(
                f"The prompts of {hidden[0]!r} begin the model's answer, and {source.name} does not record where in it "
                "a filler stands: the probe would take it for the template's. Leave it out: --conditions "
                f"{','.join(others) or BASELINE}."
            )
        if any(not prompt.segments for one in source.problems for prompt in one.prompts.values()):
            raise ConfigError(
                f"{source.name} does not record where fillers stand in its prompts: nothing can be aligned. Expected a "
                "run, or logs of a task that `mless tasks --wrap` wrote."
            )
        model = self.model or source.model
        if model is None:
            raise ConfigError(f"{source.name} does not say which model was run. Name it with --model.")
        return replace(self, model=model, conditions=conditions)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer."""
        name = self.tokenizer or self.model
        if name is None:
            raise ConfigError("Prompts are built for a model's tokenizer. Name the model with --model.")
        return load_tokenizer(resources.resolve_model(name), revision=self.revision)

    def load_model(self, *, dtype: Dtype | None = None) -> LoadedModel:
        """The layers asked."""
        return load_model(
            resources.resolve_model(str(self.model)),
            revision=self.revision,
            layers=self.layers,
            dtype=getattr(torch, dtype or self.dtype),
            device=self.device,
        )
