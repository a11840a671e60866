"""`mless fetch`: download what a config needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Overrides


def fetch(
    config: Annotated[
        Path, typer.Argument(help="A run config, or `smollm2`: prints that model's folder last.")
    ],
    overrides: Overrides = None,
) -> None:
    """Download a config's model, tokenizer and data, for later use with HF_HUB_OFFLINE=1; or the model `smollm2`."""
    from harness.experiment.problems import open_dataset
    from harness.experiment.run_config import load_config
    from harness.experiment.tokenizer import fetch_repository
    from harness.smollm2_model import SMOLLM2, SMOLLM2_LABEL, fetch_smollm2

    if str(config) == SMOLLM2 and not overrides:
        typer.echo(f"{SMOLLM2_LABEL}:\n{fetch_smollm2()}")
        return
    settings = load_config(config, overrides or ())
    arguments, lines = settings.model_arguments(), []
    for key, revision in (("pretrained", "revision"), ("tokenizer", "tokenizer_revision")):
        name = arguments.get(key)
        if isinstance(name, str) and Path(name).is_dir():
            lines.append(f"{key:<11}{name} is a folder: nothing to fetch")
        elif isinstance(name, str):
            folder = fetch_repository(name, arguments.get(revision), weights=key == "pretrained")
            lines.append(f"{key:<11}{name}@{folder.name} in {folder}")
    dataset = open_dataset(settings.dataset)
    lines.append(
        f"data       {dataset.source}, {len(dataset.problems)} problems, sha256 {dataset.sha256[:12]}"
    )
    typer.echo("\n".join(lines))
