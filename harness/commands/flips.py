"""`mless flips`: the problems that a condition changed, to be read, and saved for the probe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.choices import Choice
from harness.options import (
    Baseline,
    Condition,
    DrawCount,
    DrawSeed,
    LayoutName,
    Level,
    Metric,
    RightBy,
    RunName,
    Subject,
)

if TYPE_CHECKING:
    import pandas

    from harness.analysis.flips import Criterion

RULES = {
    "share": "by the share of their samples that is right",
    "first": "by their first sample",
    "majority": "by the majority of their samples",
    "any": "by whether any sample is right",
}
"""What `--repeats` means, for the line that says which problems are listed."""
SHOWN = 1200
"""About this many characters of a completion are printed, unless --full asks for all."""


def flips(
    run: RunName,
    baseline: Baseline = "wo",
    condition: Condition = "mless",
    direction: Annotated[Choice, typer.Option(help="Outcome to show; `changed`: either direction.")] = "changed",
    subject: Subject = None,
    level: Level = None,
    repeats: RightBy = "share",
    n: DrawCount = None,
    seed: DrawSeed = 1234,
    controls: Annotated[
        bool, typer.Option("--controls", help="Save a matched unchanged problem with each; controls are not printed.")
    ] = False,
    layout: LayoutName = None,
    metric: Metric = None,
    full: Annotated[bool, typer.Option("--full", help="Print whole completions, however long.")] = False,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="Output format.")] = "text",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the selection here, for `mless probe RUN --select FILE`."),
    ] = None,
) -> None:
    """Show the problems that changed between two conditions: both completions, answers and verdicts."""
    from rich.console import Console

    from harness.analysis.flips import Criterion
    from harness.analysis.selection import require_verdicts, select
    from harness.display.flips_side_by_side import FlipEntry, print_page
    from harness.display.table_formats import fold
    from harness.runs.find_runs import locate_one
    from harness.runs.prompt_source import source_of
    from harness.runs.read_run import read_run

    run_read = read_run(locate_one(run), metric=metric)
    source = source_of(run_read, layout=layout)
    criterion = Criterion(
        flip=direction,
        baseline=baseline,
        condition=condition,
        repeats=repeats,
        subject=subject,
        level=level,
        n=n,
        seed=seed,
        controls=controls,
    )
    require_verdicts(source, criterion)
    every = select(source, replace(criterion, flip=None, n=None, controls=False))
    nothing = not any(criterion.wants(one.outcome) for one in every.problems)  # which is a result, no mistake
    selection = every if nothing and output is None and n is None else select(source, criterion)
    if output is not None:
        selection.save(output)
    problems = {problem.id: problem for problem in source.problems}
    entries = [
        FlipEntry.of(problems[one.problem_id], str(one.outcome), criterion)
        for one in selection.problems
        if criterion.wants(one.outcome) and not one.control
    ]
    if form == "json":
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    frame = run_read.frame
    row = _compare(frame[frame["layout"] == source.layout], baseline, condition)
    listed = _describe_list(criterion, every.outcomes, len(entries), several=row["k"] > 1)
    typer.echo(f"{source.name}, {source.layout}: {condition} - {baseline}, {row['n']} problems")
    typer.echo(fold([*_describe(row, baseline), listed], hyphens=False, indent=12))
    print_page(Console(highlight=False, markup=False, emoji=False), entries, limit=None if full else SHOWN)
    if output is not None:
        typer.echo(f"\nselection  {output}")


def _compare(frame: pandas.DataFrame, baseline: str, condition: str) -> dict[str, Any]:
    """The condition's row of `mless table`, over all problems: what stands in the list proves nothing."""
    from harness.analysis.comparison import compare
    from harness.analysis.leaderboard import records

    rows = records(compare(frame[frame["condition"].isin([baseline, condition])], baseline=baseline))
    return next(row for row in rows if row["condition"] == condition)


def _describe(row: Mapping[str, Any], baseline: str) -> list[str]:
    """The difference, its flips, and those of the baseline against itself: the numbers of `mless table`."""
    from harness.display.words import LEVEL, define_flips, difference, flips

    again = f"{flips(row, 'aa_')}: flips of {baseline} against itself"
    if row["aa_difference"] is None:
        again = f"{baseline} was run once, so how many problems flip by themselves is not known"
    return [
        f"difference  {difference(row)} points, {LEVEL} interval",
        f"flips       {flips(row)}: {define_flips(row['k'])}",
        f"A/A         {again}",
    ]


def _describe_list(criterion: Criterion, outcomes: Mapping[str, int], shown: int, *, several: bool) -> str:
    """How many problems are listed, of how many, and by which rule."""
    matching = sum(count for name, count in outcomes.items() if criterion.wants(name))
    within = ", ".join(f"{name} {value}" for name in ("subject", "level") if (value := getattr(criterion, name)))
    drawn = f"{shown} drawn from " if shown < matching else ""
    of = f"{drawn}{matching} of {sum(outcomes.values())} problems" + (f" ({within})" if within else "")
    rule = f" {RULES[criterion.repeats]}" if several else ""
    lacking = f"; {outcomes['undecided']} lack a verdict under one of the two" if outcomes["undecided"] else ""
    other = ", another count than the flips above" if several else ""
    return f"listed      {of}, {str(criterion.flip).replace('_', ' ')}{rule}{other}{lacking}"
