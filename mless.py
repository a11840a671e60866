"""mless, by the name of its command: `import mless` gives what `import harness` gives."""

from typing import Any

import harness

__all__ = harness.__all__


def __getattr__(name: str) -> Any:
    return getattr(harness, name)


def __dir__() -> list[str]:
    return dir(harness)
