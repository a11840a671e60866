"""`mless regrade`: grade a finished run again, or the completions of a log or table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.commands.options import Columns, DecimalOption, MetricName
from harness.commands.run import show_run

if TYPE_CHECKING:
    import pandas


def regrade(
    run: Annotated[
        Path, typer.Argument(help="A run folder; logs of any harness; a table of completions.")
    ],
    metric: MetricName = None,
    columns: Columns = None,
    decimal: DecimalOption = None,
) -> None:
    """Grade and audit a finished run again; or grade the completions of any log or table."""
    from harness.execution import regrading
    from harness.runs.run_files import JOURNAL, RunFiles
    from harness.runs.run_reader import Run
    from harness.runs.stored_files import is_stored

    if run.exists() and not is_stored(run / JOURNAL):
        grades = regrading.regrade_logs(run, metric=metric, columns=columns, decimal_sign=decimal)
        typer.echo(describe_grades(grades))
        return
    files = RunFiles(run)
    typer.echo(regrading.regrade(files))
    show_run(Run.of(files))


def describe_grades(grades: pandas.DataFrame) -> str:
    """The text about the grades of a log or table.

    It has the share of right samples, also by the log's own metric if there is one; the numbers of
    verdicts and of forms of answers; and a table of the first samples on which our grader and the
    log differ, or of the first samples of all if the log has no metric.

    Args:
        grades: From `regrade_logs`.
    """
    from harness.analysis.result_tables import list_rows
    from harness.display.comparison_columns import text_column
    from harness.display.printed_tables import Table, render
    from harness.execution.regrading import FILTER_FORM, MOST_LISTED_SAMPLES
    from harness.grading.answer_forms import MARKER_BY_FORM, NO_FORM

    listed_grades = grades
    table_title = "The first"
    # a metric may have judged only the first of several samples
    log_grades = grades[grades["by_log"].notna()]
    if len(log_grades):
        listed_grades = log_grades[log_grades["by_mless"] != log_grades["by_log"]]
        table_title = "The first on which they differ"
    lines = [_summarise_grades(grades, log_grades)]
    for column, heading in (("verdict", "Verdicts"), ("form", "Forms of the answers")):
        count_texts = [f"{name} {count}" for name, count in grades[column].value_counts().items()]
        lines.append(f"{heading}: {', '.join(count_texts)}.")
    if NO_FORM in set(grades["form"]):
        lines.append(
            "Forms that were looked for: "
            f"{', '.join([FILTER_FORM, 'box', *MARKER_BY_FORM, 'bare'])}."
        )
    if len(listed_grades):
        first_grades = listed_grades.head(MOST_LISTED_SAMPLES).fillna({"answer": "-"})
        # long texts would make the rows wider than a terminal
        first_grades["gold"] = first_grades["gold"].str[-30:]
        first_grades["answer"] = first_grades["answer"].str[:30]
        columns = list(map(text_column, ("name", "gold", "answer", "verdict", "form")))
        lines += ["", render([Table(table_title, list_rows(first_grades), columns)])]
    return "\n".join(lines)


def _summarise_grades(grades: pandas.DataFrame, log_grades: pandas.DataFrame) -> str:
    """The share of samples that are right by mless, and by the log's metric if it has one.

    Args:
        grades: From `regrade_logs`.
        log_grades: Those of them that the log judges too.
    """
    from harness.display.value_texts import plural

    summary = f"{len(grades)} samples"
    if (problem_count := grades["cluster"].nunique()) < len(grades):
        summary += f" of {problem_count} {plural('problem', problem_count)}"
    summary += f": right by mless {grades['by_mless'].mean():.1%}"
    if log_grades.empty:
        return f"{summary}."
    # our share among the samples that the log judges, to be compared with the log's share
    if len(log_grades) < len(grades):
        summary += f"; of {len(log_grades)} that the log judges {log_grades['by_mless'].mean():.1%}"
    return (
        f"{summary}, by the log's metric {', '.join(log_grades['metric'].unique())} "
        f"{log_grades['by_log'].mean():.1%}; they differ on "
        f"{(log_grades['by_mless'] != log_grades['by_log']).sum()}."
    )
