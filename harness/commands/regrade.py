"""`mless regrade`: grade a finished run again, or completions of others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import Metric
from harness.commands.run import show_run

if TYPE_CHECKING:
    import pandas


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
        typer.echo(_describe(regrade_logs(run, metric=metric, completion=completion, gold=gold)))
        return
    typer.echo(regrade_run(run))
    show_run(run)


def _describe(grades: pandas.DataFrame) -> str:
    """How many are right by our grader and by the log's own metric, and the first on which the two differ."""
    from harness.analysis.leaderboard import records
    from harness.constants import REGRADED_SHOWN
    from harness.display.table import Column, Table, render

    text, heading = f"{len(grades)} samples: right by mless {grades['ours'].mean():.1%}", "The first"
    counts = ", ".join(f"{verdict} {count}" for verdict, count in grades["verdict"].value_counts().items())
    if grades["theirs"].notna().all():
        theirs = grades["theirs"].mean()
        grades = grades[grades["ours"] != grades["theirs"]]
        text += f", by the log's metric {theirs:.1%}; they differ on {len(grades)}"
        heading = "The first on which they differ"
    rows = grades[:REGRADED_SHOWN].assign(
        gold=grades["gold"].str[-30:], answer=grades["answer"].fillna("-").astype(str).str[:30]
    )
    columns = [Column(name, name, str, numeric=False) for name in ("name", "gold", "answer", "verdict")]
    table = ["", render([Table(heading, records(rows), columns)])] if len(rows) else []
    return "\n".join([f"{text}.", f"Verdicts: {counts}.", *table])
