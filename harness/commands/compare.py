"""`mless compare`: any two conditions, and a gate for continuous integration."""

from typing import Annotated

import typer

from harness.commands.options import Columns, CommonOnly, Explain, FormatName, MetricName, ScoreName

EXIT_CODE_BY_RESULT = {"not worse": 0, "worse": 1, "not shown": 3}
"""The exit code of the gate for each result of `check_not_worse`."""


def compare(
    old: Annotated[
        str, typer.Argument(metavar="A", help="A run, a log, a table, or RUN:CONDITION.")
    ],
    new: Annotated[str, typer.Argument(metavar="B", help="Likewise. The table shows B minus A.")],
    metric: MetricName = None,
    columns: Columns = None,
    common: CommonOnly = False,
    score: ScoreName = None,
    not_worse_by: Annotated[
        float | None,
        typer.Option(
            metavar="POINTS",
            help="Exit with 0 if B is shown to lose less than POINTS, 1 if B is worse, else 3.",
        ),
    ] = None,
    output_format: FormatName = "text",
    explain: Explain = False,
) -> None:
    """Compare two conditions of runs, logs of any harness or tables, paired by problem.

    A run without a condition means its baseline.
    """
    from harness.analysis.pair_comparison import Side, check_not_worse, compare_pair
    from harness.display.table_page import TableOptions, write_board

    new_side = Side.read(new, metric, columns)
    old_side = Side.read(old, metric, columns)
    board = compare_pair(old_side, new_side, score, common=common)
    exit_code = 0
    message = ""
    if not_worse_by is not None:
        result, message = check_not_worse(board, not_worse_by)
        exit_code = EXIT_CODE_BY_RESULT[result]
    typer.echo(write_board(board, TableOptions(output_format=output_format, explain=explain)))
    if message:
        typer.echo(f"mless: {message}", err=True)
    raise typer.Exit(exit_code)
