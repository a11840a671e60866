"""`mless figure`: measure what is missing and draw a figure."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Overrides
from harness.errors import ConfigError


def figure(
    source: Annotated[
        Path, typer.Argument(metavar="CONFIG|TRACES", help="A figure config or a folder of traces.")
    ],
    overrides: Overrides = None,
    model: Annotated[
        str | None,
        typer.Option(help="Draw the config for another model, with heads from its first to last."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(help="With traces: only these layers, such as 1-3, in a figure each."),
    ] = None,
    heads: Annotated[
        str | None, typer.Option(help="With traces: only these heads, such as 1,5.")
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, ...")] = "cpu",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the figures.")] = Path(
        "results/figures"
    ),
) -> None:
    """Draw a figure, or a figure of each layer of traces: PNG, SVG, PDF and its numbers as CSV.

    Missing measurements of a config are made first.
    """
    from attention_probe.figures.figure_config import load_figure_config
    from attention_probe.figures.trace_figures import draw_traces
    from harness.display.progress import progress_bar
    from harness.layers_and_heads import parse_numbers

    is_folder = source.is_dir()
    if (is_folder and (overrides or model)) or (not is_folder and (layers or heads)):
        raise ConfigError(
            "--set and --model change a config; --layers and --heads choose from traces."
        )
    if is_folder:
        layer_numbers = parse_numbers(layers, "--layers")
        files = draw_traces(source, output, layer_numbers, parse_numbers(heads, "--heads"))
    else:
        from attention_probe.figures.make_figure import make_figure  # it needs torch

        with progress_bar("figure") as advance:
            config = load_figure_config(source, overrides or (), model=model)
            files = make_figure(config, device=device, folder=output, advance=advance)
    typer.echo("\n".join(f"{path.suffix[1:]:<6}  {path}" for path in files))
