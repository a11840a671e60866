"""Download what a config needs, at pinned revisions, for later work without the hub."""

from __future__ import annotations

from pathlib import Path

import yaml

from harness.config import RunConfig
from harness.errors import ConfigError
from harness.tokenization import explain_hub_error


def fetch(config: RunConfig) -> list[str]:
    """Download model, tokenizer and data into the hub's cache; one line on each.

    Raises:
        ModelError: the hub refuses or cannot be reached.
        DataError: the same for the data.
    """
    lines = []
    arguments = config.model_arguments()
    for key in ("pretrained", "tokenizer"):
        name = arguments.get(key)
        if isinstance(name, str):
            revision = arguments.get("revision" if key == "pretrained" else "tokenizer_revision")
            lines.append(f"{key:<11}{_fetch_repository(name, revision)}")
    dataset = config.load_dataset()
    lines.append(f"data       {dataset.source}, {len(dataset.problems)} problems, sha256 {dataset.sha256[:12]}")
    return lines


def write_pinned(source: Path, config: RunConfig, target: Path) -> None:
    """Write the config again with the model's revision pinned to what the hub has now."""
    values = yaml.safe_load(source.read_text(encoding="utf-8"))
    if target.exists():
        raise ConfigError(f"{target} exists already. Remove it, or give another --pin.")
    name = config.model_arguments().get("pretrained")
    if isinstance(name, str) and not Path(name).is_dir():
        values["model"]["arguments"]["revision"] = _resolve(name, config.model.arguments.get("revision"))
    target.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def _fetch_repository(name: str, revision: str | None) -> str:
    if Path(name).is_dir():
        return f"{name} is a folder: nothing to fetch"
    from huggingface_hub import snapshot_download

    from harness.errors import ModelError

    try:
        folder = snapshot_download(name, revision=revision, ignore_patterns=["*.pth", "*.gguf", "original/*"])
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error
    return f"{name}@{Path(folder).name} in {folder}"


def _resolve(name: str, revision: str | None) -> str:
    from huggingface_hub import HfApi

    from harness.errors import ModelError

    try:
        return str(HfApi().model_info(name, revision=revision).sha)
    except Exception as error:
        raise ModelError(explain_hub_error(name, error)) from error
