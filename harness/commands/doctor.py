"""`mless doctor`: check the installation."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    model: Annotated[str | None, typer.Option(help="Also check that this model's tokenizer can be loaded.")] = None,
) -> None:
    """Check the installation, and name the fix for each check that fails."""
    from harness.doctor import check_installation

    checks = check_installation(model)
    for check in checks:
        mark = "ok  " if not check.fix else "FAIL" if check.fatal else "note"
        typer.echo(f"{mark}  {check.subject:<10} {check.found}")
        if check.fix:
            typer.echo(f"{'':<16} fix: {check.fix}")
    if any(check.fix and check.fatal for check in checks):
        raise typer.Exit(2)
