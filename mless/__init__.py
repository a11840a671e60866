"""mless, by the name of its command: `import mless` gives what `import harness` gives."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness import *  # noqa: F403
else:
    import harness

    __all__ = harness.__all__

    def __getattr__(name):
        return getattr(harness, name)

    def __dir__():
        return dir(harness)
