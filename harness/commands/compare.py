"""`mless compare`: two conditions of any runs or logs, and a gate for continuous integration."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.commands.options import Explain, FormatName, Margin, Metric
from harness.constants import Gate


def compare(
    old: Annotated[str, typer.Argument(metavar="A", help="A run, RUN:CONDITION, or a sample log of lm-eval.")],
    new: Annotated[str, typer.Argument(metavar="B", help="What is compared with it.")],
    metric: Metric = None,
    filter_: Annotated[
        str | None, typer.Option("--filter", help="Filter of the metric, where a log has several.")
    ] = None,
    margin: Margin = None,
    fail_if: Annotated[
        Gate | None,
        typer.Option(help="Exit with 1 if B is that, with 3 if it cannot be judged."),
    ] = None,
    form: FormatName = "text",
    explain: Explain = False,
) -> None:
    """Two conditions, of one run or two, or two logs of any task of lm-eval: difference, interval, flips, noise.

    Of a run that names no condition its baseline is taken.
    """
    from harness.analysis.pair import Side, check_gate, compare_pair
    from harness.display.table_pages import show_board

    named = ",".join([metric or "", filter_]) if filter_ else metric
    board = compare_pair(Side.read(old, named), Side.read(new, named), margin=margin)
    typer.echo(show_board(board, form, explain=explain))
    if fail_if:
        code, said = check_gate(board, fail_if)
        typer.echo(f"mless: {said}", err=True)
        raise typer.Exit(code)
