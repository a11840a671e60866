"""The probe's commands, one file each; `mless` finds them by an entry point."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the commands."""
    from attention_probe.commands.curves import curves
    from attention_probe.commands.figure import figure
    from attention_probe.commands.heads import heads
    from attention_probe.commands.probe import probe

    for command in (probe, curves, heads, figure):
        app.command()(command)
