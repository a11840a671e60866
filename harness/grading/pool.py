"""The grader pool: killable worker processes, and one single-threaded parent that keeps their clocks.

Model text is hostile. sympy on hostile text can hang, exhaust memory or crash, in native code too, where no signal and
no exception reaches. So the parent does only what is linear in the text (`read`, equality), and everything else runs
in a worker that the parent can kill. There are no threads, no signals, no pickle and no `multiprocessing`. The workers
are plain programs that speak JSON lines, so nothing is forked, `__main__` is never imported again, and any console
script can hold a pool.

A worker goes through the states of `State`. `_take_message` is the one place where its message changes the state,
`_keep_deadlines` the one where its time is over, and `_lose` the one where it is given up.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Self

import harness
from harness.errors import GraderError
from harness.grading.audit import Audit, AuditJob
from harness.grading.grade_completion import Grade, Verdict, read
from harness.grading.jobs import AuditSteps, Comparison, GradeJob, Job

DEADLINE_S = 3.0
MEMORY_BYTES = 2**30
LEAST_MEMORY_BYTES = 2**28
"""A worker needs two thirds of this for itself, once it has lm-eval's graders loaded."""

MOST_WORKERS = 8
"""Unless asked for more: grading is never what a run waits for."""

STARTING_S = 120.0
TAKING_S = 120.0
"""Seconds in which a worker must take more of a job that is longer than the pipe; an idle one does so at once."""

TRIES_TO_START = 3
CACHED = 2**16
"""Results kept, the oldest dropped first."""

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.worker import main; main(int(sys.argv[2]), audits=sys.argv[3] == 'audits')"
)
"""Finds this very `harness`, whatever else of that name the working directory or PYTHONPATH holds."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One order of sets, so that sympy does the same in every run; no thread pools, whose stacks would use the memory."""


class State(Enum):
    """What a worker does, as far as the parent has heard. The value is said of a worker that takes too long over it."""

    STARTING = "not ready after"  # it loads sympy
    IDLE = "idle for"  # without a limit
    TAKING = "took no more of its job for"  # the job is longer than the pipe, and part of it is still to be written
    WORKING = "over"  # it has the whole job: one comparison, or an audit, each step of which has its own clock
    LOADING = "other graders not loaded after"  # before its first audit, whose time this is not


class _Worker:
    """A worker process as the parent sees it.

    Raises:
        GraderError: the process cannot be started.
    """

    def __init__(self, memory_bytes: int, *, audits: bool) -> None:
        root = str(Path(harness.__file__).resolve().parent.parent)
        self.errors = tempfile.TemporaryFile()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, root, str(memory_bytes), "audits" if audits else ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                bufsize=0,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
        except OSError as error:
            self.errors.close()
            raise GraderError(f"no grader worker can be started: {error}. Check the Python named there.") from error
        assert self.process.stdin is not None and self.process.stdout is not None
        self.requests, self.replies = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.requests, False)
        self.job: Job | None = None
        self.unsent = memoryview(b"")
        self.received = b""
        self.enter(State.STARTING, STARTING_S)

    def enter(self, state: State, limit_s: float = math.inf) -> None:
        """Go into a state, which may last so many seconds from now."""
        self.state, self.limit_s, self.deadline = state, limit_s, time.monotonic() + limit_s

    def how_it_ended(self) -> str:
        """How the process ended, which has closed its pipe."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = 0
        if code >= 0:
            return f"the grader ended with exit code {code}"
        names = {number.value: f" ({number.name})" for number in signal.Signals}
        return f"the grader was killed by signal {-code}{names.get(-code, '')}"

    def kill(self) -> str:
        """Kill and reap the process; returns the last line that it wrote to its standard error."""
        self.process.kill()
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                stream.close()
        return lines[-1] if lines else "no message"


class GraderPool:
    """Grades and audits in killable processes; use it as a context manager.

    Order of work: grades before audits, each in order of submission. Equal jobs in flight are done once, and results
    are kept by (answer, target, grader version), except timeouts and crashes, which may say something about the
    moment only. Workers start when there is work that needs one, or by `start`: a pool that only meets plain answers
    starts none.

    Args:
        workers: Processes at most; None: one a usable core, up to 8.
        deadline_s: Wall-clock seconds for one comparison, or for one step of an audit; the first counts from when the
            worker has the whole job, a later step from when the parent reads the one before. Start-up is not counted.
        memory_bytes: Address space of one worker.

    Attributes:
        pending: How many submitted jobs `poll` and `drain` have not handed out yet.

    Raises:
        GraderError: a limit is out of range. Later calls raise it when no worker can be started.
    """

    def __init__(
        self, *, workers: int | None = None, deadline_s: float = DEADLINE_S, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        if workers is not None and workers < 1:
            raise GraderError(
                f"the grader pool needs `workers` of 1 or more, got {workers}. Leave it out for the default."
            )
        if not deadline_s > 0:
            raise GraderError(f"`deadline_s` must be over 0 seconds, got {deadline_s}. The default is {DEADLINE_S:g}.")
        if memory_bytes < LEAST_MEMORY_BYTES:
            raise GraderError(
                f"`memory_bytes` must be {LEAST_MEMORY_BYTES} or more, got {memory_bytes}. "
                f"The graders themselves take two thirds of that; the default is {MEMORY_BYTES}."
            )
        self.pending = 0
        self._most = workers or min(MOST_WORKERS, _usable_cores())
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        self._closed = False
        self._grades: deque[Job] = deque()
        self._audits: deque[Job] = deque()
        self._waiting: dict[Hashable, list[Hashable]] = {}  # the tags that wait for a job, by its key
        self._cache: dict[Hashable, Grade | Audit] = {}
        self._finished: deque[tuple[Hashable, Grade | Audit]] = deque()
        self._failed_starts = 0
        self._audits_to_come = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *, audits: bool = False) -> None:
        """Start all workers now, for work that is sure to come: they are ready before it.

        Args:
            audits: Whether audits will come too; the other graders are loaded then as well.
        """
        self._audits_to_come = audits
        while not self._closed and len(self._workers) < self._most:
            self._add_worker()

    def close(self) -> None:
        """Kill all workers; what is pending is dropped. The pool cannot be used again."""
        for worker in list(self._workers):
            self._remove(worker)
        self._grades.clear()
        self._audits.clear()
        self._finished.clear()
        self.pending = 0
        self._selector.close()
        self._closed = True

    def grade_many(self, pairs: Sequence[tuple[str, str]]) -> list[Grade]:
        """Grade (completion, target) pairs and return the grades in their order."""
        call = object()  # jobs submitted before keep their tags and their results
        grades: dict[Hashable, Grade | None] = {(call, place): None for place in range(len(pairs))}
        for place, (completion, target) in enumerate(pairs):
            self.submit((call, place), GradeJob(completion=completion, target=target))
            if place % 16 == 0:
                self._advance(0.0)  # the workers must not wait while we read
        left, others = len(pairs), []
        while left:
            for tag, result in self.poll(self._deadline_s):
                if tag in grades and isinstance(result, Grade):
                    grades[tag] = result
                    left -= 1
                else:
                    others.append((tag, result))
        self._finished.extend(others)
        self.pending += len(others)
        return [grade for grade in grades.values() if grade is not None]

    def submit(self, tag: Hashable, job: GradeJob | AuditJob) -> None:
        """Take a job; `poll` and `drain` hand its result out beside the tag. Never waits for a worker."""
        if self._closed:
            raise GraderError("the grader pool is closed. Submit inside its `with` block.")
        self.pending += 1
        if isinstance(job, GradeJob):
            answer = read(job.completion, finish_reason=job.finish_reason)
            if isinstance(answer, Grade):
                self._finished.append((tag, answer))
            elif answer == job.target:
                self._finished.append((tag, Grade(verdict="correct", answer=answer)))
            else:
                self._enqueue(tag, Comparison(answer, job.target), self._grades)
        else:
            self._enqueue(tag, AuditSteps(job), self._audits)

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Grade | Audit]]:
        """Hand out what is finished, in order of finishing; waits up to `timeout_s` for the first.

        Deadlines are kept, and killed workers replaced, only in here, in `drain` and in `grade_many`. Between two calls
        any time may pass: what a worker said meanwhile is heard before its deadline is looked at.
        """
        until = time.monotonic() + timeout_s
        self._advance(0.0)
        while self.pending and not self._finished and (left := until - time.monotonic()) > 0:
            self._advance(left)
        done = list(self._finished)
        self._finished.clear()
        self.pending -= len(done)
        return done

    def drain(self) -> Iterator[tuple[Any, Grade | Audit]]:
        """Hand out results until nothing is pending."""
        while self.pending:
            yield from self.poll(self._deadline_s)

    def _enqueue(self, tag: Hashable, job: Job, queue: deque[Job]) -> None:
        """Give the tag a kept result, or let it wait for an equal job, or queue the job."""
        if job.key in self._cache:
            self._finished.append((tag, self._cache[job.key]))
        elif job.key in self._waiting:
            self._waiting[job.key].append(tag)
        else:
            self._waiting[job.key] = [tag]
            queue.append(job)
            self._dispatch()

    def _advance(self, timeout_s: float) -> None:
        """One turn: give out work, move bytes, keep deadlines."""
        self._dispatch()
        if not self._workers:
            return
        now = time.monotonic()
        nearest = min(worker.deadline for worker in self._workers)
        for key, _ in self._selector.select(max(0.0, min(timeout_s, nearest - now))):
            worker: _Worker = key.data
            if worker not in self._workers:
                continue  # removed in this very turn
            if key.fd == worker.requests:
                self._send(worker)
            else:
                self._receive(worker)
        self._keep_deadlines(now)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give idle workers jobs, and start workers for the jobs that are left."""
        for worker in list(self._workers):
            if worker.state is State.IDLE and (self._grades or self._audits):
                worker.job = self._grades.popleft() if self._grades else self._audits.popleft()
                line = json.dumps(worker.job.request).encode() + b"\n"  # ASCII only: lone surrogates and NULs pass too
                worker.unsent = memoryview(line)
                self._send(worker)
        starting = sum(worker.state is State.STARTING for worker in self._workers)
        wanted = len(self._grades) + len(self._audits) - starting
        for _ in range(min(wanted, self._most - len(self._workers))):
            self._add_worker()

    def _add_worker(self) -> None:
        worker = _Worker(self._memory_bytes, audits=self._audits_to_come)
        self._selector.register(worker.replies, selectors.EVENT_READ, worker)
        self._workers.append(worker)

    def _send(self, worker: _Worker) -> None:
        """Write what the pipe takes now; the rest when the selector says so. A long job cannot block the parent.

        The clock of the job starts behind its last byte: before that, how fast it goes is the parent's doing.
        """
        try:
            while worker.unsent:
                worker.unsent = worker.unsent[os.write(worker.requests, worker.unsent) :]
        except BlockingIOError:
            if worker.state is not State.TAKING:
                self._selector.register(worker.requests, selectors.EVENT_WRITE, worker)
            worker.enter(State.TAKING, TAKING_S)
            return
        except BrokenPipeError:
            pass  # it has died; its other pipe will say so
        if worker.state is State.TAKING:
            self._selector.unregister(worker.requests)
        worker.enter(State.WORKING, self._deadline_s)

    def _receive(self, worker: _Worker) -> None:
        """Read what a worker has said, or that it has ended."""
        received = os.read(worker.replies, 2**16)
        if not received:
            self._lose(worker, "crashed", worker.how_it_ended())
            return
        *lines, worker.received = (worker.received + received).split(b"\n")
        try:
            for line in lines:
                self._take_message(worker, json.loads(line))
        except (KeyError, TypeError, ValueError):
            self._lose(worker, "crashed", "the grader answered nonsense")

    def _take_message(self, worker: _Worker, message: Any) -> None:
        """Do what one message of a worker asks for in the worker's state.

        Raises:
            KeyError, TypeError, ValueError: It is none that a worker in this state may send.
        """
        match worker.state, message:
            case _, {"leaving": str(reason)}:
                self._lose(worker, "crashed", reason)
            case State.STARTING, {"ready": True}:
                self._failed_starts = 0
                worker.enter(State.IDLE)
            case State.WORKING, {"loading": True}:
                worker.enter(State.LOADING, STARTING_S)
            case State.LOADING, {"loading": False}:
                worker.enter(State.WORKING, self._deadline_s)
            case State.WORKING, {"verdict": _} | {"step": _} if worker.job is not None:
                worker.job.take(message)
                if worker.job.result is None:
                    worker.enter(State.WORKING, self._deadline_s)  # the next step of an audit has a clock of its own
                else:
                    job, worker.job = worker.job, None
                    worker.enter(State.IDLE)
                    self._finish(job)
            case _:
                raise ValueError(f"not a message of a worker in {worker.state.name}")

    def _keep_deadlines(self, now: float) -> None:
        """Give up whoever is late by `now`, a time before the pipes were read: all that was said by then was heard.

        A clock read afterwards would also count what the parent slept between the two.
        """
        for worker in list(self._workers):
            if now >= worker.deadline:
                self._lose(worker, "timeout", f"{worker.state.value} {worker.limit_s:g} s")

    def _lose(self, worker: _Worker, verdict: Verdict, reason: str) -> None:
        """Give a worker up, and with it its comparison, or the step of its audit; the audit's other steps go on.

        Raises:
            GraderError: it is the third in a row that did not start.
        """
        last_error = self._remove(worker)
        if worker.state is State.STARTING:
            self._failed_starts += 1
            if self._failed_starts >= TRIES_TO_START:
                raise GraderError(
                    f"no grader worker can be started ({TRIES_TO_START} tries; {reason}): {last_error}. "
                    "Check that math-verify and sympy can be imported, and that memory is left."
                )
        elif job := worker.job:
            job.fail(verdict, reason)
            if job.result is not None:
                self._finish(job)
            else:
                self._audits.appendleft(job)

    def _finish(self, job: Job) -> None:
        """Hand the job's result to all who wait for it, and keep it if it lasts."""
        result = job.result
        assert result is not None
        if job.lasting:
            while len(self._cache) >= CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[job.key] = result
        self._finished.extend((tag, result) for tag in self._waiting.pop(job.key))

    def _remove(self, worker: _Worker) -> str:
        """Kill a worker and forget it; returns its last line of standard error."""
        self._workers.remove(worker)
        self._selector.unregister(worker.replies)
        if worker.state is State.TAKING:
            self._selector.unregister(worker.requests)
        return worker.kill()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
