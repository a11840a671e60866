"""Explain in one line why an engine did not start.

vLLM starts processes of its own. If one of them fails, vLLM reports only "Engine core
initialization failed. See root cause above", and only the process prints the cause, into the file
of `library_messages`. So the error and the end of that file are searched for the causes in
`start_errors.yaml`. An unknown cause is quoted without advice. A process that a signal ended prints
nothing: its exit code names the signal.
"""

import re
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.engines.engine_processes import CONTINUE
from harness.errors import (
    MOST_QUOTED_CHARACTERS,
    ModelError,
    explain_hub_error,
    quote_error,
)

SIGNAL_SENDERS = {
    "SIGTERM": "A scheduler, an operator or a memory guard such as earlyoom sends this signal.",
    "SIGKILL": "The kernel or a memory guard sends this signal where memory runs out: see `dmesg`.",
}
"""The senders of signals that end a process from outside. Other signals are crashes of the
process."""


KNOWN_CAUSES: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)
"""The known causes of failed starts. `start_errors.yaml` begins with their fields."""


def make_start_error(
    name: str,
    error: BaseException,
    log: str,
    exit_codes: Sequence[int | None],
) -> ModelError:
    """The error for an engine that did not start.

    Args:
        name: The model's folder or hub name.
        error: The error of the start.
        log: The standard error of the engine's processes.
        exit_codes: The exit codes of the processes; None of a process that runs.
    """
    # Python reports the end by a signal as a negative exit code
    signal_numbers = [-code for code in exit_codes if code and code < 0]
    has_failed = any(code and code > 0 for code in exit_codes)  # by itself: vLLM ended the others
    # After an error of its own vLLM ends the process with a signal too. So a signal is the cause
    # only if vLLM's error refers to a process that it found dead.
    is_own_error = not _SEE_ABOVE.search(str(error)) or bool(known_cause(log, name))
    if has_failed or is_own_error or not signal_numbers:
        return ModelError(explain_start_error(name, error, log))
    signal_name = signal.Signals(signal_numbers[0]).name
    message = f"vLLM did not start. The engine process got {signal_name}."
    if signal_name in SIGNAL_SENDERS:
        return ModelError(f"{message} {SIGNAL_SENDERS[signal_name]} {CONTINUE}")
    last_error = _last_error(log)
    return ModelError(f"{message} Its last error: {last_error}" if last_error else message)


def explain_start_error(
    name: str, error: BaseException, log: str = "", *, program: str = "vLLM"
) -> str:
    """Say why a model did not start, and what to do if the cause is known.

    Args:
        name: The model's folder or hub name.
        error: The error of the start.
        log: The standard error of the engine's processes.
        program: The program that did not start; the subject of the message.
    """
    cause = known_cause(log + "\n" + "".join(traceback.format_exception(error)), name)
    if not cause:
        cause = f"Its last error: {_last_error(log) or quote_error(error)}"
    return f"{program} did not start. {cause}"


def known_cause(text: str, name: str = "") -> str:
    """The first known cause in `text`, as a message about the model `name`; else empty."""
    line = " ".join(_errors_in(text).split())
    for cause in KNOWN_CAUSES:
        if match := re.search("|".join(cause["patterns"]), line):
            fields = {
                field: words.rstrip()[:MOST_QUOTED_CHARACTERS]
                for field, words in match.groupdict(default="").items()
            }
            error = OSError(line[match.start() :][:MOST_QUOTED_CHARACTERS])
            fields["hub"] = explain_hub_error(name, error)
            message: str = cause["message"].format(**fields)
            return message
    return ""


_SEE_ABOVE = re.compile(
    r"initialization failed|See root cause above|See stack trace|EngineCore failed to start"
    r"|RuntimeError: cancelled"  # of a call to a worker that has died, so not the cause
)
"""Messages of errors that only follow from another error."""
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*")
"""The line of a traceback that names the exception."""


def _last_error(text: str) -> str:
    """The last line that names an exception, preferably one that does not refer to another."""
    lines = [line for line in _errors_in(text).splitlines() if _ERROR.match(line)]
    lines.sort(key=lambda line: not _SEE_ABOVE.search(line))  # stable: the last one stays the last
    return lines[-1][:MOST_QUOTED_CHARACTERS] if lines else ""


def _errors_in(text: str) -> str:
    """The text without lines of level DEBUG, INFO or WARNING, and without the prefixes of lines.

    vLLM's prefix is the process, the level, the date, the time and the position in the source.
    """
    process, origin = r"(?m)^(\(\w+[^)]*\) )?", r"[\d-]+ [\d:.]+ \[[^\]]*\] "
    text = re.sub(rf"{process}(DEBUG|INFO|WARNING) {origin}.*$", "", text)
    return re.sub(rf"{process}([A-Z]+ {origin})?", "", text)
