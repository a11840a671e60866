"""`mless export`: a run as logs of Inspect."""

from pathlib import Path
from typing import Annotated

import typer


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the logs.")] = Path(
        "inspect"
    ),
) -> None:
    """Write a run as logs that `inspect view` opens: prompts, completions and verdicts."""
    from harness.display.inspect_logs import write_inspect_logs
    from harness.errors import ConfigError
    from harness.runs.run_reader import Run

    loaded_run = Run.load(run)
    if not loaded_run.receipt:
        raise ConfigError(f"{run}: expected a run folder of mless.")
    if loaded_run.endpoint != "accuracy":
        raise ConfigError(
            f"{run} has no completions: its endpoint is {loaded_run.endpoint}, expected accuracy."
        )
    for path in write_inspect_logs(loaded_run, output):
        typer.echo(f"log   {path}")
