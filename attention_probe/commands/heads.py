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
    from attention_probe.analysis.head_ranking import rank_heads
    from attention_probe.traces import AttentionTraces
    from harness.display.format_table import fold

    with AttentionTraces(traces) as opened:
        frame = rank_heads(opened, measure, baseline, condition)
    ranking = frame.head(top).to_string(index=False, float_format="%.5f", na_rep="-")
    typer.echo(f"{measure}, {condition} - {baseline}\n\n{ranking}\n\n{fold([frame.attrs['note']])}")
