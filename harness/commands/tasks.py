"""`mless tasks`: the lm-eval tasks: where they are, links, a check, folders that need lm-eval alone."""

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
    wrap: Annotated[
        str | None, typer.Option(metavar="TASK", help="Write a task of lm-eval that generates, under --conditions.")
    ] = None,
    conditions: Annotated[
        str | None, typer.Option(help="With --wrap: such as wo,mless, or as a run config has them; default: all four.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="With --wrap: the new task folder.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model whose tokenizer is used by --check (default: demo), --standalone and --wrap."),
    ] = None,
) -> None:
    """Print the path for lm-eval's --include_path; link, unlink or check the tasks, or write some without mless."""
    from harness.lm_eval_plugin import links
    from harness.lm_eval_plugin.check_tasks import check_tasks
    from harness.lm_eval_plugin.standalone import write_standalone
    from harness.lm_eval_plugin.wrap import write_wrapped

    if link + unlink + check + (standalone is not None) + (wrap is not None) > 1:
        raise HarnessError("Give one of --link, --unlink, --check, --standalone and --wrap, not several.")
    if model is not None and not check and standalone is None and wrap is None:
        raise HarnessError("--model is for --check, --standalone or --wrap: add one of them, or leave --model out.")
    if wrap is None and not (conditions is None and output is None):
        raise HarnessError("--conditions and --output are for --wrap: add --wrap TASK, or leave them out.")
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
    elif wrap is not None:
        if output is None:
            raise HarnessError("--wrap writes a task folder: name a new one with -o DIR.")
        typer.echo("\n".join(write_wrapped(output, wrap, conditions, model)))
    else:
        typer.echo(links.include_path())
