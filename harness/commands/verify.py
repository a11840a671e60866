"""`mless verify`: test on this machine what is claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.options import Overrides


def verify(
    output: Annotated[Path, typer.Option("--output", "-o", help="The verification's folder.")] = Path("results/verify"),
    model: Annotated[
        str | None,
        typer.Option(help="Model folder or hub name; default Qwen2.5-Math-1.5B, `demo` for the bundled one."),
    ] = None,
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Use random weights in the shape of Qwen2.5-Math-1.5B; no hub needed."),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N problems of each run, as a rehearsal.")
    ] = None,
    overrides: Overrides = None,
    check: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Derive every number of a folder again; no GPU needed.")
    ] = None,
) -> None:
    """Test on this machine what mless claims of its runs (an hour on one GPU), or check the folder of such a test."""
    from harness import verification

    if check is not None:
        folder, wrong = check, verification.check(check)
    else:
        settings = verification.Settings(
            model=model, random_weights=random_weights, limit=limit, overrides=tuple(overrides or ())
        )
        folder, wrong = output, verification.verify(output, settings)
    result = f"{len(wrong)} not as expected" if wrong else "all as expected"
    typer.echo("\n".join([*wrong, f"page  {folder / verification.PAGE}: {result}"]))
    if wrong:
        raise typer.Exit(2)
