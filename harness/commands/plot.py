"""`mless plot`: figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Baseline, Margin, Metric, RunNames
from harness.constants import BASELINE, Kind


def plot(
    runs: RunNames,
    kind: Annotated[list[Kind] | None, typer.Option(help="Figure to draw; repeatable; default: all.")] = None,
    baseline: Baseline = BASELINE,
    margin: Margin = None,
    metric: Metric = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The figures' folder.")] = Path("figures"),
) -> None:
    """Draw accuracies, differences, lengths of completions and sweeps: PNG, SVG, PDF, the numbers as CSV.

    A sweep's figure (`--kind dose`) shows the difference against the filler's length. It needs a run of one filler in
    several lengths.
    """
    from harness.display.plots import make_plots

    files = make_plots(runs, output, kinds=kind or (), baseline=baseline, margin=margin, metric=metric)
    typer.echo("\n".join(f"{path.suffix[1:]:<4} {path}" for path in files))
