"""Reads YAML files of settings, overrides single keys, and explains in one line what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from harness import resources
from harness.errors import ConfigError, list_near

_UNIONS = ("DatasetConfig", "ExplicitSampling")
"""Names of schemas that pydantic puts into a key's path when it tries several."""
_EXPECTED = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
    "finite_number": "a finite number",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_short": "some text",
    "too_short": "at least {min_length} of them",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "path": "a path",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping",
    "model": "a mapping",
}
"""What was expected, by pydantic's name of an error, whole or up to its first underscore."""
_REFERENCE = "docs/config.md has all keys"


class DoubledKeyError(yaml.MarkedYAMLError):
    """A key stands twice in a mapping."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping; YAML's own reader would take the last one in silence."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                problem = f"the key {key.value!r} stands there a second time"
                raise DoubledKeyError(problem=problem, problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # so many digits of 0xfff... that no message could print them
            return value
        except (ValueError, LookupError, AttributeError):  # PyYAML does not catch its own, such as of 2024-13-45
            problem = f"{str(node.value)[:40]!r} is no valid {node.tag.rpartition(':')[2]}; text can stand in quotes"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from None


def parse_yaml(text: str) -> Any:
    """The value of a YAML text.

    Raises:
        yaml.MarkedYAMLError: it is no YAML, or a key stands twice in a mapping (DoubledKeyError).
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        problem = f"line {line}: the character U+{error.character:04X} is not allowed"
    except RecursionError:
        problem = "it is nested too deep"
    raise yaml.MarkedYAMLError(problem=problem)


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
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (yaml.MarkedYAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {_locate(error)}. Mend it there.") from None
    if not isinstance(values, dict) or path.suffix == ".jsonl":
        got = "a JSONL file" if path.suffix == ".jsonl" else f"a {type(values).__name__}" if values else "nothing"
        raise ConfigError(f"{path}: expected YAML with keys such as name and model ({_REFERENCE}), got {got}.")
    for override in overrides:
        _override(values, override)
    return values


def _locate(error: yaml.MarkedYAMLError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    mark = error.problem_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{error.problem or error.context}"


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {override!r}: expected key=value, such as --set name=trial.")
    try:
        value = parse_yaml(text)
    except DoubledKeyError as error:
        raise ConfigError(f"--set {override!r}: {error.problem}. Expected each key once.") from None
    except yaml.YAMLError:
        value = text
    *parents, last = key.split(".")
    target: Any = values
    for place, part in enumerate((*parents, last)):
        if isinstance(target, list) and part.isdigit() and int(part) < len(target):
            step: int | str = int(part)
        elif isinstance(target, dict):
            step = part
            target.setdefault(step, {})
        else:
            where = ".".join(parents[:place])
            raise ConfigError(
                f"--set {override!r}: {where!r} has no {part!r} in the config. Expected a key that it has."
            )
        if place == len(parents):
            target[step] = value
        else:
            target = target[step]


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
        known = schema.model_fields
        more = f"; {_REFERENCE}" if (near := list_near(parts[-1], known)) != ", ".join(known) else ""
        return f"{where}: unknown key {key!r}. Expected one of: {near}{more}."
    if worst["type"] == "missing":
        return f"{where}: the key {key!r} is missing."
    if worst["type"] == "value_error":  # ours, which says what was expected and what was found
        message = worst["msg"].removeprefix("Value error, ").rstrip(".")
        return f"{where}: {key}: {message}." if key else f"{where}: {message}."
    kind = worst["type"]
    expected = _EXPECTED.get(kind) or _EXPECTED.get(kind.partition("_")[0])
    message = f"expected {expected.format(**worst.get('ctx', {}))}" if expected else worst["msg"]
    if kind == "literal_error" and key in nested:
        fields = nested[key].model_fields
        form = ", ".join(f"{name}: {(field.examples or ['...'])[0]}" for name, field in fields.items())
        message += f", or a mapping {{{form}}}"
    return f"{': '.join(filter(None, [where, key, message]))}, got {worst['input']!r:.200}."
