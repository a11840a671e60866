"""Reads YAML files of settings, overrides single keys, and explains in one line what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from harness import resources
from harness.errors import ConfigError

_UNIONS = ("DatasetConfig", "ExplicitSampling")
"""Names of schemas that pydantic puts into a key's path when it tries several."""


class Strict(BaseModel):
    """Base of every part of a config: unknown keys are refused, and values cannot be changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def read_values(path: Path, kind: str, schema: type[BaseModel], overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Read the values of a config file and set the overrides, without checking any of them.

    Args:
        path: The file. A bare name may also be one of the shipped configs.
        kind: The folder of the shipped configs, within `configs`.
        schema: The schema that the values should fit, for messages.
        overrides: `key=value`, with dotted keys and YAML values.

    Raises:
        ConfigError: the file is missing, is not YAML or not a mapping, or an override cannot be read.
    """
    if not path.is_file():
        shipped = resources.folder("configs") / kind / path.name
        if path.parent not in (Path(), Path("configs") / kind) or not shipped.is_file():
            trouble = "is a folder" if path.is_dir() else "does not exist"
            raise ConfigError(
                f"Config {path} {trouble}. Expected a YAML file; the shipped ones are in {shipped.parent}."
            )
        path = shipped
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a mapping with the keys {', '.join(schema.model_fields)}.")
    for override in overrides:
        _override(values, override)
    return values


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: expected key=value, such as --set name=trial.")
    *parents, last = key.split(".")
    target = values
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise ConfigError(f"--set {override!r}: {parent!r} is not a mapping in the config.")
    try:
        target[last] = yaml.safe_load(text)
    except yaml.YAMLError:
        target[last] = text


def explain(
    error: ValidationError,
    where: str,
    schema: type[BaseModel],
    nested: Mapping[str, type[BaseModel]] = MappingProxyType({}),
) -> str:
    """The most specific complaint of pydantic in one line. An unknown key is named with the valid ones.

    Args:
        error: pydantic's error.
        where: The file or thing that does not fit.
        schema: The schema that it should fit.
        nested: The schemas of nested mappings, by key.
    """
    worst = max(error.errors(), key=lambda e: (len(e["loc"]), e["type"] == "extra_forbidden"))
    parts = [str(part) for part in worst["loc"] if part not in _UNIONS and "[" not in str(part)]
    key = ".".join(parts)
    if worst["type"] == "extra_forbidden":
        for part in parts[:-1]:
            schema = nested.get(part, schema)
        return f"{where}: unknown key {key!r}. Expected one of: {', '.join(schema.model_fields)}."
    if worst["type"] == "missing":
        return f"{where}: the key {key!r} is missing."
    message = worst["msg"].removeprefix("Value error, ")
    if worst["type"] == "literal_error" and key in nested:
        fields = nested[key].model_fields
        form = ", ".join(f"{name}: {(field.examples or ['...'])[0]}" for name, field in fields.items())
        message += f", or a mapping {{{form}}}"
    return f"{where}: {key}: {message}, got {worst['input']!r}." if key else f"{where}: {message}."
