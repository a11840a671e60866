"""`mless fetch`: download what a config needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import ConfigPath, Overrides


def fetch(
    config: ConfigPath,
    overrides: Overrides = None,
    pin: Annotated[Path | None, typer.Option(help="Also write the config with its revision pinned, here.")] = None,
) -> None:
    """Download a config's model, tokenizer and data, for later use with HF_HUB_OFFLINE=1."""
    from harness.experiment.config import load_config
    from harness.experiment.fetch import fetch as fetch_all

    for line in fetch_all(load_config(config, overrides or ()), pin=pin):
        typer.echo(line)
