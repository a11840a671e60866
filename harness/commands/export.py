"""`mless export`: a run as one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.options import RunNames


def export(
    runs: RunNames,
    output: Annotated[Path, typer.Option("--output", "-o", help="The Parquet file.")] = Path("samples.parquet"),
) -> None:
    """Write the samples of one run to a Parquet file: one row per sample, with the run's receipt in the file."""
    from harness.runs.find_runs import locate_one
    from harness.runs.parquet import export_parquet
    from harness.runs.read_run import read_run

    typer.echo(f"{export_parquet(read_run(locate_one(runs)), output):,} samples  {output}")
