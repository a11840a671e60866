"""Explain in one line why an engine did not start.

vLLM starts processes of its own. When one of them fails, vLLM reports only "Engine core initialization failed. See root
cause above", and the cause is what that process printed. So `ChildErrors` reads the standard error of these processes
while it passes it on. Then the error and that text are searched for the causes in `start_errors.yaml`. An unknown cause
is quoted without advice. A process that a signal ended prints nothing: its exit code names the signal, and what it
printed before names the step.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from harness.engines.devices import describe_gpu_processes
from harness.engines.engine_processes import CONTINUE
from harness.errors import QUOTED_CHARACTERS, ModelError, StartEndedError, explain_hub_error

KEPT_ERROR_BYTES = 2**18
"""Of what an engine's processes print, the end that is searched for the cause of their death."""

_MARK = b"\0"
"""We write this byte to the pipe to learn when all before it has been read."""


LOAD_STEPS = {
    "INFO": "starting vLLM",
    "Starting to load model": "loading weights",
    "Warming up": "warming up",
    "Warming up model for the compilation": "warming up and compiling",  # on a CPU
    "for vLLM's torch.compile": "compiling",  # 0.28; "disabling torch.compile" is no step
    "Starting torch.compile": "compiling",
    "Capturing CUDA graphs": "capturing CUDA graphs",
}
"""What vLLM (0.28 to 0.33) writes as it starts, in this order, and at which step it then is."""

UNKNOWN_SIGNAL = "a signal"
"""What ended a worker process that printed no error. vLLM seldom logs its exit code."""

SIGNAL_SENDERS = {
    "SIGTERM": "A scheduler, an operator or a memory guard such as earlyoom sends this signal.",
    "SIGKILL": "The kernel or a memory guard sends this signal where memory runs out: see `dmesg`.",
    UNKNOWN_SIGNAL: "The kernel or a memory guard sends one where memory runs out: see `dmesg`.",
}
"""Who ends a process from outside, by signal. Any other signal is a crash of the process itself."""

_WORKER_END = re.compile(
    r"WorkerProc initialization failed"
    r"|Worker proc \S+ died unexpectedly(?: \(exit code: (?P<exit_code>-\d+)\))?"
)


_NOTED_SIGNAL = re.compile(r"EngineCore: trigger received signal=(SIG\w+)")


@cache
def read_causes() -> list[dict[str, Any]]:
    """The known causes of failed starts, as `start_errors.yaml` has them; its first lines describe the fields."""
    return list(yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")))


class ChildErrors:
    """Passes the standard error of child processes on to ours and keeps the end of it.

    It uses a pipe and no file, because an engine prints for hours and must not fill a disk.
    """

    def __init__(self) -> None:
        self._ours = os.dup(2)
        self._read, self._write = os.pipe()
        self._kept = b""
        self._caught_up = threading.Event()
        threading.Thread(target=self._pass_on, name="mless-engine-errors", daemon=True).start()

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """Processes that are started within this context write to the pipe as long as they live."""
        sys.stderr.flush()
        os.dup2(self._write, 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(self._ours, 2)

    def forget(self) -> None:
        """Drop what was written until now."""
        self.last()
        self._kept = b""

    def last(self) -> str:
        """The end of what was written until now, at most `KEPT_ERROR_BYTES`."""
        self._caught_up.clear()
        with contextlib.suppress(OSError):  # closed
            os.write(self._write, _MARK)
            self._caught_up.wait(timeout=5)
        return self._kept.decode(errors="replace")

    def close(self) -> str:
        """Stop passing on, and return the end of what was written."""
        said = self.last()
        with contextlib.suppress(OSError):
            os.close(self._write)
            self._write = -1
        return said

    def _pass_on(self) -> None:
        while chunk := os.read(self._read, 2**16):
            text = chunk.replace(_MARK, b"")
            with contextlib.suppress(OSError):  # nobody reads ours
                os.write(self._ours, text)
            self._kept = (self._kept + text)[-KEPT_ERROR_BYTES:]
            if _MARK in chunk:
                self._caught_up.set()
        os.close(self._read)
        os.close(self._ours)


def load_step(log: str) -> str:
    """The step that vLLM's start has reached, by what its processes have written."""
    steps = [step for text, step in LOAD_STEPS.items() if text in log]
    return steps[-1] if steps else "importing"


def make_start_error(
    name: str,
    error: BaseException,
    log: str,
    exit_codes: Sequence[int | None],
) -> ModelError:
    """The error for an engine that did not start.

    Args:
        name: The model's folder or hub name.
        error: What the start raised.
        log: What the engine's processes wrote to standard error.
        exit_codes: Those of the processes that the start made; None of a process that runs.
    """
    signal_name = _find_signal(log, exit_codes)
    # After an error of its own vLLM ends the process with a signal too. So a signal is the cause only
    # if vLLM's error refers to a process that it found dead.
    if not signal_name or not _SEE_ABOVE.search(str(error)) or known_cause(log, name):
        return ModelError(explain_start_error(name, error, log))
    process = "worker process of the engine" if _WORKER_END.search(log) else "engine process"
    message = f"vLLM did not start. The {process} got {signal_name} while it was {load_step(log)}."
    if signal_name not in SIGNAL_SENDERS:
        last_error = _last_error(log)
        return ModelError(f"{message} Its last error: {last_error}" if last_error else message)
    return StartEndedError(f"{message} {SIGNAL_SENDERS[signal_name]} {CONTINUE}")


def _find_signal(log: str, exit_codes: Sequence[int | None]) -> str:
    """The name of the signal that ended a process of the engine; empty if none did."""
    worker_end = _WORKER_END.search(log)
    if worker_end:
        exit_codes = [int(worker_end["exit_code"] or 0)]
    if any(code and code > 0 for code in exit_codes):
        return ""  # a process failed by itself, and vLLM ended the others
    signal_numbers = [-code for code in exit_codes if code and code < 0]
    if signal_numbers:
        return signal.Signals(signal_numbers[0]).name
    if noted_signal := _NOTED_SIGNAL.search(log):
        return noted_signal[1]
    has_no_own_error = bool(_SEE_ABOVE.search(_last_error(log)))
    return UNKNOWN_SIGNAL if worker_end and has_no_own_error else ""


def explain_start_error(
    name: str, error: BaseException, said: str = "", *, program: str = "vLLM"
) -> str:
    """Say why a model did not start, and what to do if the cause is known.

    Args:
        name: The model's folder or hub name.
        error: What the start raised.
        said: What the engine's processes wrote to standard error.
        program: What did not start; the subject of the message.
    """
    cause = known_cause(said + "\n" + "".join(traceback.format_exception(error)), name)
    own = " ".join(f"{type(error).__name__}: {error}".split())[:QUOTED_CHARACTERS]
    return f"{program} did not start. {cause or f'Its last error: {_last_error(said) or own}'}"


def known_cause(text: str, name: str = "") -> str:
    """The first known cause that is found in `text`, as a message about the model `name`; empty if none is found."""
    flat = " ".join(_errors_in(text).split())
    for cause in read_causes():
        if found := re.search("|".join(cause["patterns"]), flat):
            groups = {
                group: (value or "").rstrip()[:QUOTED_CHARACTERS]
                for group, value in found.groupdict().items()
            }
            message: str = cause["message"]
            if "{holders}" in message:
                groups["holders"] = describe_gpu_processes()
            if "{hub}" in message:
                groups["hub"] = explain_hub_error(
                    name, OSError(flat[found.start() :][:QUOTED_CHARACTERS])
                )
            return message.format(**groups)
    return ""


_SEE_ABOVE = re.compile(
    r"initialization failed|See root cause above|See stack trace|EngineCore failed to start"
    r"|RuntimeError: cancelled"  # a call to a worker process that has died
)
_ERROR = re.compile(r"^[\w.]*(Error|Exception|Interrupt|Exit)\b.*")


def _last_error(text: str) -> str:
    """The last line that names an exception, preferably one that does not refer to another."""
    lines = [line for line in _errors_in(text).splitlines() if _ERROR.match(line)]
    lines = [line for line in lines if not _SEE_ABOVE.search(line)] or lines
    return lines[-1][:QUOTED_CHARACTERS] if lines else ""


def _errors_in(text: str) -> str:
    """The text without its lines of level DEBUG, INFO or WARNING, and without what vLLM puts before each line."""
    place = r"[\d-]+ [\d:.]+ \[[^\]]*\] "
    lesser = rf"(?m)^(\(\w+[^)]*\) )?(DEBUG|INFO|WARNING) {place}.*$"
    return re.sub(rf"(?m)^(\(\w+[^)]*\) )?([A-Z]+ {place})?", "", re.sub(lesser, "", text))
