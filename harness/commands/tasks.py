"""`mless tasks`: where the lm-eval tasks are, and any task of lm-eval under conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tasks(
    wrap: Annotated[
        str | None,
        typer.Option(
            metavar="TASK", help="Write a task of lm-eval that generates, under --conditions."
        ),
    ] = None,
    conditions: Annotated[
        str | None,
        typer.Option(
            help="With --wrap: such as wo,mless, or as a run config has them; default: all four."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --wrap: the new task folder.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Model whose tokenizer measures the fillers written.")
    ] = None,
) -> None:
    """Print the path for lm-eval's --include_path, or write a task that does not need mless."""
    from harness import resources
    from harness.errors import ConfigError
    from harness.lm_eval_plugin.task_folders import write_wrapped

    if (wrap is None) != (output is None):
        raise ConfigError("Expected --wrap TASK with --output DIR, both or neither.")
    written = (
        write_wrapped(output, wrap, conditions, model)
        if wrap and output
        else [str(resources.folder("tasks"))]
    )
    typer.echo("\n".join(written))
