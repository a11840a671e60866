"""`mless compare`: two conditions of any runs or logs, and a gate for continuous integration."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Explain, FormatName, Metric


def compare(
    old: Annotated[
        str, typer.Argument(metavar="A", help="A run, RUN:CONDITION, or a sample log of lm-eval.")
    ],
    new: Annotated[str, typer.Argument(metavar="B", help="What is compared with it.")],
    metric: Metric = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="Filter of the metric, where a log has several.")
    ] = None,
    not_worse_by: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="Exit with 0 if B is shown to lose less than so many points, 1 if it is worse, 3 if neither is shown.",
        ),
    ] = None,
    form: FormatName = "text",
    explain: Explain = False,
) -> None:
    """Two conditions, of one run or two, or two logs of any task of lm-eval: difference, interval, flips, noise.

    Of a run that names no condition its baseline is taken.
    """
    from harness.analysis.compare_two_conditions import Side, check_not_worse, compare_pair
    from harness.display.table_page import show_board

    named = ",".join([metric or "", filter_]) if filter_ else metric
    board = compare_pair(Side.read(old, named), Side.read(new, named))
    typer.echo(show_board(board, form, explain=explain))
    if not_worse_by is not None:
        code, message = check_not_worse(board, not_worse_by)
        typer.echo(f"mless: {message}", err=True)
        raise typer.Exit(code)
