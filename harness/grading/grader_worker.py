"""A worker of the grader pool: its jobs, its process as the parent sees it, and its program.

A worker is a plain program that exchanges JSON lines with the parent, so text that exploits a
worker cannot send a pickle. It uses no fork and no threads, and does not import `__main__` again,
so `GraderPool` works in scripts and notebooks.
"""

import ctypes
import errno
import gc
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import GraderError
from harness.grading.extract_answer import Grade, Verdict
from harness.grading.grade_answer import compare
from harness.grading.other_graders import STEPS, Audit, AuditJob, prepare, run_step

GRADER_START_S = 120.0
"""Time limit for a worker to load its modules."""

GRADER_NICENESS = 5
"""Lower priority than the engine, which may need the same cores, but high enough that deadlines in
wall-clock time remain meaningful."""

COMPARE = "compare"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.grader_worker import serve; serve(*map(int, sys.argv[2:]))"
)
"""The worker's program. It imports the parent's `harness`, even if the working directory or
PYTHONPATH contains another."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LD_PRELOAD": "",
}
"""A fixed order of sets makes graders reproducible. Thread pools would take memory for stacks, and
so would torch's libraries, which vLLM preloads on a CPU."""


class Job:
    """A text for the workers: its remaining steps, and the columns and remarks so far."""

    def __init__(self, request: Mapping[str, Any], steps: list[str]) -> None:
        self.request, self.steps = request, steps
        self.key = hashlib.sha256(json.dumps([request, steps]).encode()).digest()
        self.columns: dict[str, Any] = {}
        self.remarks: list[str] = []
        self.is_reproducible = True  # False after a timeout or crash, which may be accidental

    @property
    def is_comparison(self) -> bool:
        """Whether the job is a comparison with the gold answer, not an audit."""
        return "answer" in self.request

    def lose(self, verdict: Verdict, reason: str) -> None:
        """End the current step without a result, because its worker was lost."""
        self.is_reproducible = False
        step = self.steps[0]
        if step == COMPARE:
            self.add({"verdict": verdict}, reason)
        else:
            self.add(dict.fromkeys(STEPS[step][0]), reason)

    def add(self, columns: Mapping[str, Any], remark: str | None) -> None:
        """Add the result of the current step."""
        self.columns |= columns
        step = self.steps.pop(0)
        if remark is not None:
            self.remarks.append(remark if step == COMPARE else f"{step}: {remark}")

    def result(self) -> Grade | Audit:
        """The result of all steps."""
        reason = "; ".join(self.remarks) if self.remarks else None
        if self.is_comparison:
            return Grade(**self.columns, answer=self.request["answer"], reason=reason)
        return Audit(**self.columns, reason=reason)


class Worker:
    """A worker process, as the parent sees it.

    Its jobs and its error messages are in files, since a pipe can be full and neither process may
    wait for the other. The pipe transmits only the length of a job.
    """

    def __init__(self, memory_bytes: int, *, audits: bool) -> None:
        root = str(Path(__file__).resolve().parents[2])
        try:
            self.requests, self.errors = (tempfile.TemporaryFile(buffering=0) for _ in range(2))
            # the kernel would end the worker with the thread that starts it, not with the process
            dies_with_thread = threading.current_thread() is threading.main_thread()
            descriptor = self.requests.fileno()
            arguments = map(int, (memory_bytes, descriptor, audits, dies_with_thread))
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, root, *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                bufsize=0,
                env={**os.environ, **_ENVIRONMENT},
                pass_fds=[self.requests.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal interrupts only the parent
            )
        except OSError as error:
            raise GraderError(f"no process for grading can be started: {error}.") from None
        assert self.process.stdin and self.process.stdout
        self.job_lengths, self.replies = self.process.stdin, self.process.stdout
        self.is_ready, self.received = False, b""
        self.job: Job | None = None
        self.set_clock(GRADER_START_S)

    @property
    def is_busy(self) -> bool:
        """Whether the worker is starting or has a job, so that its deadline counts."""
        return not self.is_ready or self.job is not None

    def set_clock(self, limit_s: float) -> None:
        """Set the deadline `limit_s` seconds from now."""
        self.limit_s, self.deadline = limit_s, time.monotonic() + limit_s

    def give(self, job: Job) -> None:
        """Give a job to the worker.

        Raises:
            GraderError: The folder for temporary files is full.
        """
        self.job = job
        # JSON in ASCII, so that lone surrogates can be transmitted too
        request = json.dumps({"steps": job.steps, **job.request}).encode()
        try:
            # a worker has one job at a time, so each overwrites the previous one
            self.requests.seek(0)
            if self.requests.write(request) < len(request):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise GraderError(
                f"no job for the graders can be written to {tempfile.gettempdir()}: {error}"
            ) from None
        with suppress(BrokenPipeError):  # the worker has died; `replies` will end
            self.job_lengths.write(b"%d\n" % len(request))

    def end(self, patience_s: float) -> tuple[str, str]:
        """Reap the process. Kill it if it does not end by itself.

        Returns:
            How it ended, and the last line of its error messages.
        """
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        self.process.kill()
        with self.process, self.requests, self.errors:
            exit_code = self.process.wait()
            # the last 4 KiB: hostile text may have caused endless messages
            self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4096))
            lines = self.errors.read(4096).decode(errors="replace").strip().splitlines()
        end = f"was killed by signal {-exit_code}"
        if exit_code >= 0:
            end = f"ended with exit code {exit_code}"
        return f"the grader {end}", lines[-1] if lines else "no message"


def serve(memory_bytes: int, requests: int, audits: int, dies_with_thread: int) -> None:
    """Run a worker: prepare the process, report that it is ready, and serve jobs until input ends.

    A worker uses neither clocks nor signals: the parent kills it if it takes too long. If the
    parent is gone, the input ends, or the kernel kills the worker.

    Args:
        memory_bytes: The address space that the process may use.
        requests: The descriptor of the file of requests.
        audits: Whether to load the other graders.
        dies_with_thread: Whether the kernel kills the worker when the thread that started it ends.
    """
    if dies_with_thread:
        # 1 is PR_SET_PDEATHSIG: a parent that is killed cannot end workers that hang
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    # The protocol leaves descriptors 0 and 1, so that output of libraries cannot disturb it.
    lengths, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    if audits:
        prepare()
    _limit(memory_bytes)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # a broken installation has reported its error before
        os.dup2(null, descriptor)
    gc.freeze()  # modules that are loaded stay, so the garbage collector can skip them
    try:
        replies.write(b"ready\n")
        for length in lengths:
            request = json.loads(os.pread(requests, int(length), 0))
            for step in request.pop("steps"):
                replies.write(json.dumps(_run_step(step, request)).encode() + b"\n")
    except BrokenPipeError:  # the parent is gone, so nobody needs an answer
        os._exit(0)
    except MemoryError:  # no clean-up can be trusted to work
        os._exit(1)


def _run_step(step: str, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    if step != COMPARE:
        return run_step(step, AuditJob(**request))
    grade = compare(request["answer"], *request["targets"], decimal=request["decimal"])
    return {"verdict": grade.verdict}, grade.reason


def _limit(memory_bytes: int) -> None:
    """Limit memory and priority, and forbid core files and written files."""
    os.nice(GRADER_NICENESS)
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        hard_limit = resource.getrlimit(kind)[1]
        if hard_limit != resource.RLIM_INFINITY:
            limit = min(limit, hard_limit)
        resource.setrlimit(kind, (limit, limit))
