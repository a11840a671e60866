"""`mless run`: run or continue one experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import ConfigPath, Overrides


def run(
    config: ConfigPath,
    overrides: Overrides = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    output: Annotated[Path | None, typer.Option(help="Run folder; default: the config's `output`/`name`.")] = None,
    shard: Annotated[str | None, typer.Option(metavar="I/N", help="Run only part I of N; see `mless merge`.")] = None,
    fork: Annotated[
        bool,
        typer.Option("--fork", help="If the folder holds a run with other settings, start a new folder beside it."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print a line every 30 s instead of progress bars.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; load no model.")] = False,
) -> None:
    """Run one experiment, or continue it: all conditions through one loaded model; a table, a figure, a run folder."""
    from harness.display.describe_plan import describe_plan
    from harness.engines.backends import check_backend
    from harness.execution.run import execute
    from harness.experiment.config import load_config
    from harness.experiment.plan import Shard, make_plan

    settings = load_config(config, overrides or ())
    check_backend(settings)
    plan = make_plan(settings, limit=limit, shard=Shard.parse(shard) if shard else None)
    typer.echo(describe_plan(plan), err=not dry_run)
    if dry_run:
        return
    show_run(execute(plan, output=output, fork=fork, quiet=quiet))


def show_run(folder: Path) -> None:
    """Print a run's table, and where its figure and files are."""
    from harness.display.table_pages import make_table

    typer.echo(make_table([str(folder)], lenient=True))
    typer.echo(f"\nfigure  {folder / 'accuracy.png'}\nrun     {folder}")
