"""`mless export`: a run as one Parquet or CSV file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.options import RunName


def export(
    run: RunName,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file: CSV if its name ends in .csv, else Parquet.")
    ] = Path("samples.parquet"),
) -> None:
    """Write the samples of one run to a file, one row per sample. Parquet also holds the run's receipt."""
    from harness.runs.find_runs import locate_one
    from harness.runs.parquet import export_samples
    from harness.runs.read_run import read_run

    typer.echo(f"{export_samples(read_run(locate_one(run)), output):,} samples  {output}")
