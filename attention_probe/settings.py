"""What the probe records, and of which model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import try_to_load_from_cache

from attention_probe.choices import Dtype
from attention_probe.measure.measure_prompts import Record
from attention_probe.model.architectures import read_architecture
from attention_probe.model.load_first_layers import LoadedModel, load_model, random_model
from harness import resources
from harness.errors import ConfigError, list_first
from harness.experiment.conditions import yardstick
from harness.experiment.tokenizer import load_tokenizer
from harness.runs.prompt_source import BASELINE, Source

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What to record, and of which model.

    Attributes:
        model: Folder, hub name or `demo`; None for the model that was run, or with `architecture`.
        architecture: An ARCH.yaml to run with random weights, instead of a model.
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
        seed: Of random weights.

    Raises:
        ConfigError: both a model and an architecture are given, or a decomposition over completions.
    """

    model: str | None = None
    architecture: Path | None = None
    tokenizer: str | None = None
    revision: str | None = None
    layers: tuple[int, ...] = (0,)
    heads: tuple[int, ...] | None = None
    conditions: tuple[str, ...] = ()
    record: Record = field(default_factory=Record)
    dtype: Dtype = "float32"
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model is not None and self.architecture is not None:
            raise ConfigError(
                f"Expected a model or an architecture with random weights, got both: {self.model} and "
                f"{self.architecture}. Leave out --model or --random-weights."
            )
        if self.record.completion and self.record.decompose:
            raise ConfigError(
                "--decompose compares the same queries with and without filler, and completions differ: expected "
                "--queries prompt with it, got completion. Leave out one of the two."
            )

    def fitted(self, source: Source) -> ProbeSettings:
        """The settings with the model and the conditions filled in from the source.

        Raises:
            ConfigError: a condition or the baseline is not in the source, a condition's filler stands in the answer, or
                nothing names a model.
        """
        if BASELINE not in source.conditions:
            raise ConfigError(
                f"{source.name} has {', '.join(source.conditions)} and not {BASELINE!r}, the prompt without filler "
                f"that every other is aligned with. Add it: run it too, or give its log with --log {BASELINE}=FILE."
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
        model = self.model or (source.model if self.architecture is None else None)
        if model is None and self.architecture is None:
            raise ConfigError(f"{source.name} does not say which model was run. Name it with --model.")
        return replace(self, model=model, conditions=conditions)

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer; for random weights the architecture's if it was fetched before, else its substitute."""
        if self.architecture is None or self.tokenizer is not None:
            name = self.tokenizer or self.model
            if name is None:
                raise ConfigError("Prompts are built for a model's tokenizer. Name the model with --model.")
            return load_tokenizer(resources.resolve_model(name), revision=self.revision)
        facts = read_architecture(self.architecture)
        fetched = isinstance(try_to_load_from_cache(facts.tokenizer, "tokenizer.json"), str)
        return load_tokenizer(facts.tokenizer if fetched else resources.resolve_model(facts.substitute_tokenizer))

    def load_model(self, *, dtype: Dtype | None = None) -> LoadedModel:
        """The layers asked."""
        chosen: dict[str, Any] = {
            "layers": self.layers,
            "dtype": getattr(torch, dtype or self.dtype),
            "device": self.device,
        }
        if self.architecture is not None:
            return random_model(self.architecture, seed=self.seed, **chosen)
        return load_model(resources.resolve_model(str(self.model)), revision=self.revision, **chosen)
