"""Exact architectures without weights: the facts of a model's config, from one YAML each."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness import resources
from harness.errors import ConfigError

TESTED = frozenset({"qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_oss"})
"""Model types whose capture the tests compare with eager attention."""


class Architecture(BaseModel):
    """What a model is built from, with nothing of what it learnt.

    Attributes:
        name: The model's name, as figures show it.
        source: Where the facts are from.
        tokenizer: The tokenizer that belongs to it.
        substitute_tokenizer: One whose every id exists in this vocabulary, for when the right one cannot be had.
        config: Keys and values of the model's config.json, `model_type` among them.
        sha256: Of the file.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    tokenizer: str
    substitute_tokenizer: str = "demo"
    config: dict[str, Any]
    sha256: str = ""


def read_architecture(path: str | Path) -> Architecture:
    """Read an ARCH.yaml; a bare name is looked for among the bundled ones.

    Raises:
        ConfigError: there is no such file, or it is not an architecture.
    """
    path = Path(path)
    folder = resources.folder("configs") / "architectures"
    found = next((p for p in (path, folder / path.name, folder / f"{path.name}.yaml") if p.is_file()), None)
    if found is None:
        known = ", ".join(sorted(p.stem for p in folder.glob("*.yaml")))
        raise ConfigError(f"There is no architecture {path}. Give a YAML file, or one of {known}.")
    content = found.read_bytes()
    try:
        values = yaml.safe_load(content)
        architecture = Architecture.model_validate(values)
    except yaml.YAMLError as error:
        raise ConfigError(f"{found} is not YAML: {' '.join(str(error).split())}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"{found}: {key}: {first['msg']}. Known keys: {', '.join(k for k in Architecture.model_fields)}."
        ) from None
    if not isinstance(architecture.config.get("model_type"), str):
        raise ConfigError(f"{found}: `config` has no model_type. Expected the keys of the model's config.json.")
    return architecture.model_copy(update={"sha256": hashlib.sha256(content).hexdigest()})
