"""`mless flips`: the problems that a condition changed, to be read, and saved for the probe."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from harness.choices import Choice
from harness.commands.options import DrawCount, DrawSeed, LayoutName, Level, Metric, RightBy, Subject

if TYPE_CHECKING:
    import pandas

RULES = {"first": "by the first sample", "majority": "by the majority of samples", "any": "by any right sample"}
SHOWN = 1200
"""About this many characters of a completion are printed, unless --full asks for all."""


def flips(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="A run folder, an lm-eval output folder, or sample logs as CONDITION=FILE, one each."
        ),
    ],
    baseline: Annotated[str, typer.Option("--from", help="Condition before the change.")] = "wo",
    condition: Annotated[str, typer.Option("--to", help="Condition after the change.")] = "mless",
    direction: Annotated[Choice, typer.Option(help="Outcome to show; `changed`: either direction.")] = "changed",
    subject: Subject = None,
    level: Level = None,
    repeats: RightBy = "first",
    n: DrawCount = None,
    seed: DrawSeed = 1234,
    controls: Annotated[
        bool, typer.Option("--controls", help="Save a matched unchanged problem with each; controls are not printed.")
    ] = False,
    layout: LayoutName = None,
    metric: Metric = None,
    full: Annotated[bool, typer.Option("--full", help="Print whole completions, however long.")] = False,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="Output format.")] = "text",
    save: Annotated[
        Path | None, typer.Option(help="Write the selection here, for `mless probe RUN --select FILE`.")
    ] = None,
) -> None:
    """Show the problems that changed between two conditions: both completions, answers and verdicts."""
    from rich.console import Console

    from harness.analysis.flips import Criterion
    from harness.analysis.selection import require_verdicts, select
    from harness.display.flips_side_by_side import FlipEntry, count_line, print_page
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
    selection = every if nothing and save is None and n is None else select(source, criterion)
    if save is not None:
        selection.save(save)
    problems = {problem.id: problem for problem in source.problems}
    entries = [
        FlipEntry.of(problems[one.problem_id], str(one.outcome), criterion)
        for one in selection.problems
        if criterion.wants(one.outcome) and not one.control
    ]
    if form == "json":
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=1))
        return
    within = "".join(f", {name} {value}" for name, value in (("subject", subject), ("level", level)) if value)
    typer.echo(f"{source.name}, {source.layout}{within}: {baseline} to {condition}, {len(every.problems)} problems")
    repeated = any(len(prompt.verdicts) > 1 for problem in source.problems for prompt in problem.prompts.values())
    rule = f"{RULES[repeats]}: " if repeated else ""
    typer.echo(rule + count_line(every.outcomes))
    frame = run_read.frame
    typer.echo(_comparison(frame[frame["layout"] == source.layout], baseline, condition))
    print_page(Console(highlight=False, markup=False, emoji=False), entries, limit=None if full else SHOWN)
    if save is not None:
        typer.echo(f"\nselection  {save}")


def _comparison(frame: pandas.DataFrame, baseline: str, condition: str) -> str:
    """The difference over all problems, and how much the baseline differs from itself: flips alone prove nothing."""
    import pandas

    from harness.analysis.comparison import compare
    from harness.display.words import LEVEL, MINUS, signed

    table = compare(frame[frame["condition"].isin([baseline, condition])], baseline=baseline)
    row = table[table["condition"] == condition].iloc[0]
    mean = ", mean over pairs of samples" if row["k"] > 1 else ""
    by_itself = _changes(row, "aa_")
    if pandas.isna(row["aa_p"]):
        by_itself = "run once, so how many problems change by themselves is not known"
    return (
        f"over all {row['n']} problems{mean}: {signed(row['difference'])} points, {LEVEL} interval "
        f"{signed(row['low'])} to {signed(row['high'])}, {_changes(row)}\n"
        f"{baseline} against itself (A/A): {by_itself}"
    ).replace(MINUS, "-")


def _changes(row: pandas.Series[Any], of: str = "") -> str:
    from harness.display.words import count

    return f"{count(row[f'{of}wrong_to_right'])} wrong to right, {count(row[f'{of}right_to_wrong'])} right to wrong"
