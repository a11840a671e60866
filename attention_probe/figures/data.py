"""What a figure shows, as numbers: the curves of each panel, the accuracies of its bars, and both as one tidy table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attention_probe.analysis.averaging import aligned_curve, chosen_problems, full_curve, shared_problems
from attention_probe.analysis.curve import Curve, as_frame
from attention_probe.figures.config import BarsConfig, FigureConfig, Panel
from attention_probe.traces import AttentionTraces, TraceHeader
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
        curves: One for each condition, in the config's order.
        controls: The same of matched problems that did not flip, drawn thin and dashed; empty without such problems.
        header: What the traces are of, and what must be said of them.
        problems: The ids of the problems averaged, controls apart.
        note: What else a reader must be told, such as another tokenizer than the model's own.

    Raises:
        ConfigError: the curves are not those that the panel names.
    """

    panel: Panel
    curves: tuple[Curve, ...]
    controls: tuple[Curve, ...] = ()
    header: TraceHeader
    problems: tuple[str, ...]
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
    def prompts(self) -> int:
        """The number of prompts averaged."""
        return max(curve.prompts for curve in self.curves)

    @property
    def fewest(self) -> int:
        """The fewest prompts that any point shown stands on."""
        return int(min(self._shown("count", self.curves), default=0))

    @property
    def highest(self) -> float:
        """The highest point shown, bands and controls included; 1 if nothing is above zero."""
        curves = (*self.curves, *self.controls)
        return float(np.nanmax([*self._shown("mean", curves), *self._shown("high", curves)], initial=0.0)) or 1.0

    def _shown(self, column: str, curves: Sequence[Curve]) -> NDArray[np.floating | np.integer]:
        """One of the curves' columns, within the panel's limits."""
        low, high = self.panel.shows.limits
        return np.concatenate([getattr(curve, column)[(curve.x >= low) & (curve.x <= high)] for curve in curves])

    @property
    def region(self) -> tuple[float, float] | None:
        """What to shade: from the first curve's first inserted token to the last curve's last."""
        regions = [curve.filler_region for curve in self.curves if curve.filler_region is not None]
        if not regions or self.panel.shows.region is None or self.panel.shows.view == "aligned":
            return None
        return min(start for start, _ in regions), max(stop for _, stop in regions)


def panel_curves(panel: Panel, traces: AttentionTraces, *, note: str | None = None) -> PanelCurves:
    """The curves of one panel, every condition over the same problems; controls apart from the problems chosen.

    Args:
        panel: Which layer, head, conditions, view and definition.
        traces: Of the panel's model. The first token is left out of Llama's and Gemma's curves unless the config says.
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
                exclude_first=panel.excludes_first_token(traces.header),
                problem_ids=problem_ids,
            )
            for condition in panel.shows.series
        )

    return PanelCurves(
        panel=panel,
        curves=over(chosen),
        controls=over(matched) if matched else (),
        header=traces.header,
        problems=tuple(chosen),
        note=note,
    )


class Bars(NamedTuple):
    """Accuracies for the bars: rows as of `leaderboard.accuracy_table`; the source, if they are reference numbers."""

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

    from harness.analysis.leaderboard import accuracy_table
    from harness.runs.sample_frame import load_run

    source = None
    if config.reference is not None:
        reference = read_reference(str(config.reference))
        source = reference.source
        rows = [
            {"model": entry.model, "layout": "", "condition": condition, "accuracy": accuracy}
            for entry in reference.accuracies
            for condition, accuracy in entry.conditions.items()
        ]
        table = pandas.DataFrame(rows).assign(accuracy_low=np.nan, accuracy_high=np.nan, n=0)
    else:
        table = accuracy_table(pandas.concat([load_run(run) for run in config.runs]))
    where = config.reference or ", ".join(map(str, config.runs))
    missing = [condition for condition in config.conditions if condition not in set(table["condition"])]
    if missing:
        raise ConfigError(
            f"{where}: no accuracy for {', '.join(missing)}, expected {', '.join(config.conditions)}. "
            "Run the missing conditions, or leave them out of the config's bars.conditions."
        )
    return Bars(pandas.concat([table[table["condition"] == name] for name in config.conditions]), source)


def figure_table(config: FigureConfig, drawn: Sequence[PanelCurves], bars: Bars | None = None) -> pandas.DataFrame:
    """Every number that the figure shows, one row per point; layer and head are indices from 0, `label` from 1."""
    import pandas

    rows = [row for frame in _frames(config, drawn, bars) for row in frame.to_dict("records")]
    table = pandas.DataFrame(rows).assign(figure=config.name)
    leading = ["figure", "kind", "panel", "row", "column", "model", "condition", "legend"]
    return table[[*leading, *table.columns.difference(leading, sort=False)]]


def _frames(config: FigureConfig, drawn: Sequence[PanelCurves], bars: Bars | None) -> Iterator[pandas.DataFrame]:
    for d in drawn:
        for kind, curves in (("curve", d.curves), ("control", d.controls)):
            for curve in curves:
                yield as_frame([curve]).assign(
                    kind=kind,
                    panel=d.panel.title,
                    row=d.panel.row,
                    column=d.panel.column,
                    model=d.panel.head.model or str(d.panel.head.architecture),
                    legend=d.panel.shows.series[curve.condition].label,
                    random_weights=d.header.random_weights,
                    on_outcome=d.header.on_outcome,
                    unit="share of a query's attention",
                )
    if bars is not None and config.bars is not None:
        names = {"accuracy": "mean", "accuracy_low": "low", "accuracy_high": "high", "n": "count"}
        yield (
            bars.table[["model", "layout", "condition", *names]]
            .assign(
                kind="reference bar" if bars.reference else "bar",
                panel=config.bars.title,
                legend=bars.table["condition"].map(label),
                unit="percent",
                note=bars.reference,
            )
            .rename(columns=names)
        )
