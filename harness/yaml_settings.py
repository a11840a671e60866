"""Reads YAML files of settings, overrides keys, and explains errors in one line each."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from harness import resources
from harness.data_records import refuse_lost_backslash
from harness.errors import ConfigError, list_near, name_similar_files

UserPath = Annotated[Path, AfterValidator(Path.expanduser)]
"""A path in a config, in which `~` is the user's home."""
Schema = TypeVar("Schema", bound=BaseModel)
"""The schema that `validate` gets, and the type of what it returns."""
_SCHEMA_NAME_PATTERN = re.compile(r"\[|^[A-Z]\w*(Config|Sampling)$")
"""Entries of pydantic's error paths that are not keys: names of the schemas that it tries."""


class _Loader(yaml.SafeLoader):
    """Refuses a key that appears twice in a mapping, and LaTeX that lost a backslash."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        earlier_keys = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in earlier_keys:
                raise ConfigError(
                    f"the key {key.value!r} appears twice in a mapping, again in line "
                    f"{key.start_mark.line + 1}."
                )
            earlier_keys.add((key.tag, key.value))
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        try:
            return refuse_lost_backslash(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ConfigError(f"line {node.start_mark.line + 1}: {error}.") from None


_UNKNOWN_KEY_ERROR = "unknown_key"
"""The type of the error of `Strict`."""

_REGEX_MESSAGE = "String should match pattern "
"""The beginning of pydantic's message about a text that does not match a regular expression."""
_PLAIN_TEXT_BY_MESSAGE = {
    rf"{_REGEX_MESSAGE}'\S'": "is empty",
    f"{_REGEX_MESSAGE}'^[A-Za-z0-9_-]+$'": "expected letters, digits, _ and -",
    f"{_REGEX_MESSAGE}'^[A-Za-z0-9_-][A-Za-z0-9._-]*$'": "expected letters, digits, dots, _ and -",
}
"""Messages of pydantic that name a regular expression, and what they mean."""
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError)
"""Errors that PyYAML raises for a text that is not YAML, including those of its own code."""


class Strict(BaseModel):
    """Base of all config models: unknown keys are refused, and values are constant."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, serialize_by_alias=True)
    inner_keys: ClassVar[list[str]] = []
    """Dotted keys that may be meant by an unknown key."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_key(cls, values: Any) -> Any:
        """Replaces pydantic's `extra="forbid"`, whose message does not list the valid keys."""
        keys = values if isinstance(values, Mapping) else ()
        # an excluded field is set by our own code, so a config must not name it
        public_keys = [
            field.alias or name for name, field in cls.model_fields.items() if not field.exclude
        ]
        if unknown_keys := [str(key) for key in keys if key not in public_keys]:
            raise PydanticCustomError(
                _UNKNOWN_KEY_ERROR,
                "{valid_keys}",
                {
                    "key": unknown_keys[0],
                    "valid_keys": list_near(unknown_keys[0], [*public_keys, *cls.inner_keys]),
                },
            )
        return values


def parse_option(option: str, value_text: str) -> Any:
    """The value of a command-line option: YAML, or the text itself if it is not YAML.

    Raises:
        ConfigError: a key appears twice in a mapping.
    """
    try:
        return yaml.load(value_text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{option} {value_text!r}: {error}") from None
    except _YAML_ERRORS:
        return value_text


def parse_overrides(assignments: Iterable[str] | None) -> dict[str, Any]:
    """The values of options `--set KEY=VALUE`, by their dotted keys.

    Raises:
        ConfigError: an option has no `=`, or a key appears twice in a mapping.
    """
    overrides = {}
    for assignment in assignments or ():
        key, equals_sign, value_text = assignment.partition("=")
        if not equals_sign:
            raise ConfigError(f"--set {assignment!r}: expected KEY=VALUE, such as seed=1.")
        overrides[key] = parse_option(f"--set {key}", value_text)
    return overrides


def read_values(path: Path, subfolder: str, overrides: Mapping[str, Any] = {}) -> Any:
    """Read the values of a config file and apply overrides. They are not yet checked by a schema.

    Args:
        path: The file, or the name of a shipped config, or its path from `configs` on.
        subfolder: The folder of the shipped configs, in `configs`.
        overrides: New values, by dotted keys.

    Raises:
        ConfigError: the file is missing or not YAML, a key appears twice, or the key of an override
            does not exist.
    """
    configs_folder = resources.folder("configs")
    shipped_folder = configs_folder / subfolder
    shipped_path = shipped_folder / path
    if path.parts[:1] == ("configs",):
        shipped_path = configs_folder.parent / path
    if not path.exists() and shipped_path.is_file():
        path = shipped_path
    try:
        settings = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(
            f"Config {path}: {error.strerror}.{name_similar_files(path)} Shipped in "
            f"{shipped_folder}: {list_near(path.name, sorted(os.listdir(shipped_folder)))}."
        ) from None
    except _YAML_ERRORS as error:
        # PyYAML marks the column with ^ in a line of its own, which is lost in a one-line message
        raise ConfigError(
            f"{path} is not valid YAML: {' '.join(str(error).split()).rstrip(' ^')}"
        ) from None
    for key, value in overrides.items():
        # A path becomes text, as in a file. Other values are copied, because a later override may
        # change a part of them.
        _override(settings, key, str(value) if isinstance(value, Path) else deepcopy(value))
    return settings


def _override(container: Any, key: str, value: Any) -> None:
    """Set a dotted key inside nested mappings and lists, which are changed in place.

    Each part of the key but the last leads one level deeper. A mapping that is missing there, or
    has a single value in its place, is made.

    Raises:
        ConfigError: a list has no such index, or the config is not a mapping.
    """
    *parent_keys, last_key = key.split(".")
    try:
        for parent_key in parent_keys:
            if isinstance(container, list):
                container = container[int(parent_key)]
                continue
            if not isinstance(container.get(parent_key), dict | list):
                container[parent_key] = {}
            container = container[parent_key]
        container[int(last_key) if isinstance(container, list) else last_key] = value
    except (AttributeError, IndexError, TypeError, ValueError):
        raise ConfigError(
            f"{key} cannot be set: the config has no such key. Entries of a list count from 0."
        ) from None


def validate(schema: type[Schema], values: Any, source: object) -> Schema:
    """The values in the form of a schema; `source` is their file or object, for messages.

    Raises:
        ConfigError: the values do not fit; see `explain`.
    """
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, str(source))) from None


def explain(error: ValidationError, source: str) -> str:
    """The most specific error of pydantic in one line, with the dotted key and the value.

    It has all reasons why this key is refused. The reason of an unknown key is the list of valid
    keys.

    Args:
        error: pydantic's error.
        source: The file or object that does not fit.
    """
    details = error.errors()
    # Of a union pydantic reports the errors of all alternatives. The error with the longest path is
    # that of the alternative which fits best. Of several such errors, those of our own checks are
    # more specific.
    deepest_error = max(
        details,
        key=lambda detail: (
            len(_find_key_path(detail)),
            detail["type"] in (_UNKNOWN_KEY_ERROR, "value_error"),
        ),
    )
    key = _name_key(deepest_error)
    if deepest_error["type"] == _UNKNOWN_KEY_ERROR:
        return f"{source}: unknown key {key!r}: expected one of {deepest_error['msg']}."
    # pydantic calls a list of YAML a tuple
    reasons = [
        _PLAIN_TEXT_BY_MESSAGE.get(detail["msg"], detail["msg"])
        .replace("valid tuple", "list, such as [a, b]")
        .removeprefix("Value error, ")
        for detail in details
        if _name_key(detail) == key
    ]
    reasons_text = "; or ".join(dict.fromkeys(reasons))
    explanation = ": ".join(filter(None, [source, key, reasons_text])).rstrip(".")
    if deepest_error["type"] not in ("value_error", "missing"):
        explanation += f", got {deepest_error['input']!r:.200}"
    return f"{explanation}."


def _find_key_path(detail: Any) -> tuple[Any, ...]:
    """The path to the key of an error, with the schemas that pydantic tried."""
    if detail["type"] != _UNKNOWN_KEY_ERROR:
        return tuple(detail["loc"])
    return (*detail["loc"], detail["ctx"]["key"])


def _name_key(detail: Any) -> str:
    """The dotted key of an error."""
    return ".".join(
        key for key in map(str, _find_key_path(detail)) if not _SCHEMA_NAME_PATTERN.search(key)
    )


_SECRET_NAME_PATTERN = re.compile(
    r"(^|[_-])((api|access|auth|hf|use_auth)[_-]?(key|token)|password|secret)$"
    r"|^authorization$|^token$"
)
"""Lower-case names of arguments whose values are secrets."""
_SECRET_VALUE_PATTERN = re.compile(
    r"^hf_[A-Za-z0-9]{30,}$|^sk-[\w-]{20,}$|^Bearer \S|://[^/@\s]+:[^/@\s]+@|[?&](api_)?key=\S"
)
"""Patterns of secrets: tokens of the hub and of OpenAI, a header, an address with a password or a
key."""
_PLACEHOLDER_SECRETS = ("", "EMPTY", "none")
"""Texts that users give in place of a key to servers that need none."""


def find_secrets(value: Any, dotted_key: str = "", key_name: str = "") -> Iterator[str]:
    """The dotted keys of secrets, which must not be written to files.

    A text is a secret if it has the form of one, or if its key has the name of one.

    Args:
        value: The value of an argument, which is searched with all values inside it.
        dotted_key: The dotted key of this value.
        key_name: The last part of this key that is a name, not an index.
    """
    if isinstance(value, Mapping):
        for key, inner_value in value.items():
            yield from find_secrets(inner_value, f"{dotted_key}.{key}", str(key))
    elif isinstance(value, list | tuple):
        for index, inner_value in enumerate(value):
            # the values of a list have the name of the list
            yield from find_secrets(inner_value, f"{dotted_key}.{index}", key_name)
    elif isinstance(value, str) and value not in _PLACEHOLDER_SECRETS:
        if _SECRET_NAME_PATTERN.search(key_name.lower()) or _SECRET_VALUE_PATTERN.search(value):
            yield dotted_key
