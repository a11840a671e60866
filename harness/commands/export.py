"""`mless export`: a run as one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[str, typer.Argument(help="A run folder, or a folder of one.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file.")] = Path("samples.parquet"),
) -> None:
    """Write a run's samples as one Parquet file, one row each, with the run's receipt in it."""
    from harness.runs.find_runs import locate_folder
    from harness.runs.parquet import export_parquet

    typer.echo(f"{export_parquet(locate_folder(run), output):,} samples  {output}")
