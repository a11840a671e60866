"""`mless heads`: rank heads by a measure."""

from pathlib import Path
from typing import Annotated

import typer

from harness.constants import STUDIED

HEADS_BASELINE = "random"
"""The default is another filler, because softmax guarantees a change from no filler."""


def heads(
    traces: Annotated[Path, typer.Argument(help="A folder of traces, as `mless probe` writes it.")],
    measure: Annotated[
        str, typer.Option(help="Measure to rank by; header.json in the folder lists them.")
    ] = "mass_filler",
    baseline: Annotated[
        str, typer.Option(help="Condition to subtract, usually another filler.")
    ] = HEADS_BASELINE,
    condition: Annotated[str, typer.Option(help="Condition to subtract it from.")] = STUDIED,
    top: Annotated[int, typer.Option(min=1, help="Show only the first N heads.")] = 20,
) -> None:
    """Rank all heads by the difference of a measure between two conditions, paired by prompt."""
    from functools import partial

    from attention_probe.analysis.head_ranking import rank_heads
    from attention_probe.traces import AttentionTraces
    from harness.analysis.result_tables import records
    from harness.display.format_table import Column, Table, render
    from harness.display.format_values import number

    with AttentionTraces(traces) as opened:
        frame = rank_heads(opened, measure, baseline, condition)
    ranking = frame.head(top)
    headings = {"mean_difference": "difference", "standard_error": "SE"}
    columns = []
    for name in map(str, ranking.columns):
        is_float = ranking[name].dtype.kind == "f"
        form_cell = partial(number, digits=5) if is_float else str
        columns.append(Column(name, headings.get(name, name), form_cell))
    title = f"{measure}, {condition} - {baseline}"
    typer.echo(render([Table(title, records(ranking), columns, [frame.attrs["note"]])]))
