"""Downloads the model, tokenizer and data of a config, for later work without the hub."""

from __future__ import annotations

from pathlib import Path

import yaml

from harness.errors import ConfigError, ModelError
from harness.experiment.config import RunConfig
from harness.experiment.tokenizer import explain_hub_error


def fetch(config: RunConfig, *, pin: Path | None = None) -> list[str]:
    """Download model, tokenizer and data into the hub's cache, and return one line of text on each.

    Args:
        config: The run config.
        pin: A file for a copy of the config that pins the fetched commits as its revisions.

    Raises:
        ConfigError: `pin` exists already.
        ModelError: the hub refuses the model or tokenizer, or cannot be reached.
        DataError: the data cannot be had.
    """
    if pin is not None and pin.exists():
        raise ConfigError(f"{pin} exists already. Remove it, or give another --pin.")
    lines = []
    arguments = config.model_arguments()
    pinned = {}
    for key, revision_key in (("pretrained", "revision"), ("tokenizer", "tokenizer_revision")):
        name = arguments.get(key)
        if not isinstance(name, str):
            continue
        if Path(name).is_dir():
            lines.append(f"{key:<11}{name} is a folder: nothing to fetch")
            continue
        folder = _fetch_repository(name, arguments.get(revision_key), weights=key == "pretrained")
        pinned[revision_key] = folder.name
        lines.append(f"{key:<11}{name}@{folder.name} in {folder}")
    dataset = config.load_dataset()
    lines.append(f"data       {dataset.source}, {len(dataset.problems)} problems, sha256 {dataset.sha256[:12]}")
    if pin is not None:
        values = config.as_written()
        values["model"]["arguments"] |= pinned
        pin.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        lines.append(f"pinned     {pin}")
    return lines


def _fetch_repository(name: str, revision: str | None, *, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    unneeded = ["*.pth", "*.gguf", "original/*"] + ([] if weights else ["*.safetensors", "*.bin"])
    try:
        return Path(snapshot_download(name, revision=revision, ignore_patterns=unneeded))
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error
