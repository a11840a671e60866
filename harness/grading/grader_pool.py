"""The grader pool: worker processes that can be killed, and one single-threaded parent that keeps their clocks.

Model text is hostile. On hostile text the other graders can hang, exhaust memory or crash, even in native code that no
signal and no exception reaches; our own is bounded, but may have a bug. So the parent does only what is linear in the
text (`read`, equality), and everything else runs in a worker that the parent can kill. A worker is a plain program that
speaks JSON lines: no pickle, no fork, no threads, and `__main__` is never imported again.

A job is one or several steps: the comparison with the gold answer, or each of the other graders. A worker replies after
every step, so that a step that hangs costs only its own columns.
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
"""For one comparison, or one step of an audit: a hundred times what the slowest honest answer takes."""
GRADER_MEMORY_BYTES = 2**30
"""Address space of one worker: with lm-eval's graders loaded it needs a sixth of that."""
MOST_GRADERS = 8
"""Workers unless told. More would not help: no run waits for its grading."""
GRADER_START_S = 120.0
"""That a worker may take to load what it needs."""
GRADER_STARTS = 3
"""Workers in a row that may fail to start."""
GRADER_NICENESS = 5
"""Below the engine, which may need the same cores, but not so far that deadlines in wall time mean nothing."""
GRADES_KEPT = 2**16
"""Results that are kept for equal answers; the oldest goes first."""

_COMPARE = "compare"
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.grader_pool import serve; serve(*map(int, sys.argv[2:]))"
)
"""The worker's start: it imports this very `harness`, even if the working directory or PYTHONPATH holds another."""
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
"""A fixed order of sets, so that graders do the same in every run, and no thread pools, whose stacks take memory."""


class _Job:
    """The steps that workers take on one text, what they found, and what became of steps that were lost."""

    def __init__(self, request: Mapping[str, str], steps: list[str]) -> None:
        self.request, self.steps = request, steps
        self.key = hashlib.sha256(json.dumps([request, steps]).encode()).digest()
        self.found: dict[str, Any] = {}
        self.remarks: list[str] = []
        self.lasting = (
            True  # whether the result says something about the text, rather than about the moment
        )

    def lose(self, verdict: Verdict, reason: str) -> None:
        """Leave the next step without a finding, because the worker was lost in it."""
        self.lasting = False
        step = self.steps[0]
        self.take(
            {"verdict": verdict} if step == _COMPARE else dict.fromkeys(STEPS[step][0]), reason
        )

    def take(self, found: Mapping[str, Any], remark: str | None) -> None:
        """Keep what the next step found."""
        self.found |= found
        step = self.steps.pop(0)
        if remark is not None:
            self.remarks.append(remark if step == _COMPARE else f"{step}: {remark}")

    def result(self) -> Grade | Audit:
        """The result of all steps."""
        reason = "; ".join(self.remarks) or None
        if "answer" in self.request:
            return Grade(
                verdict=self.found["verdict"], answer=self.request["answer"], reason=reason
            )
        return Audit(**self.found, reason=reason)


class _Worker:
    """A worker process, as the parent sees it.

    Its jobs and its errors lie in files, since a pipe can be full, and neither process may wait for the other. The pipe
    only says how long a job is.
    """

    def __init__(self, memory_bytes: int, *, audits: bool) -> None:
        root = str(Path(harness.__file__).resolve().parent.parent)
        try:
            self._start(root, memory_bytes, audits)
        except OSError as error:
            raise GraderError(f"no process for grading can be started: {error}.") from None
        assert self.process.stdin and self.process.stdout
        self.calls, self.replies = self.process.stdin, self.process.stdout
        self.ready, self.received = False, b""
        self.job: _Job | None = None
        self.set_clock(GRADER_START_S)

    def _start(self, root: str, memory_bytes: int, audits: bool) -> None:
        self.requests, self.errors = (tempfile.TemporaryFile(buffering=0) for _ in range(2))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT, root]
            + [str(int(number)) for number in (memory_bytes, self.requests.fileno(), audits)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            bufsize=0,
            env={**os.environ, **_ENVIRONMENT},
            pass_fds=[self.requests.fileno()],
            start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
        )

    @property
    def busy(self) -> bool:
        """Whether it starts or has a job, so that its clock runs."""
        return not self.ready or self.job is not None

    def set_clock(self, limit_s: float) -> None:
        """Give the worker so many seconds from now."""
        self.limit_s, self.deadline = limit_s, time.monotonic() + limit_s

    def give(self, job: _Job) -> None:
        """Hand a job to the worker.

        Raises:
            GraderError: the folder for temporary files is full.
        """
        self.job = job
        request = json.dumps(
            {"steps": job.steps, **job.request}
        ).encode()  # ASCII, so that lone surrogates pass too
        try:
            self.requests.seek(0)
            if self.requests.write(request) < len(request):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise GraderError(
                f"no job for the graders can be written to {tempfile.gettempdir()}: {error}"
            ) from None
        with suppress(BrokenPipeError):  # the worker has died, as its other pipe will show
            self.calls.write(b"%d\n" % len(request))

    def end(self, patience_s: float) -> tuple[str, str]:
        """Reap the process, killed if it does not end by itself. Says how it ended, and its last line of errors."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience_s)
        self.process.kill()
        with self.process, self.requests, self.errors:
            code = self.process.wait()
            self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - 4096))
            lines = self.errors.read(4096).decode(errors="replace").strip().splitlines()
        ended = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
        return f"the grader {ended}", lines[-1] if lines else "no message"


class GraderPool:
    """Grades and audits model text in processes that can be killed. Use it as a context manager.

    Grades are done before audits, each in the order of submission. Equal jobs in flight are done once, and results are
    kept. Timeouts and crashes are not kept, since they may be due to the moment.

    Args:
        workers: The number of processes. None: one per usable core, up to 8. They start when a job needs one.
        audits: Whether audits will come too. Then the workers load the other graders as they start.
        deadline_s: Wall-clock seconds for one comparison, or for one step of an audit. The clock starts when a worker
            gets the job, and again when the parent reads the reply of a step. Start-up is not counted.
        memory_bytes: The address space that one worker may use.

    Raises:
        GraderError: by any call, if no worker can be started, or the folder for temporary files is full.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        audits: bool = False,
        deadline_s: float = GRADER_DEADLINE_S,
        memory_bytes: int = GRADER_MEMORY_BYTES,
    ) -> None:
        self._most = workers or min(MOST_GRADERS, count_cores())
        self._audits, self._deadline_s, self._memory_bytes = audits, deadline_s, memory_bytes
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._queues: tuple[deque[_Job], deque[_Job]] = (
            deque(),
            deque(),
        )  # of grades and of audits
        self._waiting: dict[bytes, list[Hashable]] = {}  # the tags that wait for a job, by its key
        self._kept: dict[bytes, Grade | Audit] = {}
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
        """Start all workers, so that they are ready before the work comes."""
        while len(self._workers) < self._most:
            worker = _Worker(self._memory_bytes, audits=self._audits)
            self._selector.register(worker.replies, selectors.EVENT_READ, worker)
            self._workers.append(worker)

    def submit(self, tag: Hashable, job: GradeJob | AuditJob) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` hand out its result with the tag."""
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
        """Hand out all finished results, in the order of finishing. Wait up to `timeout_s` seconds for the first.

        Only here and in `drain` are deadlines kept and killed workers replaced. Any time may pass between two calls:
        what a worker said meanwhile is read before its deadline is looked at.
        """
        until = time.monotonic() + timeout_s
        self._advance(0.0)
        while self._waiting and not self._finished and (left := until - time.monotonic()) > 0:
            self._advance(left)
        done, self._finished = self._finished, []
        return done

    def drain(self) -> Iterator[tuple[Any, Grade | Audit]]:
        """Hand out results until no job is pending."""
        while self._waiting or self._finished:
            yield from self.poll(self._deadline_s)

    def _enqueue(self, tag: Hashable, job: _Job) -> None:
        """Take a kept result for the tag, or let it wait for an equal job, or queue the job."""
        if job.key in self._kept:
            self._finished.append((tag, self._kept[job.key]))
        elif job.key in self._waiting:
            self._waiting[job.key].append(tag)
        else:
            self._waiting[job.key] = [tag]
            self._queues["answer" not in job.request].append(job)
            self._dispatch()

    def _advance(self, timeout_s: float) -> None:
        """Take one turn of at most `timeout_s`: give out work, move bytes, keep deadlines."""
        if not self._waiting:
            return
        self._dispatch()
        # Deadlines are held against a time before the pipes are read, so that all that was said by then has been heard.
        now = time.monotonic()
        nearest = min(worker.deadline for worker in self._workers if worker.busy)
        for key, _ in self._selector.select(max(0.0, min(timeout_s, nearest - now))):
            self._receive(key.data)
        for worker in list(self._workers):
            if worker.busy and now >= worker.deadline:
                self._lose(worker, "timeout", f"over {worker.limit_s:g} s")
        self._dispatch()

    def _dispatch(self) -> None:
        """Give idle workers jobs, and replace those that were lost."""
        self.start()
        for worker in self._workers:
            queue = self._queues[0] or self._queues[1]
            if queue and worker.ready and worker.job is None:
                worker.give(queue.popleft())
                worker.set_clock(self._deadline_s)

    def _receive(self, worker: _Worker) -> None:
        """Read a worker's replies, or that it has ended."""
        received = worker.replies.read(2**16)
        if not received:
            self._lose(worker, "crashed", None)
            return
        *lines, worker.received = (worker.received + received).split(b"\n")
        for line in lines:
            if worker.job is None:  # its first line says that it has started
                worker.ready, self._failed_starts = True, 0
                continue
            try:
                worker.job.take(*json.loads(line))
            except (ValueError, TypeError):
                return self._lose(worker, "crashed", "the grader answered nonsense")
            worker.set_clock(self._deadline_s)  # the next step of an audit has a clock of its own
            if not worker.job.steps:
                self._finish(worker.job)
                worker.job = None

    def _lose(self, worker: _Worker, verdict: Verdict, reason: str | None) -> None:
        """Give up a worker, and with it its comparison or the current step of its audit. The other steps go on.

        Args:
            worker: The worker.
            verdict: What a comparison gets that was lost.
            reason: Why. None: the way in which the process ended.

        Raises:
            GraderError: it is the third worker in a row that did not start.
        """
        ended, message = self._remove(worker, patience_s=0.0 if reason else 1.0)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= GRADER_STARTS:
                why = f"{GRADER_STARTS} tries; {reason or ended}"
                raise GraderError(f"no grader worker can be started ({why}): {message}")
        elif job := worker.job:
            job.lose(verdict, reason or ended)
            if job.steps:
                self._queues[1].appendleft(job)
            else:
                self._finish(job)

    def _finish(self, job: _Job) -> None:
        """Hand out the job's result to every tag that waits for it, and keep the result if it lasts."""
        result = job.result()
        if job.lasting:
            if len(self._kept) >= GRADES_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[job.key] = result
        self._finished.extend((tag, result) for tag in self._waiting.pop(job.key))

    def _remove(self, worker: _Worker, *, patience_s: float = 0.0) -> tuple[str, str]:
        self._workers.remove(worker)
        self._selector.unregister(worker.replies)
        return worker.end(patience_s)


def serve(memory_bytes: int, requests: int, audits: int) -> None:
    """The worker's program: prepare the process, say that it is ready, and serve requests until the input ends.

    A worker knows neither clock nor signals: the parent kills it if it takes too long. If the parent is gone, the
    kernel kills it (Linux) or its input ends.

    Args:
        memory_bytes: The address space that the process may use.
        requests: The descriptor of the file of requests.
        audits: Whether to load the other graders.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    # the protocol moves away from descriptors 0 and 1, so that what a library prints goes nowhere
    lengths, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    if audits:
        prepare()
    _limit(memory_bytes)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):  # until now a broken installation could report itself
        os.dup2(nowhere, descriptor)
    gc.freeze()  # what is loaded by now stays: no collection needs to look at it again
    try:
        replies.write(b"ready\n")
        for length in lengths:
            request = json.loads(os.pread(requests, int(length), 0))
            for step in request.pop("steps"):
                replies.write(json.dumps(_answer(step, request)).encode() + b"\n")
    except (
        MemoryError,
        BrokenPipeError,
    ) as error:  # nothing can be trusted to run now, or the parent has gone
        os._exit(isinstance(error, MemoryError))


def _answer(step: str, request: Mapping[str, Any]) -> tuple[Mapping[str, Any], str | None]:
    if step != _COMPARE:
        return run_step(step, AuditJob(**request))
    graded = compare(request["answer"], request["target"])
    return {"verdict": graded.verdict}, graded.reason


def _limit(memory_bytes: int) -> None:
    """Limit memory, and forbid core files and written files. Limits only ever go down."""
    os.nice(GRADER_NICENESS)
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with suppress(OSError, ValueError):  # address space can be limited on Linux alone
            resource.setrlimit(kind, (value, value))
