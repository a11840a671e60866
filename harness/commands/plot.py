"""`mless plot`: figures of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.choices import Kind, Width
from harness.options import Baseline, Margin, Metric, RunNames


def plot(
    runs: RunNames,
    kind: Annotated[list[Kind] | None, typer.Option(help="Figure to draw; repeatable; default: all.")] = None,
    width: Annotated[Width, typer.Option(help="Width of a page or of one column.")] = "page",
    baseline: Baseline = "wo",
    margin: Margin = None,
    metric: Metric = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The figures' folder.")] = Path("figures"),
) -> None:
    """Draw accuracies, differences, flips and lengths of completions: PNG, SVG, PDF, and the numbers as CSV."""
    from harness.display.plots import make_plots

    files = make_plots(runs, output, kinds=kind or (), width=width, baseline=baseline, margin=margin, metric=metric)
    typer.echo("\n".join(f"{path.suffix[1:]:<4} {path}" for path in files))
