"""Exact architectures without weights: the facts of a model's config, in one YAML file for each."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from harness import resources
from harness.errors import ConfigError
from harness.yaml_settings import Strict, explain, read_values

TESTED = frozenset({"qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_oss"})
"""Model types whose capture the tests compare with eager attention."""


class Architecture(Strict):
    """The shape of a model, without its weights.

    Attributes:
        name: The model's name, as figures show it.
        source: Where the facts are from.
        tokenizer: The tokenizer that belongs to it.
        substitute_tokenizer: One whose every id exists in this vocabulary, for when the right one cannot be had.
        config: Keys and values of the model's config.json, `model_type` among them.
        sha256: Of the file.
    """

    name: str = Field(min_length=1)
    source: str = Field(min_length=1)
    tokenizer: str
    substitute_tokenizer: str = "demo"
    config: dict[str, Any]
    sha256: str = ""

    @model_validator(mode="after")
    def _names_its_type(self) -> Self:
        if not isinstance(self.config.get("model_type"), str):
            raise ValueError("`config` has no model_type: expected the keys of the model's config.json")
        return self


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
    values = read_values(found, "architectures", Architecture)
    try:
        return Architecture(**values | {"sha256": hashlib.sha256(found.read_bytes()).hexdigest()})
    except ValidationError as error:
        raise ConfigError(explain(error, str(found), Architecture)) from None
