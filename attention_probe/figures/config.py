"""One YAML is one figure: of heads, rows (what is compared) times heads (where), or of the first MLP's activations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, StrictInt, ValidationError, field_validator, model_validator

from attention_probe.prompts.choose_prompts import PromptsConfig
from harness.analysis.flips import CHANGED, CHANGES
from harness.constants import NEAR_ZERO_FACTORS, Definition, Shown
from harness.display.figures.style import Look, looks
from harness.display.numbers import label
from harness.errors import ConfigError
from harness.runs.prompt_source import BASELINE
from harness.yaml_settings import Strict, explain, read_values

Colour = Literal["blue", "red", "green", "orange"]
COLOURS: dict[Colour, str] = {"blue": "#0072b2", "red": "#d55e00", "green": "#009e73", "orange": "#e69f00"}
"""The study's colours, in hues that the colour-blind tell apart (Okabe and Ito)."""

Limits = tuple[float, float]


class SeriesConfig(Strict):
    """One line of a panel: what the legend calls it, and a colour of the study's.

    What is left out is the name, and the colour and marker, that the condition has in every figure.

    Attributes:
        label: What the legend calls it.
        colour: `blue`, `red`, `green` or `orange`.
    """

    label: str | None = Field(default=None, min_length=1)
    colour: Colour | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_label(cls, value: Any) -> Any:
        """A series may be its label alone."""
        return {"label": value} if isinstance(value, str) else value


class RowConfig(Strict):
    """What the panels of one row compare: one line for each condition, in the order written.

    Attributes:
        view: `full` shows every token of prompts with a filler, `aligned` only those that the prompts have in common,
            `difference` the aligned ones of each condition less those of `wo`.
        series: Conditions, or conditions with their label or with label and colour.
        y_limits: The ends of the axis, one pair for the row or one for each head. Without them the row has one scale.
        region: The name of the inserted tokens, which full views shade; null leaves them unshaded.
        fill: Whether the area under the lines is shaded.
    """

    view: Shown
    series: dict[str, SeriesConfig] = Field(min_length=1)
    y_limits: tuple[Limits, ...] = ()
    region: str | None = "Meaningless tokens"
    fill: bool = False

    @property
    def limits(self) -> Limits:
        """Token positions shown: the study's 0 to 120 for full views and 0 to 60 for others."""
        return (0, 120) if self.view == "full" else (0, 60)

    @property
    def subtracted(self) -> str | None:
        """The condition that is subtracted from each."""
        return BASELINE if self.view == "difference" else None

    @field_validator("series", mode="before")
    @classmethod
    def _from_names(cls, value: Any) -> Any:
        """Conditions alone are a list."""
        return {name: {} for name in value} if isinstance(value, list) else value

    @field_validator("y_limits", mode="before")
    @classmethod
    def _for_the_row(cls, value: Any) -> Any:
        """One pair of numbers is the whole row's."""
        return (
            [value] if isinstance(value, list) and value and not any(isinstance(one, list) for one in value) else value
        )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(low >= high for low, high in self.y_limits):
            raise ValueError(f"y_limits must be pairs that grow, got {[list(pair) for pair in self.y_limits]}")
        if self.view == "full" and BASELINE in self.series:
            raise ValueError(
                f"view: full shows prompts with a filler, and {BASELINE!r} has none. Compare it in view: aligned"
            )
        if self.subtracted in self.series:
            raise ValueError(f"view: difference subtracts {BASELINE!r}: expected other conditions in `series`")
        return self


class HeadConfig(Strict):
    """Where one column of panels is measured.

    Attributes:
        layer: Index of the layer, from 0.
        head: Index of the head, from 0.
        label: The same for people, counting from 1: `Layer 1 Head 12`. Written down, it is checked.
        title: The panel's title. By default name and label.
        name: The model's name in the title. By default the figure's.
        model: Another model than the figure's.
        exclude_first_token: Another choice than the figure's.
    """

    layer: StrictInt = Field(ge=0)
    head: StrictInt = Field(ge=0)
    label: str = ""
    title: str | None = None
    name: str | None = None
    model: str | None = None
    exclude_first_token: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_label(cls, values: Any) -> Any:
        """Where no label is written, it follows from layer and head."""
        if isinstance(values, dict) and all(type(values.get(key)) is int for key in ("layer", "head")):
            return {"label": f"Layer {values['layer'] + 1} Head {values['head'] + 1}", **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        expected = f"Layer {self.layer + 1} Head {self.head + 1}"
        if self.label != expected:
            raise ValueError(
                f"label counts from 1, layer and head from 0: expected {expected!r} for layer {self.layer}, "
                f"head {self.head}, got {self.label!r}"
            )
        return self


class BarsConfig(Strict):
    """Accuracy bars beside the panels: of finished runs, or of reference numbers, which the figure then says.

    Attributes:
        title: The title above them.
        conditions: A bar for each.
        runs: Run folders. Either these or a reference.
        reference: A file of reference numbers.
        y_limits: The ends of the axis, in percent.
    """

    title: str
    conditions: tuple[str, ...] = Field(default=("wo", "mless", "mful"), min_length=1)
    runs: tuple[Path, ...] = ()
    reference: Path | None = None
    y_limits: Limits | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.runs) == (self.reference is not None):
            raise ValueError("expected exactly one of `runs` and `reference`")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel: `head` with all that it takes from the figure, and its place in the grid, from 0."""

    row: int
    column: int
    title: str
    head: HeadConfig
    shows: RowConfig
    definition: Definition
    looks: Mapping[str, Look]
    prompts: PromptsConfig

    @property
    def y_limits(self) -> Limits | None:
        """The ends of its axis, where the config has them."""
        limits = self.shows.y_limits
        return limits[self.column % len(limits)] if limits else None

    def name(self, condition: str) -> str:
        """What the legend calls a line."""
        return self.shows.series[condition].label or label(condition)


class FigureConfig(Strict):
    """One figure.

    Attributes:
        name: The figure's, and that of its files.
        seed_document: The figure of the study that it reproduces.
        model: A hub id, a folder or `demo`.
        model_name: What titles call it.
        prompts: Which prompts are averaged.
        definition: Whose attention is averaged: of the tokens that the prompt without filler has too (`common`), or of
            all later ones, filler included (`published`).
        y_label: The label of the vertical axis.
        exclude_first_token: Whether the first token, which takes most of the weight in many heads, is left out.
        heads: The columns of panels.
        rows: The rows of panels.
        bars: Accuracies beside the panels.
        one_prompt: Draw a single prompt, too, as NAME-one-prompt: that which ends nearest to the first row's x axis.
        note: A line below the figure.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    seed_document: str | None = None
    model: str | None = None
    model_name: str | None = None
    prompts: PromptsConfig
    definition: Definition = "common"
    y_label: str = "Average attention weight"
    exclude_first_token: bool | None = None
    heads: tuple[HeadConfig, ...] = Field(min_length=1)
    rows: tuple[RowConfig, ...] = Field(min_length=1)
    bars: BarsConfig | None = None
    one_prompt: bool = False
    note: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for place, row in enumerate(self.rows):
            if len(row.y_limits) not in (0, 1, len(self.heads)):
                raise ValueError(
                    f"rows.{place}: y_limits are one pair for the row or one for each of the {len(self.heads)} heads, "
                    f"got {len(row.y_limits)}"
                )
        for place, head in enumerate(self._whole_heads):
            if not head.model:
                raise ValueError(f"heads.{place}: needs `model`, here or for the whole figure")
        if self.prompts.flip in (*CHANGES, CHANGED) and not self.prompts.controls:
            raise ValueError(
                "a figure of problems that flipped shows matched ones that did not beside them: "
                "expected `controls: true` in `prompts`"
            )
        self.prompts.check_conditions(self.conditions)
        return self

    @property
    def conditions(self) -> tuple[str, ...]:
        """Every condition that must be measured, the baseline first."""
        return tuple(dict.fromkeys((BASELINE, *(name for row in self.rows for name in row.series))))

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, row by row."""
        own = looks(self.conditions)
        return tuple(
            Panel(
                row=row_place,
                column=column,
                title=head.title or f"{self._name(head)} {head.label}".strip(),
                head=head,
                shows=row,
                definition=self.definition,
                prompts=self.prompts,
                looks={
                    name: Look(COLOURS[one.colour], "", "-") if one.colour else own[name]
                    for name, one in row.series.items()
                },
            )
            for row_place, row in enumerate(self.rows)
            for column, head in enumerate(self._whole_heads)
        )

    @property
    def groups(self) -> list[list[Panel]]:
        """The panels of each model, which are measured together."""
        groups: dict[str, list[Panel]] = {}
        for panel in self.panels:
            groups.setdefault(str(panel.head.model), []).append(panel)
        return list(groups.values())

    @property
    def _whole_heads(self) -> list[HeadConfig]:
        """The heads with all that they take from the figure."""
        shared = ("model", "exclude_first_token")
        return [
            head.model_copy(update={name: getattr(self, name) for name in shared if getattr(head, name) is None})
            for head in self.heads
        ]

    def _name(self, head: HeadConfig) -> str:
        return head.name or self.model_name or (head.model or "").rstrip("/").rpartition("/")[2]


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
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    activations: Literal["histogram", "token_classes"]
    conditions: tuple[str, ...] = (BASELINE, "mless")
    prompts: PromptsConfig | None = None
    models: tuple[ModelConfig, ...] = Field(min_length=1)

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
        if self.prompts is not None and not all(one.traces for one in self.models):
            self.prompts.check_conditions(self.conditions)
            if self.prompts.flip:
                raise ValueError("prompts: a figure of activations has no place for controls: expected no `flip`")
        return self


def load_figure_config(path: Path, overrides: Iterable[str] = ()) -> FigureConfig | ActivationsConfig:
    """Read and check a figure config; `overrides` are `key=value` with dotted keys and YAML values.

    A config with the key `activations` is of the first MLP, every other is of heads.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, a label does not fit its index, or a value
            does not fit.
    """
    values = read_values(path, "figures", overrides)
    schema = ActivationsConfig if "activations" in values else FigureConfig
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from None
