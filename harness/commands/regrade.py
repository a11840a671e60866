"""`mless regrade`: grade a finished run again, or completions of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Metric
from harness.commands.run import show_run


def regrade(
    run: Annotated[Path, typer.Argument(help="A run folder; sample logs of lm-eval; a CSV or JSONL of completions.")],
    metric: Metric = None,
    completion: Annotated[str, typer.Option(help="Column of completions in a CSV or JSONL.")] = "completion",
    gold: Annotated[str, typer.Option(help="Column of gold answers in it.")] = "gold",
) -> None:
    """Grade and audit a finished run again; or grade the last boxes of any log or table beside its own verdicts."""
    from harness.execution.regrade import regrade as regrade_run
    from harness.execution.regrade import regrade_logs
    from harness.runs.folder import JOURNAL
    from harness.runs.journal import is_stored

    if run.exists() and not is_stored(run / JOURNAL):
        typer.echo(regrade_logs(run, metric=metric, completion=completion, gold=gold))
        return
    typer.echo(regrade_run(run))
    show_run(run)
