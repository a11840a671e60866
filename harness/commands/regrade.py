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
    run: Annotated[
        Path,
        typer.Argument(help="A run folder; sample logs of lm-eval; a CSV or JSONL of completions."),
    ],
    metric: Metric = None,
    completion: Annotated[
        str, typer.Option(help="Column of completions in a CSV or JSONL.")
    ] = "completion",
    gold: Annotated[str, typer.Option(help="Column of gold answers in it.")] = "gold",
) -> None:
    """Grade and audit a finished run again; or grade the last boxes of any log or table beside its own verdicts."""
    from harness.execution.grade_again import regrade as regrade_run
    from harness.execution.grade_again import regrade_logs
    from harness.runs.journal import is_stored
    from harness.runs.run_folder import JOURNAL

    if run.exists() and not is_stored(run / JOURNAL):
        typer.echo(
            describe_grades(regrade_logs(run, metric=metric, completion=completion, gold=gold))
        )
        return
    typer.echo(regrade_run(run))
    show_run(run)


def describe_grades(grades: pandas.DataFrame) -> str:
    """How many are right, by the log's own metric too, and the first on which the two differ."""
    from harness.analysis.result_tables import records
    from harness.display.format_table import Column, Table, render
    from harness.execution.grade_again import REGRADED_SHOWN

    summary = f"{len(grades)} samples: right by mless {grades['ours'].mean():.1%}"
    counts = ", ".join(
        f"{verdict} {count}" for verdict, count in grades["verdict"].value_counts().items()
    )
    title = "The first"
    if grades["theirs"].notna().all():
        summary += f", by the log's metric {grades['theirs'].mean():.1%}"
        grades = grades[grades["ours"] != grades["theirs"]]
        summary += f"; they differ on {len(grades)}"
        title += " on which they differ"
    rows = records(grades.head(REGRADED_SHOWN).fillna({"answer": "-"}))
    columns = [
        Column("name", "name", str, numeric=False),
        Column("gold", "gold", lambda gold: gold[-30:], numeric=False),
        Column("answer", "answer", lambda answer: answer[:30], numeric=False),
        Column("verdict", "verdict", str, numeric=False),
    ]
    table = Table(title, rows, columns)
    return "\n".join(
        [f"{summary}.", f"Verdicts: {counts}.", *(["", render([table])] if len(grades) else [])]
    )
