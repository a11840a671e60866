"""`mless regrade`: grade a finished run again, or the completions of a log or table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import Columns, Decimal, Metric
from harness.commands.run import show_run

if TYPE_CHECKING:
    import pandas


def regrade(
    run: Annotated[
        Path,
        typer.Argument(help="A run folder; logs of any harness; a table of completions."),
    ],
    metric: Metric = None,
    columns: Columns = None,
    decimal: Decimal = None,
) -> None:
    """Grade and audit a finished run again; or grade the completions of any log or table."""
    from harness.execution.regrading import regrade as regrade_run
    from harness.execution.regrading import regrade_logs
    from harness.runs.run_files import JOURNAL, RunFiles
    from harness.runs.run_reader import Run
    from harness.runs.stored_files import is_stored

    if run.exists() and not is_stored(run / JOURNAL):
        grades = regrade_logs(run, metric=metric, columns=columns, decimal_sign=decimal)
        typer.echo(describe_grades(grades))
        return
    files = RunFiles(run)
    typer.echo(regrade_run(files))
    show_run(Run.of(files))


def describe_grades(grades: pandas.DataFrame) -> str:
    """The number of right samples, and the first samples on which our grader and the log differ."""
    from harness.analysis.result_tables import records
    from harness.display.comparison_columns import text_column
    from harness.display.printed_tables import Table, render
    from harness.display.value_texts import plural
    from harness.execution.regrading import LOG_FORM, REGRADED_SHOWN
    from harness.grading.answer_forms import FORMS, NO_FORM

    clusters = grades["cluster"].nunique()
    problem_count = (
        f" of {clusters} {plural('problem', clusters)}" if clusters < len(grades) else ""
    )
    summary = (
        f"{len(grades)} samples{problem_count}: right by mless {grades['by_mless'].mean():.1%}"
    )
    verdicts, forms = (
        ", ".join(f"{name} {count}" for name, count in grades[column].value_counts().items())
        for column in ("verdict", "form")
    )
    lines = [f"Verdicts: {verdicts}.", f"Forms of the answers: {forms}."]
    if (grades["form"] == NO_FORM).any():
        lines.append(f"Forms that were looked for: {', '.join([LOG_FORM, 'box', *FORMS, 'bare'])}.")
    listed_grades, title = grades, "The first"
    # a metric may have judged only the first of several samples
    judged = grades[grades["by_log"].notna()]
    if len(judged):
        if len(judged) < len(grades):
            summary += f"; of {len(judged)} that the log judges {judged['by_mless'].mean():.1%}"
        metric = ", ".join(judged["metric"].unique())
        listed_grades = judged[judged["by_mless"] != judged["by_log"]]
        summary += f", by the log's metric {metric} {judged['by_log'].mean():.1%}"
        summary += f"; they differ on {len(listed_grades)}"
        title += " on which they differ"
    lines = [f"{summary}.", *lines]
    if len(listed_grades):
        first_grades = listed_grades.head(REGRADED_SHOWN).fillna({"answer": "-"})
        first_grades["gold"] = first_grades["gold"].str[-30:]
        first_grades["answer"] = first_grades["answer"].str[:30]
        columns = [*map(text_column, ("name", "gold", "answer", "verdict", "form"))]
        lines += ["", render([Table(title, records(first_grades), columns)])]
    return "\n".join(lines)
