"""One YAML is one figure: curves of heads, rows (what is compared) times heads (where), or first-MLP activations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, StrictInt, ValidationError, model_validator

from attention_probe.measure.measure_activations import NEAR_ZERO_FACTORS
from attention_probe.prompts.choose_prompts import PromptsConfig
from harness.analysis.choose_problems import CHANGED, CHANGES
from harness.constants import BASELINE, STUDIED, Definition, View
from harness.display.figures.figure_style import Look, looks
from harness.display.format_values import label
from harness.errors import ConfigError
from harness.smollm2_model import label_model
from harness.yaml_settings import Strict, explain, read_values

Shown = Literal[View, "difference"]
"""Also the paired difference of two conditions, token by token, in the aligned view."""

STUDY_COLOURS = {"blue": "#0072b2", "red": "#d55e00", "green": "#009e73", "orange": "#e69f00"}
"""The study's colours, in hues that the colour-blind tell apart (Okabe and Ito)."""

Limits = tuple[float, float]
OF_A_MODEL = ("model_name", "note", "bars", "y_limits", "title", "c")
"""What a config says of the models that it was written for, beside the names of parts."""


Number = Annotated[StrictInt, Field(ge=1)]
"""Of a layer or a head."""


class SeriesConfig(Strict):
    """One line of a panel."""

    label: str | None = Field(default=None, min_length=1)
    """What the legend calls it."""
    colour: Literal["blue", "red", "green", "orange"] | None = None
    """`blue`, `red`, `green` or `orange`."""


class RowConfig(Strict):
    """What the panels of one row compare."""

    view: Shown
    """`full` (every token), `aligned` (tokens of all prompts), `difference` (aligned, less `wo`)."""
    series: dict[str, SeriesConfig] = Field(min_length=1)
    """A line for each condition, with its label and colour."""
    y_limits: tuple[Limits, ...] = ()
    """The ends of the axis, for the row or for each head."""
    region: str = "Meaningless tokens"
    """The name of the inserted tokens."""

    @property
    def limits(self) -> Limits:
        """Token positions that the study's figures show: 0 to 120 for full views and 0 to 60 for others."""
        return (0, 120) if self.view == "full" else (0, 60)

    @property
    def subtracted(self) -> str | None:
        """The condition that is subtracted from each."""
        return BASELINE if self.view == "difference" else None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.view != "aligned" and BASELINE in self.series:
            raise ValueError(f"series: view {self.view} has no line of {BASELINE!r}")
        return self


class HeadConfig(Strict):
    """Where one column of panels is measured."""

    layer: Number
    """Which layer, counted from 1."""
    head: Number
    """Which head, counted from 1."""
    title: str | None = None
    """The panel's title."""
    name: str | None = None
    """The model's name in the title."""
    model: str | None = None
    """Another model than the figure's."""


class BarsConfig(Strict):
    """Accuracy bars of `wo`, `mless` and `mful`: of finished runs, or of reference numbers."""

    title: str
    """The title above them."""
    runs: tuple[Path, ...] = ()
    """Run folders. Either these or a reference."""
    reference: Path | None = None
    """A file of reference numbers."""
    y_limits: Limits = (0, 100)
    """The ends of the axis, in percent."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.runs) == (self.reference is not None):
            raise ValueError("expected exactly one of `runs` and `reference`")
        return self


class ModelConfig(Strict):
    """One panel of activations."""

    model: str
    """A hub id, a folder or `smollm2`."""
    name: str = ""
    """The panel's title; by default the model's name."""
    c: float = NEAR_ZERO_FACTORS[0]
    """Near zero is |a| below 1.4826 MAD c. The study's: 0.1, 0.13, 0.32."""

    @property
    def title(self) -> str:
        """The panel's title."""
        return self.name or label_model(self.model)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.c not in NEAR_ZERO_FACTORS:
            raise ValueError(
                f"c: expected one of {', '.join(map(str, NEAR_ZERO_FACTORS))}, got {self.c:g}"
            )
        return self


class Panel(NamedTuple):
    """One panel of curves: a head, with all that it takes from the figure, and what its row shows."""

    row: int
    column: int
    head: HeadConfig
    shows: RowConfig
    looks: dict[str, Look]
    limits: Limits | None

    def name(self, condition: str) -> str:
        """What the legend calls a line."""
        return self.shows.series[condition].label or label(condition)

    @property
    def title(self) -> str:
        """The panel's title."""
        return (
            self.head.title
            or f"{self.head.name or ''} Layer {self.head.layer} Head {self.head.head}".strip()
        )

    @property
    def y_limits(self) -> Limits | None:
        """The ends of its axis, where the config has them."""
        limits = self.shows.y_limits
        return limits[self.column % len(limits)] if limits else None


class FigureConfig(Strict):
    """One figure."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """The figure's name, also that of its files."""
    kind: Literal["curves", "histogram", "token_classes"] = "curves"
    """`curves` (with `heads` and `rows`), or activations (with `models`): `histogram`, `token_classes`."""
    seed_document: str | None = None
    """The figure of the study that is reproduced."""
    model: str | None = None
    """A hub id, a folder or `smollm2`."""
    model_name: str | None = None
    """What titles call it."""
    prompts: PromptsConfig
    """Which prompts are averaged."""
    traces: Path | None = None
    """Draw what is in these instead, such as a run's own; nothing is measured."""
    definition: Definition = "common"
    """Whose queries are averaged: `common` or `published`."""
    y_label: str = "Average attention weight"
    """The label of the vertical axis."""
    exclude_first_token: bool | None = None
    """Whether the first token is left out. By default for Llama and Gemma."""
    heads: tuple[HeadConfig, ...] = ()
    """A panel for each in every row."""
    rows: tuple[RowConfig, ...] = ()
    """The rows of panels."""
    models: tuple[ModelConfig, ...] = ()
    """A panel of activations for each."""
    bars: BarsConfig | None = None
    """Accuracies as bars."""
    note: str | None = None
    """A line below the figure."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        curves, flip = self.kind == "curves", self.prompts.flip
        keys = "`heads` and `rows`" if curves else "`models`"
        is_complete = (
            self.heads and self.rows and not self.models
            if curves
            else self.models and not self.heads
        )
        for index, row in enumerate(self.rows):
            if len(row.y_limits) not in (0, 1, len(self.heads)):
                raise ValueError(f"rows.{index}: y_limits: expected one pair or one for each head")
        for index, head in enumerate(self.heads):
            if not (head.model or self.model):
                raise ValueError(f"heads.{index}: needs `model`, here or for the whole figure")
        for is_wrong, message in (
            (not is_complete, f"kind: {self.kind} needs {keys}, and these only"),
            (
                self.traces and not curves,
                "traces: activations are measured, the engine does not record them",
            ),
            (
                flip and not curves,
                "prompts: a figure of activations has no place for controls: expected no `flip`",
            ),
            (
                flip in (*CHANGES, CHANGED) and not self.prompts.controls,
                "prompts: problems that flipped are shown beside matched ones: expected `controls: true`",
            ),
        ):
            if is_wrong:
                raise ValueError(message)
        return self

    @property
    def conditions(self) -> tuple[str, ...]:
        """Every condition that must be measured, the baseline first."""
        shown = [name for row in self.rows for name in row.series] or [STUDIED]
        return tuple(dict.fromkeys((BASELINE, *shown)))

    @property
    def title(self) -> str:
        """The model's name, if all panels are of one model; else each has its own in its title."""
        names = {
            head.name or self.model_name or label_model(head.model or self.model or "")
            for head in self.heads
        }
        return names.pop() if len(names) == 1 and self.bars is None else ""

    @property
    def panels(self) -> list[Panel]:
        """All panels of curves, row by row."""
        usual_looks, title, panels = looks(self.conditions), self.title, []
        for row_index, row in enumerate(self.rows):
            limits = row.limits if self.seed_document else None
            row_looks = {
                name: _look(usual_looks[name], series.colour) for name, series in row.series.items()
            }
            for column, head in enumerate(self.heads):
                model = head.model or self.model or ""
                name = "" if title else head.name or self.model_name or label_model(model)
                named_head = head.model_copy(update={"model": model, "name": name})
                panels.append(Panel(row_index, column, named_head, row, row_looks, limits))
        return panels


def _look(usual: Look, colour: str | None) -> Look:
    """A solid line in one of the study's colours, or in the condition's own colour with its marker."""
    return Look(STUDY_COLOURS[colour], "", "-") if colour else usual._replace(dashes="-")


def load_figure_config(path: Path, overrides: Iterable[str] = ()) -> FigureConfig:
    """Read and check a figure config; `overrides` are `key=value` with dotted keys and YAML values.

    Where they name another model, what the config says of its own is left out, unless they say it too.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, or a value does not fit.
    """
    values = read_values(path, "figures", overrides)
    _forget_model(values, read_values(path, "figures"))
    try:
        return FigureConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, str(path))) from None


def _forget_model(values: Any, before: Any) -> None:
    """Take names, ranges, bars and the note of one model out of a config in which another has its place."""
    pairs = [(values, before)]
    for key in ("heads", "models", "rows") if isinstance(values, dict) else ():
        lists = [config.get(key) for config in (values, before)]
        pairs += (
            zip(*lists, strict=False) if all(isinstance(entries, list) for entries in lists) else ()
        )
    pairs = [
        pair for pair in pairs if all(isinstance(entry, dict) for entry in pair)
    ]  # the schema refuses others
    if any(new.get("model") != old.get("model") for new, old in pairs):
        for new, old in pairs:
            for name in OF_A_MODEL if new is values else (*OF_A_MODEL, "name"):
                if new.get(name) == old.get(name):
                    new.pop(name, None)
