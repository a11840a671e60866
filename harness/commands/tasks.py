"""`mless tasks`: where the lm-eval tasks are, and task folders that need lm-eval alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tasks(
    standalone: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the four conditions as a task folder without mless.")
    ] = None,
    wrap: Annotated[
        str | None, typer.Option(metavar="TASK", help="Write a task of lm-eval that generates, under --conditions.")
    ] = None,
    conditions: Annotated[
        str | None, typer.Option(help="With --wrap: such as wo,mless, or as a run config has them; default: all four.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="With --wrap: the new task folder.")] = None,
    model: Annotated[str | None, typer.Option(help="Model whose tokenizer measures the fillers written.")] = None,
) -> None:
    """Print the path for lm-eval's --include_path, or write tasks that do not need mless."""
    from harness import resources
    from harness.errors import ConfigError
    from harness.lm_eval_plugin.task_folders import write_standalone, write_wrapped

    if (wrap is None) != (output is None) or (standalone and wrap):
        raise ConfigError("Expected --standalone DIR, or --wrap TASK with --output DIR.")
    if wrap and output:
        lines = write_wrapped(output, wrap, conditions, model)
    elif standalone:
        lines = write_standalone(standalone, model)
    else:
        lines = [str(resources.folder("tasks"))]
    typer.echo("\n".join(lines))
