"""`mless fetch`: download what a config needs."""

from pathlib import Path
from typing import Annotated

import typer

from harness.commands.options import Overrides


def fetch(
    config: Annotated[
        Path,
        typer.Argument(help="A run config; or `smollm2`, whose folder is the last line printed."),
    ],
    overrides: Overrides = None,
) -> None:
    """Download a config's model, tokenizer and data, or `smollm2`, for HF_HUB_OFFLINE=1."""
    from harness.experiment.problems import open_dataset
    from harness.experiment.run_config import load_config
    from harness.experiment.tokenizer import fetch_repository
    from harness.smollm2_model import SMOLLM2, SMOLLM2_LABEL, fetch_smollm2
    from harness.yaml_settings import parse_overrides

    if str(config) == SMOLLM2 and not overrides:
        typer.echo(f"{SMOLLM2_LABEL}:\n{fetch_smollm2()}")
        return
    settings = load_config(config, parse_overrides(overrides))
    arguments, lines = settings.model_arguments(), []
    for key, revision in (("pretrained", "revision"), ("tokenizer", "tokenizer_revision")):
        name = arguments.get(key)
        if not isinstance(name, str):
            continue
        line = f"{name} is a folder: nothing to fetch"
        if not Path(name).is_dir():
            folder = fetch_repository(name, arguments.get(revision), weights=key == "pretrained")
            line = f"{name}@{folder.name} in {folder}"
        lines.append(f"{key:<11}{line}")
    dataset = open_dataset(settings.dataset)
    count, sha256 = len(dataset.problems), dataset.sha256[:12]
    lines.append(f"data       {dataset.source}, {count} problems, sha256 {sha256}")
    typer.echo("\n".join(lines))
