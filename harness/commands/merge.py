"""`mless merge`: make one run of shards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.run import show_run


def merge(
    shards: Annotated[list[Path], typer.Argument(help="The folders of all shards of one run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder of the whole run; must not exist.")],
) -> None:
    """Make one run of its finished shards."""
    from harness.execution.merge_shards import merge as merge_shards

    merge_shards(shards, output)
    show_run(output)
