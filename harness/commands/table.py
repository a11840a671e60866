"""`mless table`: all conditions against the baseline."""

from typing import Annotated

import typer

from harness.commands.options import (
    Baseline,
    Columns,
    CommonOnly,
    Explain,
    FormatName,
    RunNames,
    ScoreName,
)
from harness.constants import SplitColumn


def table(
    runs: RunNames,
    output_format: FormatName = "text",
    by: Annotated[
        list[SplitColumn] | None, typer.Option(help="Split the table by this column; repeatable.")
    ] = None,
    baseline: Baseline = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|NAME,FILTER",
            help="Metric or scorer that gives the scores in logs of other tasks; repeatable.",
        ),
    ] = None,
    columns: Columns = None,
    common: CommonOnly = False,
    pool: Annotated[
        bool,
        typer.Option("--pool", help="Join the samples of runs that differ only in their seed."),
    ] = False,
    score: ScoreName = None,
    mediators: Annotated[
        bool, typer.Option("--mediators", help="Add missing boxes, truncation and lengths.")
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Add accuracies by other graders.")
    ] = False,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            help="Add how many problems are right, or have the same answer, under all conditions.",
        ),
    ] = False,
    explain: Explain = False,
) -> None:
    """Compare all conditions with the baseline: accuracy, difference, adjusted p, verdict.

    In logs of other tasks --metric decides whether a sample is right. --score decides how the
    samples of a problem count together.
    """
    from harness.display.table_page import TableOptions, make_table
    from harness.runs.joined_runs import load_runs

    is_requested_by_table = {"mediators": mediators, "audit": audit, "together": together}
    options = TableOptions(
        output_format=output_format,
        by=by or (),
        baseline=baseline,
        score=score,
        common=common,
        requested_keys=[name for name in is_requested_by_table if is_requested_by_table[name]],
        explain=explain,
    )
    loaded_runs = load_runs(runs, metrics=metric or [None], columns=columns, pool=pool)
    typer.echo(make_table(loaded_runs, options))
