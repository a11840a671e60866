"""One YAML is one figure of the first MLP's activations: what is shown, and a panel for each model."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from attention_probe.prompts.choose_prompts import PromptsConfig
from harness.constants import NEAR_ZERO_FACTORS
from harness.runs.prompt_source import BASELINE
from harness.yaml_settings import Strict


class ModelConfig(Strict):
    """One panel: a model, measured on the figure's prompts, or traces of it.

    Attributes:
        name: The panel's title.
        model: A hub id, a folder or `demo`.
        traces: Traces of `mless probe --activations`. They are drawn as they are, and nothing is measured.
        c: What is near zero: |a| below 1.4826 MAD c. The study's values are 0.1, 0.13 and 0.32.
    """

    name: str = Field(min_length=1)
    model: str | None = None
    traces: Path | None = None
    c: float = NEAR_ZERO_FACTORS[0]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if not (self.traces or self.model):
            raise ValueError("needs `model` or `traces`")
        if self.c not in NEAR_ZERO_FACTORS:
            raise ValueError(f"c: expected one of {', '.join(map(str, NEAR_ZERO_FACTORS))}, got {self.c:g}")
        return self


class ActivationsConfig(Strict):
    """A figure of the first MLP's activations, without and with fillers.

    Attributes:
        name: The figure's, and that of its files.
        activations: `histogram` shows their sizes and four numbers, `token_classes` the near-zero share of each class.
        conditions: The prompt without filler, and those that are compared with it.
        prompts: Which prompts are averaged.
        models: A panel for each.
        note: A line below the figure.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    activations: Literal["histogram", "token_classes"]
    conditions: tuple[str, ...] = (BASELINE, "mless")
    prompts: PromptsConfig | None = None
    models: tuple[ModelConfig, ...] = Field(min_length=1)
    note: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        first, *others = self.conditions or ("",)
        if first != BASELINE or not others or len(set(self.conditions)) < len(self.conditions):
            raise ValueError(
                f"conditions: expected {BASELINE} and then one or more others, each once, got "
                f"{', '.join(self.conditions) or 'none'}"
            )
        if len({one.name for one in self.models}) < len(self.models):
            raise ValueError("models: expected another name for each panel, got one twice")
        if self.prompts is None and not all(one.traces for one in self.models):
            raise ValueError("needs `prompts`, or `traces` for every model")
        for one in self.models:
            if one.traces and one.model:
                raise ValueError(f"models: {one.name!r} has `traces`, so expected no `model`")
        if self.prompts is not None:
            if not all(one.traces for one in self.models):
                self.prompts.check_conditions(self.conditions)
            if self.prompts.flip:
                raise ValueError(
                    "prompts: a figure of activations has no place for matched problems that did not flip: expected "
                    "no `flip`"
                )
        return self
