"""`mless link`: regress gains on what the probe saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from attention_probe.commands.options import TracesPath


def link(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    traces: TracesPath,
    condition: Annotated[str, typer.Option(help="Against the traces' baseline.")] = "mless",
    layer: Annotated[int | None, typer.Option(help="Index from 0; default: the first recorded.")] = None,
    head: Annotated[int | None, typer.Option(help="Index from 0; default: the mean over heads.")] = None,
    form: Annotated[Literal["text", "json"], typer.Option("--format", help="How it is written.")] = "text",
) -> None:
    """Regress which problems gained on what the probe saw in their prompts, beside its null."""
    from attention_probe.analysis.link import link as link_run
    from attention_probe.traces import AttentionTraces

    with AttentionTraces.open(traces) as opened:
        found = link_run(run, opened, condition, layer=layer, head=head)
    typer.echo(json.dumps(found.as_record(), indent=2) if form == "json" else found.as_text())
