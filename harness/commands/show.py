"""`mless show`: a run at a glance, the problems that changed, or one problem whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import Baseline, LayoutName, Level, Metric, Subject
from harness.constants import STUDIED, Choice

if TYPE_CHECKING:
    from harness.analysis.choose_problems import Criterion
    from harness.runs.read_runs import Run

SHOWN_LETTERS = 1200
"""About this many characters of a completion are shown, unless all are asked for."""


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, or an lm-eval output folder.")
    ],
    problem: Annotated[
        str | None, typer.Argument(metavar="[PROBLEM]", help="The id of one of its problems.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="The problems that a condition changed.")
    ] = False,
    baseline: Baseline = None,
    condition: Annotated[
        str | None,
        typer.Option(
            help="Of one problem only this condition; or the one that changed it, default mless."
        ),
    ] = None,
    direction: Annotated[
        Choice, typer.Option(help="With --changed: the outcome to show.")
    ] = "changed",
    subject: Subject = None,
    level: Level = None,
    layout: LayoutName = None,
    metric: Metric = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print whole completions, however long.")
    ] = False,
) -> None:
    """Show what a run is and holds; the problems that changed; or one problem with every prompt and completion."""
    from rich.console import Console

    from harness.analysis.choose_problems import Criterion
    from harness.display.show_problems import describe_run, print_problem
    from harness.runs.read_runs import Run, locate_one

    read = Run.load(locate_one([run]), metric=metric)
    console = Console(highlight=False, markup=False, emoji=False)
    if problem is not None:
        print_problem(
            console,
            read,
            problem,
            condition=condition,
            layout=layout,
            limit=None if full else SHOWN_LETTERS,
        )
    elif changed:
        against, name = baseline or read.baseline, condition or STUDIED
        criterion = Criterion(
            flip=direction, baseline=against, condition=name, subject=subject, level=level
        )
        _show_changes(
            console, read, criterion, layout=layout, limit=None if full else SHOWN_LETTERS
        )
    else:
        typer.echo(describe_run(read))


def _show_changes(
    console: Any, run: Run, criterion: Criterion, *, layout: str | None, limit: int | None
) -> None:
    from harness.analysis.choose_problems import count_outcomes, require_verdicts, select
    from harness.analysis.compare_with_baseline import compare
    from harness.analysis.result_tables import records
    from harness.display.show_problems import describe_changes, print_changes
    from harness.runs.read_runs import source_of

    source = source_of(run, layout=layout)
    require_verdicts(source, criterion)
    every = criterion.model_copy(update={"flip": None})  # that none changed is a result
    problems = select(source, every)  # refuses a subject without problems, so before the first line
    frame = run.samples[run.samples["layout"] == source.layout]
    both = frame[frame["condition"].isin([criterion.baseline, criterion.condition])]
    rows = records(compare(both, baseline=criterion.baseline))
    (row,) = (row for row in rows if row["condition"] == criterion.condition)
    typer.echo(
        f"{source.name}, {source.layout}: {criterion.condition} - {criterion.baseline}, {row['problems']} problems"
    )
    typer.echo(describe_changes(row, criterion, count_outcomes(source, every)))
    print_changes(console, problems, criterion, limit=limit)
