"""`mless show`: one problem of a run."""

from typing import Annotated

import typer

from harness.commands.options import LayoutName, MetricName


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, or an lm-eval output folder.")
    ],
    problem: Annotated[
        str,
        typer.Argument(metavar="PROBLEM", help="The id of a problem; `mless report` lists them."),
    ],
    condition: Annotated[str | None, typer.Option(help="Only this condition.")] = None,
    layout: LayoutName = None,
    metric: MetricName = None,
) -> None:
    """Print a problem: under each condition its prompt and its completions."""
    from rich.console import Console

    from harness.display.problem_listing import print_problem
    from harness.runs.run_paths import locate_run
    from harness.runs.run_reader import Run

    loaded_run = Run.load(locate_run([run]), metric=metric)
    console = Console(highlight=False, markup=False, emoji=False)
    print_problem(console, loaded_run, problem, condition=condition, layout=layout)
