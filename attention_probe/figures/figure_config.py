"""The config of a figure: rows (what is compared) times heads, or activations of the first MLP."""

from collections.abc import Mapping
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, StrictInt, model_validator

from attention_probe.measure.activations import NEAR_ZERO_FACTORS
from attention_probe.prompts.prompts_config import PromptsConfig
from harness.constants import BASELINE, STUDY_CONDITION, CurveDefinition, CurveView
from harness.display.figures.figure_style import Style, choose_styles
from harness.display.value_texts import label
from harness.experiment.model_settings import label_model
from harness.experiment.prompts.tokenizer import load_model_config
from harness.yaml_settings import Strict, UserPath, read_values, validate

Limits = tuple[float, float]
"""The lower and the upper end of an axis."""
MODEL_KEYS = ("model_name", "note", "bars", "y_limits", "title", "c")
"""Keys whose values are right only for the model that a config names."""

NumberFromOne = Annotated[StrictInt, Field(ge=1)]
"""Number of a layer or a head."""


class SeriesConfig(Strict):
    """One line of a panel."""

    label: str | None = Field(default=None, min_length=1)
    """Its name in the legend."""


class RowConfig(Strict):
    """One row of panels."""

    view: CurveView
    """`full` (all tokens) or `aligned` (those of all prompts)."""
    series: dict[str, SeriesConfig] = Field(min_length=1)
    """The lines of a panel: each condition with its settings, `{}` if it has none."""
    y_limits: tuple[Limits, ...] = ()
    """The axis's ends, for the row or for each head."""
    region: str = "Inserted tokens"
    """The name of the filler's shaded region in the legend."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        """Refuse the baseline where a panel shows prompts with their filler."""
        if self.view == "full" and BASELINE in self.series:
            raise ValueError(f"series: {BASELINE} has no filler: use view `aligned`")
        return self


class HeadConfig(Strict):
    """One column of panels."""

    layer: NumberFromOne
    """The layer, from 1."""
    head: NumberFromOne
    """The head, from 1."""
    title: str | None = None
    """The panel's title."""
    name: str | None = None
    """The model's name in the title."""
    model: str | None = None
    """Another model than the figure's."""


class BarsConfig(Strict):
    """Accuracies of `wo`, `mless` and `mful` as bars."""

    title: str
    """The title above the bars."""
    runs: tuple[UserPath, ...] = ()
    """Run folders, else published accuracies."""
    published: dict[str, dict[str, float]] = Field(default={})
    """Published accuracies in percent, by model and condition."""
    y_limits: Limits = (0, 100)
    """The axis's ends, in percent."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        """Refuse two sources of accuracies, or none."""
        if bool(self.runs) == bool(self.published):
            raise ValueError("expected exactly one of `runs` and `published`")
        return self


class ActivationModel(Strict):
    """One panel of activations."""

    model: str
    """A hub id, a folder or `smollm2`."""
    name: str = ""
    """The panel's title. By default the model's name."""
    c: float = NEAR_ZERO_FACTORS[0]
    """0.1, 0.13 or 0.32: near zero is |a| below 1.4826 MAD c."""

    @property
    def title(self) -> str:
        """The panel's title."""
        return self.name or label_model(self.model)

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        """Refuse a factor for which the traces have no numbers."""
        if self.c not in NEAR_ZERO_FACTORS:
            raise ValueError(
                f"c: expected one of {', '.join(map(str, NEAR_ZERO_FACTORS))}, got {self.c:g}"
            )
        return self


class Panel(NamedTuple):
    """One panel of curves.

    Attributes:
        row_index: The index of the row among the config's rows.
        column_index: The index of the head among the config's heads.
        head: The config of the head.
        model: The head's model.
        title: The panel's title.
        row_config: The config of the row.
        style_by_condition: The styles of the figure's conditions, so that a condition has the same
            style in all panels.
        x_limits: The first and the last position that are drawn; None for all.
    """

    row_index: int
    column_index: int
    head: HeadConfig
    model: str
    title: str
    row_config: RowConfig
    style_by_condition: dict[str, Style]
    x_limits: Limits | None

    def line_name(self, condition: str) -> str:
        """The name of a condition's line in the legend."""
        return self.row_config.series[condition].label or label(condition)

    @property
    def y_limits(self) -> Limits | None:
        """The ends of its axis, if the config has them."""
        row_limits = self.row_config.y_limits
        # a single pair is for all heads of the row
        if len(row_limits) == 1:
            return row_limits[0]
        return row_limits[self.column_index] if row_limits else None


class FigureConfig(Strict):
    """One figure."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9._-]+$")
    """The name of the figure and its files."""
    kind: Literal["curves", "histogram", "token_classes"] = "curves"
    """What is drawn: `curves` need `heads` and `rows`, the other two need `models`."""
    seed_document: str | None = None
    """The study's figure that is reproduced."""
    model: str | None = None
    """A hub id, a folder or `smollm2`."""
    model_name: str | None = None
    """The model's name in titles, such as `Llama-3.1-8B`."""
    prompts: PromptsConfig
    """The averaged prompts."""
    traces: UserPath | None = None
    """Stored traces to draw, as `mless probe` writes them."""
    definition: CurveDefinition = "common"
    """Whose queries are averaged: those that all conditions have (`common`), or all later ones."""
    y_label: str = "Average attention"
    """The vertical axis's label."""
    exclude_first_token: bool | None = None
    """The first token is left out. By default for Llama and Gemma."""
    heads: tuple[HeadConfig, ...] = Field(default=(), max_length=3)
    """The columns of panels, at most three."""
    rows: tuple[RowConfig, ...] = ()
    """The rows of panels, from top to bottom. Each has a panel for each of `heads`."""
    models: tuple[ActivationModel, ...] = ()
    """The panels of activations."""
    bars: BarsConfig | None = None
    """Bars of accuracies above the panels."""
    note: str | None = None
    """A line below the figure."""

    @model_validator(mode="after")
    def _refuse_incomplete_panels(self) -> Self:
        """Refuse panels of which the limits of an axis or the model are unknown."""
        for index, row in enumerate(self.rows):
            if len(row.y_limits) not in (0, 1, len(self.heads)):
                raise ValueError(f"rows.{index}: y_limits: expected one pair or one for each head")
        for index, head in enumerate(self.heads):
            if not (head.model or self.model):
                raise ValueError(f"heads.{index}: needs `model`, here or for the whole figure")
        return self

    @model_validator(mode="after")
    def _refuse_keys_of_another_kind(self) -> Self:
        """Refuse keys that the kind of the figure does not use, or lacks.

        Curves need `heads` and `rows`. Activations need `models`; they are not read from stored
        traces, and their problems have any outcome. No figure shows controls.
        """
        if self.kind == "curves":
            if self.models or not (self.heads and self.rows):
                raise ValueError("kind: curves needs `heads` and `rows`, and these only")
        elif self.heads or not self.models:
            raise ValueError(f"kind: {self.kind} needs `models`, and these only")
        elif self.traces:
            raise ValueError("traces: activations are measured, the engine does not record them")
        if self.prompts.controls:
            raise ValueError("prompts: a figure shows no matched problems: expected no `controls`")
        if self.prompts.flip and self.kind != "curves":
            raise ValueError(
                "prompts: activations are shown of problems with any outcome: expected no `flip`"
            )
        return self

    @property
    def conditions(self) -> tuple[str, ...]:
        """Every condition that must be measured, the baseline first.

        Rows name those of curves. Activations are compared without filler and with Mless.
        """
        names = list(chain.from_iterable(row.series for row in self.rows)) or [STUDY_CONDITION]
        return tuple(dict.fromkeys((BASELINE, *names)))

    @property
    def layers_by_model(self) -> dict[str, tuple[int, ...]]:
        """The layers to record of each model, as indices from 0.

        Activations are always those of the first layer; curves are of the layers of their heads.
        """
        layers_by_model = {model.model: {0} for model in self.models}
        for panel in self.panels:
            layers_by_model.setdefault(panel.model, set()).add(panel.head.layer - 1)
        return {model: tuple(sorted(layers)) for model, layers in layers_by_model.items()}

    @property
    def title(self) -> str:
        """The model's name if all panels are of one model; otherwise the panels name it.

        In a figure with bars the panels name it too, because a title would be read as that of bars.
        """
        model_names = {self._model_name(head) for head in self.heads}
        return model_names.pop() if len(model_names) == 1 and self.bars is None else ""

    def _model_name(self, head: HeadConfig) -> str:
        """The name of a head's model in titles."""
        return head.name or self.model_name or label_model(head.model or self.model or "")

    @property
    def panels(self) -> list[Panel]:
        """All panels of curves, row by row."""
        indices = product(range(len(self.rows)), range(len(self.heads)))
        return [self._make_panel(row_index, column_index) for row_index, column_index in indices]

    def _make_panel(self, row_index: int, column_index: int) -> Panel:
        """The panel of a row and a head, by their indices."""
        row_config = self.rows[row_index]
        head = self.heads[column_index]
        # a figure that reproduces one of the study's shows as many positions as the study does
        last_position = 120 if row_config.view == "full" else 60
        # the figure's title names the model if all panels have the same
        model_name = "" if self.title else self._model_name(head)
        default_title = f"{model_name} Layer {head.layer} Head {head.head}".strip()
        return Panel(
            row_index=row_index,
            column_index=column_index,
            head=head,
            model=head.model or self.model or "",
            title=head.title or default_title,
            row_config=row_config,
            style_by_condition=choose_styles(self.conditions),
            x_limits=(0, last_position) if self.seed_document else None,
        )


def load_figure_config(
    path: Path, overrides: Mapping[str, Any], *, model: str | None = None
) -> FigureConfig:
    """Read and check a figure config.

    If an override names another model, the values of MODEL_KEYS in the file are dropped, unless
    they are overridden too.

    Args:
        path: The YAML file.
        overrides: New values, by dotted keys.
        model: Another model for all panels. Heads of different models cannot be compared by their
            numbers, so its heads are evenly spread from the first to the last.

    Raises:
        ModelError: the other model's config cannot be read.
        ConfigError: the file is missing or not YAML, a key is unknown, or a value does not fit.
    """
    config_values = read_values(path, "figures", overrides)
    # what is not a mapping is left for the schema to refuse
    if isinstance(config_values, dict):
        if model:
            _replace_model_and_heads(config_values, model)
        _drop_model_values(config_values, read_values(path, "figures"))
    return validate(FigureConfig, config_values, path)


def _replace_model_and_heads(config_values: dict[str, Any], model: str) -> None:
    """Make all panels those of a model, with heads that are evenly spread from first to last.

    A single panel gets the middle head. The config's mappings are changed in place.
    """
    config_values["model"] = model
    if "models" in config_values:
        config_values["models"] = [{"model": model}]
    heads = config_values.get("heads")
    # heads of another form are left for the schema to refuse
    if not isinstance(heads, list) or not all(isinstance(head, dict) for head in heads):
        return
    last_index = load_model_config(model).num_attention_heads - 1
    for index, head in enumerate(heads):
        relative_position = index / (len(heads) - 1) if len(heads) > 1 else 0.5
        head["head"] = 1 + round(relative_position * last_index)
        head.pop("model", None)


def _drop_model_values(config_values: Any, file_values: Any) -> None:
    """Drop the values of MODEL_KEYS if any model differs from the file's.

    They describe the file's model, so they would be wrong for another. Values that differ from the
    file's were overridden, so they remain. The mappings in `config_values` are changed in place.
    """
    section_pairs = _pair_sections(config_values, file_values)
    if all(
        section.get("model") == file_section.get("model") for section, file_section in section_pairs
    ):
        return
    for section, file_section in section_pairs:
        # in a head `name` is the model's name, but at the top level it is the figure's, which stays
        described_keys = MODEL_KEYS if section is config_values else (*MODEL_KEYS, "name")
        for key in described_keys:
            if section.get(key) == file_section.get(key):
                section.pop(key, None)


def _pair_sections(config_values: Any, file_values: Any) -> list[tuple[Any, Any]]:
    """Pairs of a mapping in the values and the same one in the file, of all that may name a model.

    These are the top level and the entries of `heads`, `models` and `rows`.
    """
    section_pairs = [(config_values, file_values)]
    for key in ("heads", "models", "rows"):
        sections = config_values.get(key)
        file_sections = file_values.get(key)
        if isinstance(sections, list) and isinstance(file_sections, list):
            section_pairs += zip(sections, file_sections, strict=False)
    # what is not a mapping is left for the schema to refuse
    return [pair for pair in section_pairs if all(isinstance(section, dict) for section in pair)]
