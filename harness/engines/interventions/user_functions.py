"""The functions of users that change activations: the kind `function` of interventions."""

import inspect
import runpy
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from harness.errors import ConfigError, quote_error


def refuse_change(file: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a user's file whose function `change` cannot be called with these arguments.

    Raises:
        ConfigError: the file raises an error, has no such function, or it has other arguments.
    """
    try:
        inspect.signature(load_change(file)).bind("activations", "positions", **arguments)
    except OSError as error:
        raise ConfigError(f"the function's file {file}: {error.strerror}.") from error
    except Exception as error:  # a user's file can raise any error
        raise ConfigError(
            f"{file}: expected change(activations, positions, **arguments), got the arguments "
            f"{', '.join(arguments) or 'none'}: {quote_error(error)}."
        ) from error


@cache
def load_change(file: str) -> Callable[..., Any]:
    """The function `change` of a user's file."""
    change_function: Callable[..., Any] = runpy.run_path(file)["change"]
    return change_function
