"""`mless heads`: rank heads by a measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attention_probe.commands.options import TracesPath, split_words, write_frame
from harness.errors import ConfigError


def heads(
    traces: TracesPath,
    measure: Annotated[
        str, typer.Option(help="Measure to rank by; header.json in the folder lists them.")
    ] = "mass_filler",
    baseline: Annotated[
        str,
        typer.Option(help="Condition to subtract, usually another filler; several: filler-01,filler-03."),
    ] = "random",
    condition: Annotated[str, typer.Option(help="Condition to subtract it from, or several.")] = "mless",
    twins: Annotated[
        list[Path] | None,
        typer.Option("--twin", metavar="TRACES", help="Traces of the same with random weights; repeatable."),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, help="Show only the first N heads.")] = 20,
    form: Annotated[Literal["text", "csv", "json"], typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """Rank all heads by how far a measure differs between two conditions, corrected for looking at all of them.

    With several conditions on a side the string is the unit, else the prompt. A count of heads means little without
    that of twins with random weights, which have no training to show.
    """
    from attention_probe.analysis.head_ranking import ALPHA, rank_heads
    from attention_probe.traces import AttentionTraces
    from harness.display.table_formats import fold

    old, new = split_words(baseline), split_words(condition)
    if not (old and new):
        raise ConfigError("--baseline and --condition: expected a condition for each, got none. Name one.")
    ranked = []
    for path in (traces, *(twins or ())):
        with AttentionTraces.open(path) as opened:
            if path is not traces and not opened.header.random_weights:
                raise ConfigError(
                    f"--twin {path} has trained weights: expected traces of `mless probe --random-weights`."
                )
            ranked.append(rank_heads(opened, measure, old, new))
    frame = ranked[0]
    shown = frame.head(top) if top else frame
    if form == "text":  # inside 80 columns; the label says layer and head once more
        shown = shown.drop(columns="label").rename(columns={"mean_difference": "difference", "standard_error": "SE"})
    write_frame(shown, form, None)
    typer.echo(fold([f"{measure}, {condition} - {baseline}: {frame.attrs['note']}"]), err=form != "text")
    if not frame["guaranteed"].any():
        counts = [f"{one.attrs['found']} of {one.attrs['heads']}" for one in ranked]
        beside = ", ".join(counts[1:]) or "not counted (probe with --random-weights, and name that with --twin)"
        said = f"heads with adjusted p < {ALPHA:g}: {counts[0]}; with random weights: {beside}"
        typer.echo(fold([said]), err=form != "text")
