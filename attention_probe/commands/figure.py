"""`mless figure`: measure what is missing and draw a figure."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Overrides, ProbeDevice


def figure(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A figure config.")],
    overrides: Overrides = None,
    model: Annotated[
        str | None,
        typer.Option(help="Draw the config for another model, with heads from its first to last."),
    ] = None,
    device: ProbeDevice = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the figures.")] = Path(
        "results/figures"
    ),
) -> None:
    """Draw a figure: PNG, SVG, PDF and its numbers as CSV. Missing measurements are made first."""
    from attention_probe.figures.figure_config import load_figure_config
    from attention_probe.figures.probe_figure import make_figure
    from harness.display.progress import progress_bar
    from harness.yaml_settings import parse_overrides

    with progress_bar("figure") as advance:
        figure_config = load_figure_config(config, parse_overrides(overrides), model=model)
        figure_paths = make_figure(figure_config, device=device, folder=output, advance=advance)
    typer.echo("\n".join(f"{path.suffix[1:]:<6}  {path}" for path in figure_paths))
