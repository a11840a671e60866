"""One YAML is one figure: its panels are its rows (what is compared, how) times its heads (where it is measured)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, Field, StrictInt, ValidationError, model_validator

from attention_probe.choices import View
from attention_probe.prompts.choose_prompts import PromptsConfig
from harness.analysis.flips import CHANGED, CHANGES
from harness.choices import Definition
from harness.errors import ConfigError
from harness.experiment.conditions import named_conditions
from harness.experiment.config import DatasetConfig
from harness.experiment.yaml_settings import Strict, explain, read_values

BASELINE = "wo"
"""The condition whose token positions the aligned curves use."""

Colour = Literal["blue", "red", "green", "orange"]
_COLOURS: tuple[Colour, ...] = get_args(Colour)


class SeriesConfig(Strict):
    """One line of a panel: what the legend calls it, and its colour (left out: blue, red, green, orange in turn)."""

    label: str = Field(min_length=1)
    colour: Colour | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_label(cls, value: Any) -> Any:
        """A series may be its label alone."""
        return {"label": value} if isinstance(value, str) else value


class RowConfig(Strict):
    """What the panels of one row compare: one line for each condition, in the order written.

    `region` names the inserted tokens, shaded in full views; null leaves them unshaded. `fill` shades the area under
    the lines. `definition` overrides the figure's. `weighted` multiplies each token's weight by the length of its
    value vector.
    """

    view: View
    series: dict[str, SeriesConfig] = Field(min_length=1)
    x_limits: tuple[float, float] | None = None
    legend: Literal["upper left", "upper right"] = "upper left"
    region: str | None = "Meaningless tokens"
    fill: bool = False
    weighted: bool = False
    definition: Definition | None = None

    @property
    def limits(self) -> tuple[float, float]:
        """Token positions shown: the study's 0 to 60 for aligned and 0 to 120 for full views unless told."""
        return self.x_limits or ((0, 60) if self.view == "aligned" else (0, 120))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        low, high = self.limits
        if not 0 <= low < high:
            raise ValueError(f"x_limits must be two growing token positions from 0 up, got {[low, high]}")
        if self.view == "full" and BASELINE in self.series:
            raise ValueError(
                f"view: full shows prompts with a filler, and {BASELINE!r} has none. Compare it in view: aligned"
            )
        return self


class HeadConfig(Strict):
    """Where one column of panels is measured.

    `layer` and `head` are indices from 0; `label` says the same for people, counting from 1. What is left out is the
    figure's. `title` replaces "name label".
    """

    layer: StrictInt = Field(ge=0)
    head: StrictInt = Field(ge=0)
    label: str
    title: str | None = None
    name: str | None = None
    model: str | None = None
    architecture: Path | None = None
    exclude_first_token: bool | None = None
    prompts: PromptsConfig | None = None

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
    """Accuracy bars beside the panels: of finished runs, or of reference numbers, which the figure then says."""

    title: str
    conditions: tuple[str, ...] = Field(default=("wo", "mless", "mful"), min_length=1)
    runs: tuple[Path, ...] = ()
    reference: Path | None = None

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

    @property
    def prompts(self) -> PromptsConfig:
        """Which prompts are averaged."""
        assert self.head.prompts is not None  # the figure's config has checked it
        return self.head.prompts

    @property
    def colours(self) -> dict[str, Colour]:
        """The colour of each condition."""
        series = enumerate(self.shows.series.items())
        return {name: one.colour or _COLOURS[place % len(_COLOURS)] for place, (name, one) in series}


class FigureConfig(Strict):
    """One figure.

    `model` is a hub id, a folder or `demo`; `architecture` the file with its exact shape, for `--random-weights`.
    """

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    seed_document: str | None = None
    model: str | None = None
    model_name: str | None = None
    architecture: Path | None = None
    prompts: PromptsConfig | None = None
    definition: Definition = "common"
    y_label: str = "Average attention weight"
    exclude_first_token: bool | None = None
    heads: tuple[HeadConfig, ...] = Field(min_length=1)
    rows: tuple[RowConfig, ...] = Field(min_length=1)
    bars: BarsConfig | None = None
    note: str | None = None
    output: Path = Path("results/figures")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for place, head in enumerate(self._whole_heads):
            if not (head.model or head.architecture):
                raise ValueError(f"heads.{place}: needs `model` or `architecture`, here or for the whole figure")
            if head.prompts is None:
                raise ValueError(f"heads.{place}: needs `prompts`, here or for the whole figure")
            if head.prompts.flip in (*CHANGES, CHANGED) and not head.prompts.controls:
                raise ValueError(
                    f"heads.{place}: a figure of problems that flipped shows matched ones that did not beside them: "
                    "expected `controls: true` in `prompts`"
                )
            unknown = [name for name in self.conditions if name not in named_conditions()]
            if head.prompts.dataset is not None and unknown:
                raise ValueError(
                    f"prompts built from a dataset know the conditions {', '.join(named_conditions())}, "
                    f"got {', '.join(unknown)}. Take others from a `run`"
                )
        return self

    @property
    def conditions(self) -> tuple[str, ...]:
        """Every condition that must be measured, the baseline first."""
        return tuple(dict.fromkeys((BASELINE, *(name for row in self.rows for name in row.series))))

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, row by row."""
        return tuple(
            Panel(
                row=row_place,
                column=column,
                title=head.title or f"{self._name(head)} {head.label}".strip(),
                head=head,
                shows=row,
                definition=row.definition or self.definition,
            )
            for row_place, row in enumerate(self.rows)
            for column, head in enumerate(self._whole_heads)
        )

    @property
    def groups(self) -> list[list[Panel]]:
        """The panels of each model and set of prompts, which are measured together."""
        groups: dict[str, list[Panel]] = {}
        for panel in self.panels:
            key = panel.head.model_dump_json(include={"model", "architecture", "prompts"})
            groups.setdefault(key, []).append(panel)
        return list(groups.values())

    @property
    def _whole_heads(self) -> list[HeadConfig]:
        """The heads with all that they take from the figure."""
        shared = ("model", "architecture", "prompts", "exclude_first_token")
        return [
            head.model_copy(update={name: getattr(self, name) for name in shared if getattr(head, name) is None})
            for head in self.heads
        ]

    def _name(self, head: HeadConfig) -> str:
        return head.name or self.model_name or (head.model or "").rstrip("/").rpartition("/")[2]


_NESTED: Mapping[str, type[BaseModel]] = {
    "heads": HeadConfig,
    "rows": RowConfig,
    "series": SeriesConfig,
    "prompts": PromptsConfig,
    "bars": BarsConfig,
    "dataset": DatasetConfig,
}


def load_figure_config(path: Path, overrides: Iterable[str] = ()) -> FigureConfig:
    """Read and check a figure config; `overrides` are `key=value` with dotted keys and YAML values.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, a label does not fit its index, or a value
            does not fit.
    """
    values = read_values(path, "figures", FigureConfig, overrides)
    try:
        return FigureConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path), FigureConfig, _NESTED)) from None
