"""`mless study`: the study for several models."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Overrides


def study(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Hub names or folders.")],
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    layers: Annotated[
        str, typer.Option(help="Layers whose attention is recorded for flipped problems.")
    ] = "1-3",
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the study.")] = Path(
        "results/study"
    ),
) -> None:
    """Run the study for several models: table, flipped problems, their attention, five figures.

    The same command continues a study that was interrupted.
    """
    from harness.execution.run_study import run_study

    typer.echo(run_study(models, output, overrides=overrides or (), limit=limit, layers=layers))
