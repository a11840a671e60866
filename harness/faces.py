"""The face of a folder: its public names, each loaded when it is first used.

Importing a folder must cost nothing, since `mless --help` imports many and vLLM's processes import some.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_face(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` of a package that shows these names of its modules.

    Args:
        package: The package's `__name__`.
        modules: The public names of each module, by the module's name within the package.
    """
    places = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{places[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    names = sorted(places)
    return load, lambda: names, names
