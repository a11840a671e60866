"""`mless tasks`: the lm-eval tasks: where they are, links, a check."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.errors import HarnessError


def tasks(
    link: Annotated[bool, typer.Option("--link", help="Make the bare `lm_eval --tasks math500_mless` work.")] = False,
    unlink: Annotated[bool, typer.Option("--unlink", help="Undo --link exactly.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Measure every prompt's tokens for --model.")] = False,
    model: Annotated[str, typer.Option(help="Model folder or hub name whose tokenizer --check uses.")] = "demo",
) -> None:
    """Print the path for lm-eval's --include_path; link, unlink or check the tasks."""
    from harness.lm_eval_plugin import links
    from harness.lm_eval_plugin.check_tasks import check_tasks

    if link + unlink + check > 1:
        raise HarnessError("Give one of --link, --unlink and --check, not several.")
    if link:
        for path in links.link():
            typer.echo(path)
    elif unlink:
        removed = links.unlink()
        typer.echo("\n".join(f"removed {path}" for path in removed) or "no links were there")
    elif check:
        lines, holds = check_tasks(model)
        typer.echo("\n".join(lines))
        if not holds:
            raise typer.Exit(2)
    else:
        typer.echo(links.include_path())
