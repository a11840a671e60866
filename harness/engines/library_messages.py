"""The messages of vLLM, torch and other libraries: which they write, and into which file."""

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBRARY_LOG = "libraries.log"
"""The file for messages of libraries while a model is loaded."""
SEARCHED_LOG_BYTES = 2**18
"""The number of bytes at the end of an engine's log in which the cause of its death is searched."""


@contextmanager
def library_log(path: Path) -> Iterator[None]:
    """Send Python's warnings and the standard error of libraries and their processes to a file.

    Within the context descriptor 2, to which libraries write, is the file, and `sys.stderr`, to
    which mless writes, still is the terminal.
    """
    if sys.__stderr__ is None:  # the process was started without a standard error
        yield
        return
    original_stderr = sys.stderr
    original_showwarning = warnings.showwarning
    original_stderr.flush()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Libraries in C and child processes write to descriptor 2 itself, not to `sys.stderr`.
    terminal_descriptor = os.dup(2)
    with (
        open(path, "a", encoding="utf-8") as log_file,
        os.fdopen(
            terminal_descriptor, "w", buffering=1, encoding=sys.__stderr__.encoding
        ) as terminal,
    ):
        os.dup2(log_file.fileno(), 2)
        # in a notebook `sys.stderr` is another object, which does not write to descriptor 2
        if original_stderr is sys.__stderr__:
            sys.stderr = terminal
        # the first four arguments are the message, the category, the file and the line
        warnings.showwarning = lambda *warning: print(
            warnings.formatwarning(*warning[:4]), file=log_file, flush=True
        )
        try:
            yield
        finally:
            warnings.showwarning = original_showwarning
            sys.stderr = original_stderr
            os.dup2(terminal_descriptor, 2)


class NewMessages:
    """The text that this process and its children write to the file of `library_log` from now on.

    It is empty if standard error is not a file.
    """

    def __init__(self) -> None:
        # the file's path, because the children may still write to it after `library_log` has ended
        self._path = Path("/proc/self/fd/2").resolve()
        self.forget()

    def forget(self) -> None:
        """Drop the text that was written until now."""
        self._old_size = self._path.stat().st_size if self._path.is_file() else 0

    def read(self) -> str:
        """The end of the text, at most `SEARCHED_LOG_BYTES`."""
        if not self._path.is_file():
            return ""
        new_bytes = self._path.read_bytes()[self._old_size :]
        return new_bytes[-SEARCHED_LOG_BYTES:].decode(errors="replace")


def quieten_libraries() -> None:
    """Silence the libraries' logs, except where the user has set a level."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("LMEVAL_LOG_LEVEL", "WARNING")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("lm_eval").setLevel(logging.WARNING)
    # Python's resource tracker frees the shared memory of a killed engine, and prints a warning
    # after the last message of mless
    user_filters = os.environ.get("PYTHONWARNINGS", "")
    os.environ["PYTHONWARNINGS"] = f"{user_filters},ignore:resource_tracker:UserWarning".lstrip(",")
