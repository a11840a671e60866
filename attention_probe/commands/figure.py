"""`mless figure`: measure what is missing and draw a figure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Overrides


def figure(
    config: Annotated[Path, typer.Argument(help="A figure config, e.g. configs/figures/flipped-products.yaml.")],
    overrides: Overrides = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder.")] = Path("results/figures"),
) -> None:
    """Measure what is missing and draw a figure: PNG, SVG, PDF and its numbers as CSV."""
    from attention_probe.figures.config import load_figure_config
    from attention_probe.figures.make_figure import make_figure
    from harness.display.progress import progress_bar

    with progress_bar("figure") as advance:
        files = make_figure(
            load_figure_config(config, overrides or ()),
            device=device,
            folder=output,
            advance=advance,
        )
    typer.echo("\n".join(f"{path.suffix[1:]:<6}  {path}" for path in files))
