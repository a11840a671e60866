"""`mless heads`: rank heads by a measure."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.constants import STUDIED

HEADS_BASELINE = "random"
"""What `mless heads` subtracts unless told: another filler, since softmax guarantees a change from no filler."""


def heads(
    traces: Annotated[Path, typer.Argument(help="A folder of traces, as `mless probe` writes it.")],
    measure: Annotated[
        str, typer.Option(help="Measure to rank by; header.json in the folder lists them.")
    ] = "mass_filler",
    baseline: Annotated[
        str,
        typer.Option(help="Condition to subtract, usually another filler; several: text-1,text-2."),
    ] = HEADS_BASELINE,
    condition: Annotated[
        str, typer.Option(help="Condition to subtract it from, or several.")
    ] = STUDIED,
    top: Annotated[int | None, typer.Option(min=1, help="Show only the first N heads.")] = 20,
    form: Annotated[
        Literal["text", "csv", "json"], typer.Option("--format", help="Output format.")
    ] = "text",
) -> None:
    """Rank all heads by how far a measure differs between two conditions, corrected for looking at all of them.

    With several conditions on a side the string is the unit, else the prompt.
    """
    from functools import partial

    from attention_probe.analysis.head_ranking import HEADS_ALPHA, rank_heads
    from attention_probe.traces import AttentionTraces
    from harness.analysis.result_tables import records
    from harness.display.format_table import Column, Table, render
    from harness.display.format_values import number
    from harness.layers_and_heads import split_words

    old, new = split_words(baseline), split_words(condition)
    with AttentionTraces.open(traces) as opened:
        frame = rank_heads(opened, measure, old, new)
    remarks = [frame.attrs["note"]]
    if frame["p_adjusted"].notna().any():
        remarks.append(
            f"heads with adjusted p < {HEADS_ALPHA:g}: {frame.attrs['significant']} of {len(frame)}"
        )
    shown = frame.head(top) if top else frame
    if form != "text":
        typer.echo(
            shown.to_csv(index=False).rstrip()
            if form == "csv"
            else shown.to_json(orient="records", indent=1)
        )
        typer.echo("\n".join(remarks), err=True)
        return
    short = {"mean_difference": "difference", "standard_error": "SE"}
    columns = [
        Column(
            name,
            short.get(name, name),
            partial(number, digits=5) if shown[name].dtype.kind == "f" else str,
        )
        for name in map(str, shown.columns)
    ]
    typer.echo(
        render([Table(f"{measure}, {condition} - {baseline}", records(shown), columns, remarks)])
    )
