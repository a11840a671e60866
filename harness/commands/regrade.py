"""`mless regrade`: grade a finished run again, or the completions of a log or table."""

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
    gold: Annotated[str, typer.Option(help="Column of gold answers in a CSV or JSONL.")] = "gold",
) -> None:
    """Grade and audit a finished run again; or grade the completions of any log or table."""
    from harness.execution.grade_again import regrade as regrade_run
    from harness.execution.grade_again import regrade_logs
    from harness.runs.run_files import JOURNAL
    from harness.runs.stored_files import is_stored

    if run.exists() and not is_stored(run / JOURNAL):
        grades = regrade_logs(run, metric=metric, completion=completion, gold=gold)
        typer.echo(describe_grades(grades))
        return
    typer.echo(regrade_run(run))
    show_run(run)


def describe_grades(grades: pandas.DataFrame) -> str:
    """The number of right samples, and the first samples on which our grader and the log differ."""
    from harness.analysis.result_tables import records
    from harness.display.format_table import Column, Table, render
    from harness.execution.grade_again import REGRADED_SHOWN

    summary = f"{len(grades)} samples: right by mless {grades['ours'].mean():.1%}"
    counts = [f"{verdict} {count}" for verdict, count in grades["verdict"].value_counts().items()]
    title = "The first"
    if grades["theirs"].notna().all():
        summary += f", by the log's metric {grades['theirs'].mean():.1%}"
        grades = grades[grades["ours"] != grades["theirs"]]
        summary += f"; they differ on {len(grades)}"
        title += " on which they differ"
    lines = [f"{summary}.", f"Verdicts: {', '.join(counts)}."]
    if len(grades):
        first = grades.head(REGRADED_SHOWN).fillna({"answer": "-"})
        first = first.assign(gold=first["gold"].str[-30:], answer=first["answer"].str[:30])
        names = ("name", "gold", "answer", "verdict")
        columns = [Column(name, name, str, numeric=False) for name in names]
        lines += ["", render([Table(title, records(first), columns)])]
    return "\n".join(lines)
