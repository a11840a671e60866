"""`mless table`: all conditions against the baseline."""

from typing import Annotated

import typer

from harness.commands.options import (
    Baseline,
    Explain,
    FormatName,
    Metric,
    RunNames,
    ScoreName,
)
from harness.constants import Split


def table(
    runs: RunNames,
    models: Annotated[
        bool,
        typer.Option("--models", help="One row for each model and layout."),
    ] = False,
    form: FormatName = "text",
    by: Annotated[
        list[Split] | None, typer.Option(help="Split the table by this column; repeatable.")
    ] = None,
    baseline: Baseline = None,
    metric: Metric = None,
    score: ScoreName = None,
    mediators: Annotated[
        bool,
        typer.Option("--mediators", help="Add missing boxes, truncation, lengths and loops."),
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Add accuracies by other graders.")
    ] = False,
    explain: Explain = False,
) -> None:
    """Compare all conditions with the baseline: accuracy, difference, adjusted p, verdict.

    In logs of other tasks --metric decides whether a sample is right. --score decides how the
    samples of a problem count together.
    """
    from harness.display.table_page import TableOptions, make_table
    from harness.runs.find_runs import locate
    from harness.runs.read_runs import Run

    is_requested = {"mediators": mediators, "audit": audit}
    options = TableOptions(
        form=form,
        models=models,
        by=by or (),
        baseline=baseline,
        score=score,
        side_tables=[key for key in is_requested if is_requested[key]],
        explain=explain,
    )
    typer.echo(make_table([Run.load(run, metric=metric) for run in locate(runs)], options))
