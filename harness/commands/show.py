"""`mless show`: the problems of a run that changed, or one problem."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.commands.options import Baseline, LayoutName, Metric
from harness.constants import STUDIED, Choice

if TYPE_CHECKING:
    from harness.analysis.problem_selection import Criterion
    from harness.runs.run_reader import Run


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, or an lm-eval output folder.")
    ],
    problem: Annotated[
        str | None, typer.Argument(metavar="[PROBLEM]", help="The id of a problem of the run.")
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Print the problems that a condition changed.")
    ] = False,
    baseline: Baseline = None,
    condition: Annotated[
        str | None,
        typer.Option(
            help="Only this condition; with --changed, by default that of the primary contrast."
        ),
    ] = None,
    direction: Annotated[
        Choice, typer.Option(help="With --changed: only problems with this outcome.")
    ] = "changed",
    layout: LayoutName = None,
    metric: Metric = None,
) -> None:
    """Print the problems of a run that changed, or one problem with its completions."""
    from rich.console import Console

    from harness.analysis.problem_selection import Criterion
    from harness.display.problem_listing import print_problem
    from harness.errors import ConfigError, list_first
    from harness.runs.run_paths import locate_one
    from harness.runs.run_reader import Run
    from harness.yaml_settings import validate

    loaded = Run.load(locate_one([run]), metric=metric)
    console = Console(highlight=False, markup=False, emoji=False)
    if (problem is not None) == changed:
        ids = dict.fromkeys(prompt.problem_id for prompt in loaded.prompts)
        raise ConfigError(
            f"Expected --changed or the id of a problem, one of the two: {list_first([*ids])}. "
            "`mless report` lists them all."
        )
    if problem is not None:
        print_problem(console, loaded, problem, condition=condition, layout=layout)
    else:
        if condition is None:
            condition, contrast_baseline = _choose_contrast(loaded)
            baseline = baseline or contrast_baseline
        choice = {
            "flip": direction,
            "baseline": baseline or loaded.baseline,
            "condition": condition,
        }
        criterion = validate(Criterion, choice, "--changed")
        _show_changes(console, loaded, criterion, layout)


def _choose_contrast(run: Run) -> tuple[str, str]:
    """The primary contrast, else the first contrast; of logs the first condition and `wo`."""
    from harness.experiment.conditions import read_contrast

    for contrast in (run.about.get("primary"), *(run.about.get("contrasts") or ())):
        if contrast:
            return read_contrast(contrast)
    names = [prompt.condition for prompt in run.prompts if prompt.condition != run.baseline]
    return next(iter(names), STUDIED), run.baseline


def _show_changes(console: Any, run: Run, criterion: Criterion, layout: str | None) -> None:
    from harness.analysis.problem_selection import require_verdicts, select
    from harness.display.problem_listing import describe_changes, print_changes
    from harness.runs.run_reader import source_of

    source = source_of(run, layout=layout)
    require_verdicts(source, criterion)
    # `flip` is left out: `select` raises an error if it finds nothing, but here it is a result that
    # no problem changed
    all_outcomes = criterion.model_copy(update={"flip": None})
    typer.echo(describe_changes(run, source, criterion))
    print_changes(console, select(source, all_outcomes), criterion)
