"""`mless heads`: rank heads by a measure."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from attention_probe.commands.options import TracesPath, write_frame


def heads(
    traces: TracesPath,
    measure: Annotated[
        str, typer.Option(help="Measure to rank by; header.json in the folder lists them.")
    ] = "mass_filler",
    baseline: Annotated[str, typer.Option(help="Condition to subtract, usually another filler.")] = "random",
    condition: Annotated[str, typer.Option(help="Condition to subtract it from.")] = "mless",
    top: Annotated[int | None, typer.Option(min=1, help="Show only the first N heads.")] = 20,
    form: Annotated[Literal["text", "csv", "json"], typer.Option("--format", help="Output format.")] = "text",
) -> None:
    """Rank all heads by how far a measure differs between two conditions, corrected for looking at all of them."""
    from attention_probe.analysis.head_ranking import rank_heads
    from attention_probe.traces import AttentionTraces

    with AttentionTraces.open(traces) as opened:
        frame = rank_heads(opened, measure, baseline, condition)
    note = frame.attrs["note"]
    write_frame(frame.head(top) if top else frame, form, None)
    typer.echo(f"{measure}, {condition} - {baseline}: {note}", err=form != "text")
