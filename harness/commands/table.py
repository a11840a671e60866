"""`mless table`: every condition against the baseline."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import (
    Baseline,
    Explain,
    FormatName,
    Margin,
    Metric,
    RunNames,
    SplitBy,
)


def table(
    runs: RunNames,
    models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="One row per model and layout; another table for runs of other problems.",
        ),
    ] = False,
    form: FormatName = "text",
    by: SplitBy = None,
    baseline: Baseline = None,
    margin: Margin = None,
    metric: Metric = None,
    mediators: Annotated[
        bool,
        typer.Option(
            "--mediators", help="Add what else changed: missing boxes, truncation, length, loops."
        ),
    ] = False,
    audit: Annotated[
        bool, typer.Option("--audit", help="Add what every other grader says.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Add published numbers: a name in results/reference, or a file."
        ),
    ] = None,
    explain: Explain = False,
) -> None:
    """Every condition of some runs against the baseline: accuracy, difference, adjusted p, verdict."""
    from harness.display.table_page import TableOptions, make_table

    requested = {"mediators": mediators, "audit": audit}
    options = TableOptions(
        form=form,
        models=models,
        by=by or (),
        baseline=baseline,
        margin=margin,
        metric=metric,
        side_tables=[key for key, is_requested in requested.items() if is_requested],
        reference=reference,
        explain=explain,
    )
    typer.echo(make_table(runs, options))
