"""`mless show`: a run at a glance, or one of its problems."""

from __future__ import annotations

from typing import Annotated

import typer

from harness.options import LayoutName, Metric

SHOWN = 1200
"""About this many characters of a completion are printed, unless --full asks for all."""


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or an lm-eval output folder.")],
    problem: Annotated[str | None, typer.Argument(metavar="[PROBLEM]", help="The id of one of its problems.")] = None,
    condition: Annotated[
        str | None, typer.Option(help="Only this condition; default: all but rewordings, other fillers and control.")
    ] = None,
    layout: LayoutName = None,
    metric: Metric = None,
    full: Annotated[bool, typer.Option("--full", help="Print whole completions, however long.")] = False,
) -> None:
    """Show what a run is and holds; or one problem: every prompt, completion, answer and verdict."""
    from rich.console import Console

    from harness.display.show_run import describe_run, print_problem
    from harness.errors import ConfigError
    from harness.runs.find_runs import locate_one
    from harness.runs.read_run import read_run

    if problem is None and (condition or layout or full):
        raise ConfigError("--condition, --layout and --full are of one problem, and none is named. Give its id too.")
    read = read_run(locate_one([run]), metric=metric)
    if problem is None:
        typer.echo(describe_run(read))
        return
    console = Console(highlight=False, markup=False, emoji=False)
    print_problem(console, read, problem, condition=condition, layout=layout, limit=None if full else SHOWN)
