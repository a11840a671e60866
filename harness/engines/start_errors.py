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

import yaml

from harness.engines.engine_processes import CONTINUE_ADVICE
from harness.errors import MOST_QUOTED_CHARACTERS, ModelError, explain_hub_error, quote_error

SIGNAL_SENDERS = {
    "SIGTERM": "A scheduler, an operator or a memory guard such as earlyoom sends this signal.",
    "SIGKILL": "The kernel or a memory guard sends this signal where memory runs out: see `dmesg`.",
}
"""The senders of signals that end a process from outside. Other signals are crashes of the
process."""


KNOWN_CAUSES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""The known causes of failed starts. `start_errors.yaml` begins with their fields."""

_SECONDARY_ERROR = re.compile(
    r"initialization failed|See root cause above|See stack trace|EngineCore failed to start"
    r"|RuntimeError: cancelled"  # a call to a worker that has died; its death has another cause
)
"""Messages of errors that only follow from another error."""
_EXCEPTION_LINE = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*")
"""The line of a traceback that names the exception."""


def make_start_error(
    model_name: str, error: BaseException, log_text: str, exit_codes: Sequence[int]
) -> ModelError:
    """The error for an engine that did not start.

    It names the signal that ended a process if nothing else explains the failure; else the cause.

    Args:
        model_name: The model's folder or hub name.
        error: The error of the start.
        log_text: The standard error of the engine's processes.
        exit_codes: The exit codes of the processes; 0 also for a process that still runs.
    """
    # Python reports the end by a signal as a negative exit code
    signal_numbers = [-code for code in exit_codes if code < 0]
    # if a process ends with an error, vLLM ends the others by a signal, which then is not the cause
    has_error_code = any(code > 0 for code in exit_codes)
    # the signal is not the cause either if vLLM raised an error of its own, not one that only says
    # that a process died, or if the log shows a known cause
    is_explained = not _SECONDARY_ERROR.search(str(error)) or explain_known_cause(
        log_text, model_name
    )
    if has_error_code or is_explained or not signal_numbers:
        return ModelError(explain_start_error(model_name, error, log_text))
    signal_name = signal.Signals(signal_numbers[0]).name
    message = f"vLLM did not start. The engine process got {signal_name}."
    if signal_name in SIGNAL_SENDERS:
        return ModelError(f"{message} {SIGNAL_SENDERS[signal_name]} {CONTINUE_ADVICE}")
    last_error = _last_error(log_text)
    return ModelError(f"{message} Its last error: {last_error}" if last_error else message)


def explain_start_error(
    model_name: str, error: BaseException, log_text: str = "", *, program: str = "vLLM"
) -> str:
    """Say why a model did not start, and what to do if the cause is known.

    Args:
        model_name: The model's folder or hub name.
        error: The error of the start.
        log_text: The standard error of the engine's processes.
        program: The program that did not start; the subject of the message.
    """
    explanation = explain_known_cause(
        log_text + "\n" + "".join(traceback.format_exception(error)), model_name
    )
    if not explanation:
        explanation = f"Its last error: {_last_error(log_text) or quote_error(error)}"
    return f"{program} did not start. {explanation}"


def explain_known_cause(log_text: str, model_name: str = "") -> str:
    """The message of the first of KNOWN_CAUSES that a log names; empty if it names none.

    A message may quote the groups of its pattern, and as `hub` the explanation of an error of the
    hub.
    """
    # blanks for line breaks, so that a pattern matches across lines
    errors_text = " ".join(_strip_log(log_text).split())
    for cause in KNOWN_CAUSES:
        if match := re.search("|".join(cause["patterns"]), errors_text):
            quote_by_placeholder = {
                group_name: text.rstrip()[:MOST_QUOTED_CHARACTERS]
                for group_name, text in match.groupdict(default="").items()
            }
            # the log has the error's text, and the explanation needs an error
            quote_by_placeholder["hub"] = explain_hub_error(
                model_name, OSError(errors_text[match.start() :][:MOST_QUOTED_CHARACTERS])
            )
            return str(cause["message"].format(**quote_by_placeholder))
    return ""


def _last_error(log_text: str) -> str:
    """The last line that names an exception; empty if there is none.

    A line that only follows from another error counts only if there is no other line.
    """
    lines = [line for line in _strip_log(log_text).splitlines() if _EXCEPTION_LINE.match(line)]
    primary_lines = [line for line in lines if not _SECONDARY_ERROR.search(line)]
    # the last primary line if there is one, else the last line, else the empty text
    return ["", *lines, *primary_lines][-1][:MOST_QUOTED_CHARACTERS]


def _strip_log(log_text: str) -> str:
    """A log without lines of level DEBUG, INFO or WARNING, and without the prefixes of lines.

    vLLM's prefix is the process, the level, the date, the time and the position in the source.
    A line that a program prints has the process alone.
    """
    # a line begins with: (EngineCore pid=7) ERROR 11-29 21:05:09 [FILE:5]
    process_pattern = r"(?m)^(\(\w+[^)]*\) )?"
    origin_pattern = r"[\d-]+ [\d:.]+ \[[^\]]*\] "
    errors_text = re.sub(
        rf"{process_pattern}(DEBUG|INFO|WARNING) {origin_pattern}.*$", "", log_text
    )
    return re.sub(rf"{process_pattern}([A-Z]+ {origin_pattern})?", "", errors_text)
