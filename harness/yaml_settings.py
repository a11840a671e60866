"""Reads YAML files of settings, overrides single keys, and says in one line what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from harness import resources
from harness.errors import ConfigError, list_near

_SCHEMA = re.compile(r"\[|^[A-Z]\w*(Config|Sampling)$")
"""What pydantic puts into a key's path where it tries several schemas."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping; YAML's own reader would take the last one in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                line = key.start_mark.line + 1
                raise ConfigError(
                    f"the key {key.value!r} stands twice in a mapping, again in line {line}."
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


_UNKNOWN_KEY = "unknown_key"
"""The type of the error."""
_NOT_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises of a text that is no YAML: it lets errors of its own code through."""


class Strict(BaseModel):
    """Base of every part of a config: unknown keys are refused, and values cannot be changed later."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_key(cls, values: Any) -> Any:
        """In place of pydantic's `extra="forbid"`, which does not say which keys there are."""
        keys = values if isinstance(values, Mapping) else ()
        if unknown := [str(key) for key in keys if key not in cls.model_fields]:
            public = [name for name, field in cls.model_fields.items() if not field.exclude]
            raise PydanticCustomError(
                _UNKNOWN_KEY, "{near}", {"key": unknown[0], "near": list_near(unknown[0], public)}
            )
        return values


def parse_option(option: str, text: str) -> Any:
    """The value of a command line option: YAML, or the text itself.

    Raises:
        ConfigError: a key stands twice in a mapping.
    """
    try:
        return yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{option} {text!r}: {error}") from None
    except _NOT_YAML:
        return text


def read_values(path: Path, kind: str, overrides: Iterable[str] = ()) -> Any:
    """Read the values of a config file and set the overrides. The schema checks them, and that they are a mapping.

    Args:
        path: The file. A bare name may also be one of the shipped configs.
        kind: The folder of the shipped configs, within `configs`.
        overrides: `key=value` with dotted keys and YAML values.

    Raises:
        ConfigError: the file is missing or not YAML, a key stands twice in it, or it has no key that an override names.
    """
    shipped = resources.folder("configs") / kind / path.name
    if not path.exists() and path.parent in (Path(), Path("configs") / kind) and shipped.is_file():
        path = shipped
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(
            f"Config {path}: {error.strerror}. The shipped ones are in {shipped.parent}."
        ) from None
    except (ConfigError, *_NOT_YAML) as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    for override in overrides:
        key, _, text = override.partition("=")
        *parents, last = key.split(".")
        value = parse_option(f"--set {key}", text)
        target: Any = values
        try:
            for part in parents:
                target = (
                    target[int(part)] if isinstance(target, list) else target.setdefault(part, {})
                )
            target[int(last) if isinstance(target, list) else last] = value
        except (AttributeError, IndexError, TypeError, ValueError):
            raise ConfigError(f"--set {override!r}: the config has no such key.") from None
    return values


def explain(error: ValidationError, where: str) -> str:
    """The most specific complaint of pydantic in one line, with the dotted key and the value.

    Args:
        error: pydantic's error.
        where: The file or thing that does not fit.
    """

    def locate(details: Any) -> tuple[Any, ...]:
        unknown = (details["ctx"]["key"],) if details["type"] == _UNKNOWN_KEY else ()
        return (*details["loc"], *unknown)

    def dotted(details: Any) -> str:
        keys = map(str, locate(details))
        return ".".join(key for key in keys if not _SCHEMA.search(key))

    every = error.errors()
    worst = max(every, key=lambda details: (len(locate(details)), details["type"] == _UNKNOWN_KEY))
    key = dotted(worst)
    if worst["type"] == _UNKNOWN_KEY:
        return f"{where}: unknown key {key!r}: expected one of {worst['msg']}."
    said = dict.fromkeys(
        one["msg"].removeprefix("Value error, ") for one in every if dotted(one) == key
    )
    message = ": ".join(filter(None, [where, key, "; or ".join(said)])).rstrip(".")
    return (
        f"{message}."
        if worst["type"] in ("value_error", "missing")
        else f"{message}, got {worst['input']!r:.200}."
    )


_SECRET_NAMES = re.compile(
    r"(^|[_-])((api|access|auth|hf|use_auth)[_-]?(key|token)|password|secret)$|^authorization$|^token$"
)
"""Names of arguments whose values are secrets, in small letters."""
_SECRET_VALUES = re.compile(
    r"^hf_[A-Za-z0-9]{30,}$|^sk-[\w-]{20,}$|^Bearer \S|://[^/@\s]+:[^/@\s]+@|[?&](api_)?key=\S"
)
"""What a secret looks like: tokens of the hub and of OpenAI, a header, an address with a password or a key in it."""
_NO_SECRETS = ("", "EMPTY", "none")
"""What servers without a key are given."""


def find_secrets(value: Any, where: str = "", name: str = "") -> Iterator[str]:
    """Where values lie that must not be written down, dotted."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from find_secrets(inner, f"{where}.{key}", str(key))
    elif isinstance(value, (list, tuple)):
        for number, inner in enumerate(value):
            yield from find_secrets(inner, f"{where}.{number}", name)
    elif isinstance(value, str) and value not in _NO_SECRETS:
        if _SECRET_NAMES.search(name.lower()) or _SECRET_VALUES.search(value):
            yield where
