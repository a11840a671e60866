"""`mless curves`: average attention weights as numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from attention_probe.choices import Shown
from attention_probe.commands.options import Averaged, TracesPath, parse_indices, split_words, write_frame
from harness.errors import ConfigError
from harness.options import Baseline


def curves(
    traces: TracesPath,
    layer: Annotated[int, typer.Option(help="Index from 0.")] = 0,
    head: Annotated[str, typer.Option(help="Indices from 0, such as 11-13, or all.")] = "all",
    conditions: Annotated[str | None, typer.Option(help="Default: all in the file.")] = None,
    view: Annotated[
        Shown,
        typer.Option(
            help="aligned: filler removed; full: the prompt as it was; difference: less the baseline, paired."
        ),
    ] = "aligned",
    baseline: Baseline = "wo",
    definition: Averaged = "common",
    weighted: Annotated[bool, typer.Option("--weighted", help="Times the length of the token's value.")] = False,
    exclude_first: Annotated[
        bool | None,
        typer.Option("--exclude-first/--include-first", help="The first token; default: left out for Llama and Gemma."),
    ] = None,
    form: Annotated[Literal["csv", "json"], typer.Option("--format", help="Output format.")] = "csv",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to this file instead of the screen.")
    ] = None,
) -> None:
    """Print average attention weights as numbers, with bands over prompts and their count."""
    from attention_probe.analysis.averaging import average_curves, chosen_problems
    from attention_probe.analysis.curve import as_frame
    from attention_probe.traces import AttentionTraces

    with AttentionTraces.open(traces) as opened:
        header = opened.header
        subtracted = baseline if view == "difference" else None
        if subtracted in split_words(conditions):
            raise ConfigError(
                f"--view difference subtracts {baseline!r}: expected other --conditions. Leave it out there."
            )
        names = split_words(conditions) or tuple(name for name in opened.conditions if name != subtracted)
        averaged = average_curves(
            opened,
            conditions=names,
            layer=layer,
            heads=range(header.head_count) if head == "all" else parse_indices(head, "--head"),
            view="full" if view == "full" else "aligned",
            baseline=subtracted,
            definition=definition,
            weighted=weighted,
            exclude_first=exclude_first,
            problem_ids=chosen_problems(opened, [*names, *([subtracted] if subtracted else [])]),
        )
    frame = as_frame(averaged).assign(random_weights=header.random_weights, on_outcome=header.on_outcome)
    write_frame(frame, form, output)
