"""`mless doctor`: check the installation."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    model: Annotated[str | None, typer.Option(help="Also check that this model's tokenizer can be had.")] = None,
) -> None:
    """Check the installation and name the fix for whatever fails."""
    from harness.verification.doctor import diagnose

    findings = diagnose(model)
    for finding in findings:
        mark = "ok  " if not finding.fix else "FAIL" if finding.fatal else "note"
        typer.echo(f"{mark}  {finding.subject:<10} {finding.found}")
        if finding.fix:
            typer.echo(f"{'':<16} fix: {finding.fix}")
    if any(finding.fix and finding.fatal for finding in findings):
        raise typer.Exit(2)
