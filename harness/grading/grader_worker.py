"""A process of the grader pool, and its program.

The process is a plain program that exchanges JSON lines with a thread of the parent, so text that
exploits it cannot send a pickle. It uses no fork and no threads, and does not import `__main__`
again, so `GraderPool` works in scripts and notebooks.
"""

import ctypes
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from typing import Any

from harness.errors import GraderError
from harness.grading.answer_extraction import Grade
from harness.grading.answer_grading import compare_answers
from harness.grading.other_graders import COLUMNS_BY_STEP, StepResult, prepare_graders, run_step

GRADER_START_LIMIT_S = 120.0
"""Time limit for a process to load its modules."""
GRADER_CPU_LIMIT_S = 3
"""CPU time for one comparison, or one step of an audit: a hundred times that of the slowest honest
answer. It does not run while other processes use the cores."""
GRADER_DEADLINE_S = 300.0
"""Wall-clock time for the same, for a process that hangs without using the CPU."""
GRADER_MEMORY_LIMIT_BYTES = 2**30
"""Address space of one process. With math_verify loaded it needs a sixth of this."""
MOST_MESSAGE_BYTES = 4096
"""Bytes read of a dead process's messages, because hostile text may have caused endless ones."""
GRADER_NICENESS = 5
"""Lower priority than the engine, which may need the same cores."""

COMPARISON_STEP = "compare"
"""The step of a job that compares the answer with the gold answer."""
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.grader_worker import serve; serve(*map(int, sys.argv[2:]))"
)
"""The program. It imports the parent's `harness`, even if the working directory or PYTHONPATH
contains another."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LD_PRELOAD": "",
}
"""A fixed order of sets makes graders reproducible. Thread pools would take memory for stacks, and
so would torch's libraries, which vLLM preloads on a CPU."""


class LostProcess(Exception):
    """A process hung or ended.

    Its arguments are the verdict if the step was the comparison, `timeout` or `crashed`, and a text
    that says how the process ended.
    """


class GraderProcess:
    """A process that grades for one thread at a time. If it is lost, it is replaced.

    Args:
        with_audit: Whether the process loads the other graders when it starts.
    """

    def __init__(self, *, with_audit: bool) -> None:
        self._program_arguments = [
            # the folder that contains the package `harness`
            str(Path(__file__).parents[2]),
            str(GRADER_CPU_LIMIT_S),
            str(GRADER_MEMORY_LIMIT_BYTES),
            str(int(with_audit)),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        # whether the pool has killed the process for good
        self._is_closing = False

    def kill(self) -> None:
        """Kill the process for good: no other process replaces it."""
        self._is_closing = True
        if self._process:
            self._process.kill()

    def grade(self, request: Mapping[str, Any], steps: Sequence[str]) -> tuple[Grade, bool]:
        """The grade of a job, and whether the grade is reproducible.

        A step whose process is lost gives the verdict `timeout` or `crashed` if it is the
        comparison, and otherwise None in its columns. Such a grade is not reproducible, because the
        loss may be accidental. The next step gets a new process.

        Args:
            request: What the steps need, by four keys. `grade`: the fields of the `Grade` that are
                known before the steps. `targets` and `decimal`: the accepted answers and the
                job's decimal sign, for the comparison. `audit`: the texts of `select_audit_texts`,
                for the other graders. Keys of steps that are left out may be missing.
            steps: The graders: the comparison, those of the audit, or all.

        Raises:
            GraderError: No process can be started.
        """
        columns = dict(request["grade"])
        remarks = []
        is_reproducible = True
        for step in steps:
            self._start_process()
            try:
                step_columns, remark = self._exchange([step, request], GRADER_DEADLINE_S)
            except LostProcess as loss:
                is_reproducible = False
                step_columns, remark = _describe_loss(step, loss)
            columns |= step_columns
            # the comparison has a column for its remark; those of the audit share one
            if step == COMPARISON_STEP:
                columns["reason"] = remark
            elif remark is not None:
                remarks.append(f"{step}: {remark}")
        columns["audit_reason"] = "; ".join(remarks) or None
        return Grade(**columns), is_reproducible

    def _start_process(self) -> None:
        """Start a process if there is none.

        Raises:
            GraderError: The process does not start, or the pool is closing.
        """
        if self._process:
            return
        if self._is_closing:
            raise GraderError("the pool of graders is closed.")
        try:
            self._stderr_file = tempfile.TemporaryFile(buffering=0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _PROGRAM, *self._program_arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # a file, because nobody reads a pipe while the process works
                stderr=self._stderr_file,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C in the terminal interrupts only the parent
            )
            self._exchange(None, GRADER_START_LIMIT_S)
        except OSError as error:
            raise GraderError(f"no process for grading can be started: {error}.") from None
        except LostProcess as loss:
            # the exchange has ended the process, and `end` has kept its last message
            raise GraderError(
                f"no grader worker can be started ({loss.args[1]}): {self._last_message}"
            ) from None

    def _exchange(self, step_and_request: Any, timeout_s: float) -> StepResult:
        """Send a step and its job to the process, or None at its start, and return the reply.

        Raises:
            LostProcess: The process did not answer in time, used too much CPU time, ended, or gave
                an answer that is not a reply.
        """
        reply_line = self._send_and_read(step_and_request, timeout_s)
        # a line that was cut short shows the end of the process, just as a missing line does
        if not reply_line.endswith(b"\n"):
            # the process has closed its pipe, so it is about to end by itself
            exit_code = self.end(patience_s=1.0)
            if self._has_expired:
                raise LostProcess("timeout", f"over {timeout_s:g} s")
            if exit_code == -signal.SIGPROF:
                raise LostProcess("timeout", f"over {GRADER_CPU_LIMIT_S} s of CPU time")
            raise LostProcess("crashed", f"the grader ended with exit code {exit_code}")
        # A whole reply counts even after the deadline, because this thread may be late. But the
        # timer has killed the process, so the next step needs another one.
        if self._has_expired:
            self.end()
        try:
            columns, remark = json.loads(reply_line)
            return dict(columns), remark
        except (ValueError, TypeError):
            self.end()
            raise LostProcess("crashed", "the grader answered nonsense") from None

    def _send_and_read(self, step_and_request: Any, timeout_s: float) -> bytes:
        """Send a line and return the reply as it is; it is empty or cut short if the process ends.

        After the time limit the process is killed.
        """
        assert self._process and self._process.stdin and self._process.stdout
        reply_line = b""
        # whether the timer has killed the process
        self._has_expired = False
        timer = Timer(timeout_s, self._expire)
        timer.start()
        with suppress(BrokenPipeError):  # the process has ended, so there is no reply
            # JSON in ASCII, so that lone surrogates can be transmitted too
            self._process.stdin.write(json.dumps(step_and_request).encode() + b"\n")
            self._process.stdin.flush()
            reply_line = self._process.stdout.readline()
        timer.cancel()
        timer.join()
        return reply_line

    def _expire(self) -> None:
        """Kill the process, because it has reached its deadline. Then its reply ends too."""
        self._has_expired = True
        if self._process:
            self._process.kill()

    def end(self, patience_s: float = 0.0) -> int:
        """Wait for the process, kill it if it does not end by itself, and return its exit code.

        The next step gets a new process. The last line of the messages is kept for an error.

        Args:
            patience_s: How long the process may take to end by itself.
        """
        process = self._process
        self._process = None
        if not process:
            return 0
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
        process.kill()
        # leaving the block closes the pipes, and fails if the process has left its input unread
        with suppress(BrokenPipeError), process:
            pass
        # the last line of the messages names the error, and the lines before it may be endless
        with self._stderr_file as stderr_file:
            stderr_file.seek(max(0, stderr_file.seek(0, os.SEEK_END) - MOST_MESSAGE_BYTES))
            messages = stderr_file.read(MOST_MESSAGE_BYTES).decode(errors="replace")
        message_lines = messages.strip().splitlines()
        self._last_message = message_lines[-1] if message_lines else "no message"
        return process.wait()


def _describe_loss(step: str, loss: LostProcess) -> StepResult:
    """The columns of a step whose process was lost, and how the process ended."""
    verdict, remark = loss.args
    # the other graders have columns without a verdict, so these stay empty
    if step != COMPARISON_STEP:
        return dict.fromkeys(COLUMNS_BY_STEP[step]), remark
    return {"verdict": verdict}, remark


def serve(cpu_limit_s: int, memory_limit_bytes: int, with_audit: int) -> None:
    """Run the program: prepare the process, and answer each line until input ends.

    The kernel kills the process if a step takes too much CPU time, and the parent kills it if a
    step takes too long. If the parent is gone, the input ends, or the kernel kills the process.

    Args:
        cpu_limit_s: Seconds of CPU time for one step.
        memory_limit_bytes: The address space that the process may use.
        with_audit: Whether to load the other graders.
    """
    # 1 is PR_SET_PDEATHSIG: a parent that is killed cannot end processes that hang. The kernel
    # sends the signal when the parent's thread ends, and that thread waits for this process.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    # Requests and replies get other descriptors than 0 and 1, which libraries print to.
    request_stream = os.fdopen(os.dup(0), "rb")
    reply_stream = os.fdopen(os.dup(1), "wb", buffering=0)
    if with_audit:
        prepare_graders()
    _limit_resources(memory_limit_bytes)
    # The standard streams are silenced only after the imports, so that an error in them is seen.
    null_descriptor = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null_descriptor, descriptor)
    # modules that are loaded stay, so the garbage collector can skip them
    gc.freeze()
    try:
        for request_line in request_stream:
            # Each step gets its own CPU time. When it is over, SIGPROF ends the process.
            signal.setitimer(signal.ITIMER_PROF, cpu_limit_s)
            step_and_request = json.loads(request_line)
            # the first line is null: the parent asks whether the process has started
            reply = _run_step(*step_and_request) if step_and_request else ({}, None)
            reply_stream.write(json.dumps(reply).encode() + b"\n")
    # no clean-up can be trusted without memory, and without a parent nobody needs an answer
    except (MemoryError, BrokenPipeError):
        os._exit(1)


def _run_step(step: str, request: Mapping[str, Any]) -> StepResult:
    """The columns of one step of a job, and a remark.

    Args:
        step: The name of the step.
        request: See `GraderProcess.grade`.
    """
    if step != COMPARISON_STEP:
        return run_step(step, request["audit"])
    grade = compare_answers(
        request["grade"]["answer"], *request["targets"], decimal_sign=request["decimal"]
    )
    return {"verdict": grade.verdict}, grade.reason


def _limit_resources(memory_limit_bytes: int) -> None:
    """Limit memory and priority, and forbid core files and written files."""
    os.nice(GRADER_NICENESS)
    for resource_kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, memory_limit_bytes),
    ):
        # a process may not set a limit above its hard limit
        _, hard_limit = resource.getrlimit(resource_kind)
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(resource_kind, (limit, limit))
