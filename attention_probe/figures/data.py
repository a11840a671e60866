"""What a figure shows, as numbers: the curves of each panel, the accuracies of its bars, and both as one tidy table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attention_probe.analysis.averaging import aligned_curve, chosen_problems, full_curve, shared_problems
from attention_probe.analysis.curve import Curve, as_frame
from attention_probe.figures.config import BarsConfig, FigureConfig, Panel
from attention_probe.traces import AttentionTraces
from harness.analysis.reference import read_reference
from harness.display.words import label
from harness.errors import ConfigError

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True, kw_only=True)
class PanelCurves:
    """What one panel draws.

    Attributes:
        panel: From the config.
        curves: One a condition, in the config's order.
        controls: Matched problems that did not flip, drawn thin and dashed.
        random_weights: The model has the architecture but not the weights.
        on_outcome: The problems were chosen by what the model answered.
        problems: The ids of the problems averaged, controls apart.
        note: What else a reader must be told, such as another tokenizer than the model's own.

    Raises:
        ConfigError: the curves are not those that the panel names.
    """

    panel: Panel
    curves: tuple[Curve, ...]
    controls: tuple[Curve, ...] = ()
    random_weights: bool = False
    on_outcome: bool = False
    problems: tuple[str, ...] = ()
    note: str | None = None

    def __post_init__(self) -> None:
        head, shows = self.panel.head, self.panel.shows
        wanted = [(name, head.layer, head.head, shows.view, self.panel.definition) for name in shows.series]
        for curves in (self.curves, self.controls or self.curves):
            got = [(c.condition, c.layer, c.head, c.view, c.definition) for c in curves]
            if got != wanted:
                raise ConfigError(
                    f"Panel {self.panel.title!r}: expected the curves (condition, layer, head, view, definition) "
                    f"{wanted}, got {got}. Measure what the config names."
                )

    @property
    def stamps(self) -> list[str]:
        """What a reader must know before reading the panel."""
        stamps = ["random weights"] if self.random_weights else []
        if self.on_outcome:
            stamps.append("selected on outcome")
        return stamps

    @property
    def prompts(self) -> int:
        """The number of prompts averaged."""
        return max(curve.prompts for curve in self.curves)

    @property
    def fewest(self) -> int:
        """The fewest prompts that any point shown stands on."""
        low, high = self.panel.shows.limits
        shown = [c.count[(c.x >= low) & (c.x <= high) & np.isfinite(c.mean)] for c in self.curves]
        return min((int(count.min()) for count in shown if count.size), default=0)

    @property
    def region(self) -> tuple[float, float] | None:
        """What to shade: from the first curve's first inserted token to the last curve's last."""
        regions = [curve.filler_region for curve in self.curves if curve.filler_region is not None]
        if not regions or self.panel.shows.region is None or self.panel.shows.view == "aligned":
            return None
        return min(start for start, _ in regions), max(stop for _, stop in regions)


def panel_curves(panel: Panel, traces: AttentionTraces, *, model_type: str, note: str | None = None) -> PanelCurves:
    """The curves of one panel, every condition over the same problems; controls apart from the problems chosen.

    Args:
        panel: Which layer, head, conditions, view and definition.
        traces: Of the panel's model.
        model_type: The model's HF type; the first token is left out of Llama's and Gemma's curves unless told.
        note: What else a reader must be told.

    Raises:
        ConfigError: the traces lack the layer, the head or a condition, or no problem has all conditions.
    """
    chosen = chosen_problems(traces, panel.shows.series)
    matched = [name for name in shared_problems(traces, panel.shows.series) if name not in set(chosen)]
    curve = aligned_curve if panel.shows.view == "aligned" else full_curve

    def over(problem_ids: list[str]) -> tuple[Curve, ...]:
        return tuple(
            curve(
                traces,
                condition=condition,
                layer=panel.head.layer,
                head=panel.head.head,
                definition=panel.definition,
                exclude_first=panel.excludes_first_token(model_type),
                problem_ids=problem_ids,
            )
            for condition in panel.shows.series
        )

    return PanelCurves(
        panel=panel,
        curves=over(chosen),
        controls=over(matched) if matched else (),
        random_weights=traces.header.random_weights,
        on_outcome=traces.header.on_outcome,
        problems=tuple(chosen),
        note=note,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Accuracies for the bars: rows as of `accuracy.accuracy_table`; the source, if they are reference numbers."""

    table: pandas.DataFrame
    reference: str | None = None


def read_bars(config: BarsConfig) -> Bars:
    """The accuracies that a figure's bars show.

    Raises:
        ConfigError: the reference file is missing or not of the form that results/reference/ has, or a condition has
            no accuracy.
        RunError: a run is missing or unfinished.
    """
    import pandas

    from harness.analysis.accuracy import accuracy_table
    from harness.runs.sample_frame import load_run

    if config.reference is not None:
        table, source = _read_reference(config.reference)
    else:
        table, source = accuracy_table(pandas.concat([load_run(run) for run in config.runs])), None
    where = config.reference or ", ".join(map(str, config.runs))
    missing = [condition for condition in config.conditions if condition not in set(table["condition"])]
    if missing:
        raise ConfigError(
            f"{where}: no accuracy for {', '.join(missing)}, expected {', '.join(config.conditions)}. "
            "Run the missing conditions, or leave them out of the config's bars.conditions."
        )
    by_condition = [table[table["condition"] == condition] for condition in config.conditions]
    return Bars(table=pandas.concat(by_condition, ignore_index=True), reference=source)


def _read_reference(path: Path) -> tuple[pandas.DataFrame, str]:
    import pandas

    reference = read_reference(str(path))
    rows = [
        {"model": entry.model, "layout": "", "condition": condition, "accuracy": accuracy}
        for entry in reference.accuracies
        for condition, accuracy in entry.conditions.items()
    ]
    return pandas.DataFrame(rows).assign(accuracy_low=np.nan, accuracy_high=np.nan, n=0), reference.source


def figure_table(config: FigureConfig, drawn: Sequence[PanelCurves], bars: Bars | None = None) -> pandas.DataFrame:
    """Every number that the figure shows, one row a point; layer and head are indices from 0, `label` counts from 1."""
    import pandas

    frames = list(_curve_rows(drawn))
    if bars is not None and config.bars is not None:
        frames.append(_bar_rows(config.bars, bars))
    rows = [row for frame in frames for row in frame.to_dict("records")]
    table = pandas.DataFrame(rows).assign(figure=config.name)
    leading = ["figure", "kind", "panel", "row", "column", "model", "condition", "legend"]
    return table[[*leading, *(name for name in table.columns if name not in leading)]]


def _curve_rows(drawn: Sequence[PanelCurves]) -> Iterator[pandas.DataFrame]:
    for d in drawn:
        for kind, curves in (("curve", d.curves), ("control", d.controls)):
            for curve in curves:
                yield as_frame([curve]).assign(
                    kind=kind,
                    panel=d.panel.title,
                    row=d.panel.row,
                    column=d.panel.column,
                    model=d.panel.model or str(d.panel.architecture),
                    legend=d.panel.shows.series[curve.condition].label,
                    random_weights=d.random_weights,
                    on_outcome=d.on_outcome,
                    unit="share of a query's attention",
                )


def _bar_rows(config: BarsConfig, bars: Bars) -> pandas.DataFrame:
    table = bars.table[["model", "layout", "condition"]]
    return table.assign(
        kind="reference bar" if bars.reference else "bar",
        panel=config.title,
        legend=[label(condition) for condition in table["condition"]],
        unit="percent",
        mean=bars.table["accuracy"],
        low=bars.table["accuracy_low"],
        high=bars.table["accuracy_high"],
        count=bars.table["n"],
        note=bars.reference,
    )
