"""`mless doctor`: check the installation."""

from typing import Annotated

import typer


def doctor(
    model: Annotated[
        str | None, typer.Option(help="Also check that this model's tokenizer can be loaded.")
    ] = None,
) -> None:
    """Check the installation, and name the fix for each check that fails."""
    from harness.check_installation import check_installation

    checks = check_installation(model)
    for check in checks:
        typer.echo(f"{check.result:<5} {check.subject:<10} {check.state}")
        if check.fix:
            typer.echo(f"      {check.fix}")
    if any(check.result == "FAIL" for check in checks):
        raise typer.Exit(2)
