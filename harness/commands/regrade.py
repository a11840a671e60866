"""`mless regrade`: grade a finished run again."""

from __future__ import annotations

import typer

from harness.commands.options import RunPath
from harness.commands.run import show_run


def regrade(
    run: RunPath,
) -> None:
    """Grade and audit a finished run again, without a model; say which verdicts changed."""
    from harness.execution.regrade import regrade as regrade_run

    typer.echo(regrade_run(run))
    show_run(run)
