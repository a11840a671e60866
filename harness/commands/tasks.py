"""`mless tasks`: the lm-eval tasks: where they are, links, a check, a folder that needs lm-eval alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.errors import HarnessError


def tasks(
    link: Annotated[bool, typer.Option("--link", help="Make the bare `lm_eval --tasks math500_mless` work.")] = False,
    unlink: Annotated[bool, typer.Option("--unlink", help="Undo --link exactly.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Measure every prompt's tokens for --model.")] = False,
    standalone: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the four conditions as a task folder without mless.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model folder or hub name whose tokenizer is used by --check (default: demo), --standalone."),
    ] = None,
) -> None:
    """Print the path for lm-eval's --include_path; link, unlink or check the tasks, or write them without mless."""
    from harness.lm_eval_plugin import links
    from harness.lm_eval_plugin.check_tasks import check_tasks
    from harness.lm_eval_plugin.standalone import write_standalone

    if link + unlink + check + (standalone is not None) > 1:
        raise HarnessError("Give one of --link, --unlink, --check and --standalone, not several.")
    if model is not None and not check and standalone is None:
        raise HarnessError("--model is for --check or --standalone: add one of them, or leave --model out.")
    if link:
        for path in links.link():
            typer.echo(path)
    elif unlink:
        removed = links.unlink()
        typer.echo("\n".join(f"removed {path}" for path in removed) or "no links were there")
    elif check:
        lines, holds = check_tasks(model or "demo")
        typer.echo("\n".join(lines))
        if not holds:
            raise typer.Exit(2)
    elif standalone is not None:
        for path in write_standalone(standalone, model):
            typer.echo(path)
    else:
        typer.echo(links.include_path())
