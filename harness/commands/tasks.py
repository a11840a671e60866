"""`mless tasks`: the folder of our lm-eval tasks, and other tasks under conditions."""

from pathlib import Path
from typing import Annotated

import typer


def tasks(
    wrap: Annotated[
        str | None,
        typer.Option(
            metavar="TASK", help="Write this generative task of lm-eval under --conditions."
        ),
    ] = None,
    conditions: Annotated[
        str | None,
        typer.Option(help="With --wrap: conditions as in a run config; default: the study's four."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --wrap: the new task folder.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With --wrap: model whose tokenizer measures the fillers.")
    ] = None,
) -> None:
    """Print the path for lm-eval's --include_path, or write a task that works without mless."""
    from harness import resources
    from harness.errors import ConfigError
    from harness.lm_eval_plugin.task_folders import write_wrapped_tasks

    if wrap and output:
        lines = write_wrapped_tasks(output, wrap, conditions, model)
    elif (wrap, output) != (None, None) or conditions or model:
        raise ConfigError(
            "Expected --wrap TASK with --output DIR; --conditions and --model need both."
        )
    else:
        lines = [str(resources.folder("tasks"))]
    typer.echo("\n".join(lines))
