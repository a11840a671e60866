"""The grader pool: worker processes that can be killed, and a parent that keeps their deadlines.

Model text is hostile. On such text the other graders can hang, exhaust memory or crash, even in
native code that no signal and no exception reaches. Our grader is bounded, but may have a bug. So
the single-threaded parent does only what is linear in the text (`read_answer`, equality), and a
worker that the parent can kill does the rest. A worker is a plain program that exchanges JSON
lines: it uses no pickle, no fork and no threads, and does not import `__main__` again.

A job has one or several steps: the comparison with the gold answer, or each of the other graders. A
worker replies after every step, so a step that hangs costs only its own columns.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import hashlib
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import harness
from harness.errors import GraderError
from harness.grading.extract_answer import Grade, GradeJob, Verdict, read_answer
from harness.grading.other_graders import STEPS, Audit, AuditJob, prepare, run_step
from harness.grading.same_answer import compare
from harness.resources import count_cores

GRADER_DEADLINE_S = 3.0
"""For one comparison, or one step of an audit: a hundred times the time of the slowest honest
answer."""
GRADER_MEMORY_BYTES = 2**30
"""Address space of one worker. With lm-eval's graders loaded it needs a sixth of this."""
MOST_GRADERS = 8
"""Default limit of the number of workers. More would not help: no run waits for its grading."""
GRADER_START_S = 120.0
"""Time limit for a worker to load its modules."""
GRADER_STARTS = 3
"""Workers in a row that fail to start before the pool gives up."""
GRADER_NICENESS = 5
"""Lower priority than the engine, which may need the same cores, but high enough that deadlines in
wall-clock time remain meaningful."""
MOST_CACHED_RESULTS = 2**16
"""Results that are cached for equal jobs. The oldest result is dropped first."""

_COMPARE = "compare"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.grader_pool import serve; serve(*map(int, sys.argv[2:]))"
)
"""The worker's program. It imports the parent's `harness`, even if the working directory or
PYTHONPATH contains another."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""A fixed order of sets makes graders reproducible. Thread pools would take memory for stacks."""


class _Job:
    """A text for the workers: its remaining steps, and the columns and remarks so far."""

    def __init__(self, request: Mapping[str, str], steps: list[str]) -> None:
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
        if step == _COMPARE:
            self.add({"verdict": verdict}, reason)
        else:
            self.add(dict.fromkeys(STEPS[step][0]), reason)

    def add(self, columns: Mapping[str, Any], remark: str | None) -> None:
        """Add the result of the current step."""
        self.columns |= columns
        step = self.steps.pop(0)
        if remark is not None:
            self.remarks.append(remark if step == _COMPARE else f"{step}: {remark}")

    def result(self) -> Grade | Audit:
        """The result of all steps."""
        reason = "; ".join(self.remarks) if self.remarks else None
        if self.is_comparison:
            return Grade(**self.columns, answer=self.request["answer"], reason=reason)
        return Audit(**self.columns, reason=reason)


class _Worker:
    """A worker process, as the parent sees it.

    Its jobs and its error messages are in files, since a pipe can be full and neither process may
    wait for the other. The pipe transmits only the length of a job.
    """

    def __init__(self, memory_bytes: int, *, audits: bool) -> None:
        root = str(Path(harness.__file__).resolve().parent.parent)
        try:
            self.requests, self.errors = (tempfile.TemporaryFile(buffering=0) for _ in range(2))
            arguments = int(memory_bytes), self.requests.fileno(), int(audits)
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
        self.job: _Job | None = None
        self.set_clock(GRADER_START_S)

    @property
    def is_busy(self) -> bool:
        """Whether the worker is starting or has a job, so that its deadline counts."""
        return not self.is_ready or self.job is not None

    def set_clock(self, limit_s: float) -> None:
        """Set the deadline `limit_s` seconds from now."""
        self.limit_s, self.deadline = limit_s, time.monotonic() + limit_s

    def give(self, job: _Job) -> None:
        """Give a job to the worker.

        Raises:
            GraderError: The folder for temporary files is full.
        """
        self.job = job
        # JSON in ASCII, so that lone surrogates can be transmitted too
        request = json.dumps({"steps": job.steps, **job.request}).encode()
        try:
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
            self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4096))
            lines = self.errors.read(4096).decode(errors="replace").strip().splitlines()
        end = f"was killed by signal {-exit_code}"
        if exit_code >= 0:
            end = f"ended with exit code {exit_code}"
        return f"the grader {end}", lines[-1] if lines else "no message"


class GraderPool:
    """Grades and audits model text in processes that can be killed. Use it as a context manager.

    Workers take all comparisons before audits, each in the order of submission. They do equal jobs
    only once, and results are cached, except timeouts and crashes, which may be accidental.

    Args:
        workers: The number of processes. None: one per usable core, up to 8. They start with the
            first job that needs a worker.
        audits: Whether audits will be submitted too. Then the workers load the other graders as
            they start.
        deadline_s: Wall-clock seconds for one comparison, or for one step of an audit. The clock
            starts when a worker gets the job, and again when the parent reads the reply of a step.
            Start-up is not counted.
        memory_bytes: The address space that one worker may use.

    Raises:
        GraderError: Any method raises it if no worker can be started, or the folder for temporary
            files is full.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        audits: bool = False,
        deadline_s: float = GRADER_DEADLINE_S,
        memory_bytes: int = GRADER_MEMORY_BYTES,
    ) -> None:
        self._max_workers = workers or min(MOST_GRADERS, count_cores())
        self._has_audits, self._deadline_s, self._memory_bytes = audits, deadline_s, memory_bytes
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._comparisons: deque[_Job] = deque()
        self._audit_jobs: deque[_Job] = deque()
        self._waiting: dict[bytes, list[Hashable]] = {}  # the tags that wait for a job, by its key
        self._cache: dict[bytes, Grade | Audit] = {}
        self._finished: list[tuple[Hashable, Grade | Audit]] = []
        self._failed_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all workers and drop all pending jobs."""
        for worker in list(self._workers):
            self._remove(worker)
        self._selector.close()

    def start(self) -> None:
        """Start all workers, so that they are ready before the first job."""
        while len(self._workers) < self._max_workers:
            worker = _Worker(self._memory_bytes, audits=self._has_audits)
            self._selector.register(worker.replies, selectors.EVENT_READ, worker)
            self._workers.append(worker)

    def submit(self, tag: Hashable, job: GradeJob | AuditJob) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` return its result by tag."""
        if isinstance(job, AuditJob):
            self._enqueue(tag, _Job(asdict(job.essential()), job.steps))
            return
        answer = read_answer(job)
        if isinstance(answer, Grade):
            self._finished.append((tag, answer))
        elif answer == job.target:
            self._finished.append((tag, Grade(verdict="correct", answer=answer)))
        else:
            self._enqueue(tag, _Job({"answer": answer, "target": job.target}, [_COMPARE]))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Grade | Audit]]:
        """Return all finished results in the order of finishing.

        Only `poll` and `drain` check deadlines and replace killed workers. Any time may pass
        between two calls: the replies of a worker are read before its deadline is checked.

        Args:
            timeout_s: How long to wait for the first result.
        """
        end = time.monotonic() + timeout_s
        self._advance(0.0)
        while self._waiting and not self._finished and time.monotonic() < end:
            self._advance(end - time.monotonic())
        results, self._finished = self._finished, []
        return results

    def drain(self) -> Iterator[tuple[Any, Grade | Audit]]:
        """Yield results until no job is pending."""
        while self._waiting or self._finished:
            yield from self.poll(self._deadline_s)

    def _enqueue(self, tag: Hashable, job: _Job) -> None:
        """Use the cached result of an equal job, or wait for an equal job, or queue the job."""
        if job.key in self._cache:
            self._finished.append((tag, self._cache[job.key]))
        elif job.key in self._waiting:
            self._waiting[job.key].append(tag)
        else:
            self._waiting[job.key] = [tag]
            queue = self._comparisons if job.is_comparison else self._audit_jobs
            queue.append(job)
            self._dispatch()

    def _advance(self, timeout_s: float) -> None:
        """Give out jobs, wait up to `timeout_s` for replies, read them, and check deadlines."""
        if not self._waiting:
            return
        self._dispatch()
        # The time is taken before the pipes are read, so a reply that was sent before its deadline
        # is never missed.
        now = time.monotonic()
        deadline = min(worker.deadline for worker in self._workers if worker.is_busy)
        for key, _ in self._selector.select(max(0.0, min(timeout_s, deadline - now))):
            self._receive(key.data)
        for worker in list(self._workers):
            if worker.is_busy and now >= worker.deadline:
                self._lose(worker, "timeout", f"over {worker.limit_s:g} s")
        self._dispatch()

    def _dispatch(self) -> None:
        """Replace lost workers, and give jobs to idle workers."""
        self.start()
        for worker in self._workers:
            queue = self._comparisons if self._comparisons else self._audit_jobs
            if queue and not worker.is_busy:
                worker.give(queue.popleft())
                worker.set_clock(self._deadline_s)

    def _receive(self, worker: _Worker) -> None:
        """Read a worker's replies. Without a reply it has ended."""
        received = worker.replies.read(2**16)
        if not received:
            self._lose(worker, "crashed", None)
            return
        *lines, worker.received = (worker.received + received).split(b"\n")
        for line in lines:
            if worker.job is None:  # the first line means that the worker has started
                worker.is_ready, self._failed_starts = True, 0
                continue
            try:
                worker.job.add(*json.loads(line))
            except (ValueError, TypeError):
                return self._lose(worker, "crashed", "the grader answered nonsense")
            worker.set_clock(self._deadline_s)  # each step of an audit has its own deadline
            if not worker.job.steps:
                self._finish(worker.job)
                worker.job = None

    def _lose(self, worker: _Worker, verdict: Verdict, reason: str | None) -> None:
        """Remove a worker. Its comparison, or the current step of its audit, has no result.

        The remaining steps of an audit are queued again.

        Args:
            worker: The worker.
            verdict: The verdict of a comparison that was lost.
            reason: Why the worker is removed. None: the process has ended.

        Raises:
            GraderError: This is the third worker in a row that did not start.
        """
        end, message = self._remove(worker, patience_s=0.0 if reason else 1.0)
        if reason is None:
            reason = end
        job = worker.job
        if not worker.is_ready:
            self._failed_starts += 1
            if self._failed_starts >= GRADER_STARTS:
                attempts = f"{GRADER_STARTS} tries; {reason}"
                raise GraderError(f"no grader worker can be started ({attempts}): {message}")
        elif job:
            job.lose(verdict, reason)
            if job.steps:
                self._audit_jobs.appendleft(job)
            else:
                self._finish(job)

    def _finish(self, job: _Job) -> None:
        """Give the job's result to all tags that wait for it, and cache a reproducible result."""
        result = job.result()
        if job.is_reproducible:
            if len(self._cache) >= MOST_CACHED_RESULTS:
                del self._cache[next(iter(self._cache))]
            self._cache[job.key] = result
        self._finished.extend((tag, result) for tag in self._waiting.pop(job.key))

    def _remove(self, worker: _Worker, *, patience_s: float = 0.0) -> tuple[str, str]:
        self._workers.remove(worker)
        self._selector.unregister(worker.replies)
        return worker.end(patience_s)


def serve(memory_bytes: int, requests: int, audits: int) -> None:
    """Run a worker: prepare the process, report that it is ready, and serve jobs until input ends.

    A worker uses neither clocks nor signals: the parent kills it if it takes too long. If the
    parent is gone, the kernel kills the worker (Linux), or its input ends.

    Args:
        memory_bytes: The address space that the process may use.
        requests: The descriptor of the file of requests.
        audits: Whether to load the other graders.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
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
    except BrokenPipeError:  # the parent is gone
        os._exit(0)
    except MemoryError:  # no clean-up can be trusted to work
        os._exit(1)


def _run_step(step: str, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    if step != _COMPARE:
        return run_step(step, AuditJob(**request))
    grade = compare(request["answer"], request["target"])
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
        with suppress(OSError, ValueError):  # only Linux can limit the address space
            resource.setrlimit(kind, (limit, limit))
