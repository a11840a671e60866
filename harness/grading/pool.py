"""The grader pool: worker processes that can be killed, and one single-threaded parent that keeps their clocks.

Model text is hostile. On hostile text the graders of an audit can hang, exhaust memory or crash, even in native code
that no signal and no exception reaches; our own is bounded, but may have a bug. So the parent does only what is linear
in the text (`read`, equality), and everything else runs in a worker that the parent can kill. There are no threads, no
signals, no pickle and no `multiprocessing`. Workers are plain programs that speak JSON lines
(`harness.grading.worker`), so nothing is forked, `__main__` is never imported again, and any console script can hold a
pool.

The life of a worker, by the states of `State` and the methods of `GraderPool`:

    _add_worker    STARTING   the worker loads what comparisons need
    _take_message  IDLE       it has said that it is ready
    _dispatch      WORKING    it has a job: one comparison, or an audit, of which it reports every step
    _take_message  LOADING    it loads the other graders before its first audit, and says when it has
    _take_message  IDLE       its last reply was read, and _finish hands out the result
    _lose                     _keep_deadlines found it late, or _receive found it gone: it is killed
"""

from __future__ import annotations

import errno
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
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any, Self

import harness
from harness.errors import GraderError
from harness.grading.extract import Grade, GradeJob, Verdict, read
from harness.grading.other_graders import Audit, AuditJob
from harness.grading.worker import AuditSteps, Comparison

DEADLINE_S = 3.0
MEMORY_BYTES = 2**30
LEAST_MEMORY_BYTES = 2**28
"""The least limit that can be asked for: with lm-eval's graders loaded, a worker itself needs two thirds of it."""

MOST_WORKERS = 8
"""The most workers by default. More would not help: no run waits for its grading."""

STARTING_S = 120.0
"""Seconds that a worker may take to start, and to load the other graders before its first audit."""

TRIES_TO_START = 3
CACHED = 2**16
"""Number of results that are kept. The oldest is dropped first."""

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.worker import main; main(*map(int, sys.argv[2:4]), audits=sys.argv[4] == 'audits')"
)
"""The worker's start: it imports this very `harness`, even if the working directory or PYTHONPATH holds another."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""A fixed order of sets, so that graders do the same in every run, and no thread pools, whose stacks take memory."""

Job = Comparison | AuditSteps


class State(Enum):
    """What a worker does, as far as the parent has heard. The value is the reason given if it takes too long."""

    STARTING = "not ready after"
    IDLE = "idle for"  # without a limit
    LOADING = "other graders not loaded after"
    WORKING = "over"  # each step of an audit has a clock of its own


class _Worker:
    """A worker process, as the parent sees it.

    Its jobs lie in a file, since a pipe can be full, and the parent must never wait for a worker. The pipe only says
    how long a job is.

    Raises:
        GraderError: the process cannot be started.
    """

    def __init__(self, memory_bytes: int, *, audits: bool) -> None:
        root = str(Path(harness.__file__).resolve().parent.parent)
        self.requests, self.errors = tempfile.TemporaryFile(buffering=0), tempfile.TemporaryFile()
        numbers = [str(memory_bytes), str(self.requests.fileno())]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, root, *numbers, "audits" if audits else ""],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.errors,
                bufsize=0,
                env={**os.environ, **_ENVIRONMENT},
                pass_fds=[self.requests.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
        except OSError as error:
            self.requests.close()
            self.errors.close()
            raise GraderError(f"no grader worker can be started: {error}. Check the Python named there.") from error
        assert self.process.stdin is not None and self.process.stdout is not None
        self.calls, self.replies = self.process.stdin, self.process.stdout
        self.job: Job | None = None
        self.received = b""
        self.enter(State.STARTING, STARTING_S)

    def enter(self, state: State, limit_s: float = math.inf) -> None:
        """Go into a state that may last `limit_s` seconds from now."""
        self.state, self.limit_s, self.deadline = state, limit_s, time.monotonic() + limit_s

    def give(self, job: Job) -> None:
        """Hand a job to the worker.

        Raises:
            GraderError: the folder for temporary files is full.
        """
        self.job = job
        request = json.dumps(job.request).encode()  # ASCII only, so that lone surrogates and NULs pass too
        try:
            self.requests.seek(0)
            if self.requests.write(request) < len(request):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise GraderError(
                f"a job for the graders cannot be written to {tempfile.gettempdir()}: {error.strerror}. Free some "
                "space there, or set TMPDIR to another folder."
            ) from None
        with suppress(BrokenPipeError):  # the worker has died, as its other pipe will show
            self.calls.write(b"%d\n" % len(request))

    def how_it_ended(self) -> str:
        """How the process ended. Call it when its pipe is closed."""
        try:
            code = self.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = 0
        if code >= 0:
            return f"the grader ended with exit code {code}"
        names = {one.value: f" ({one.name})" for one in signal.Signals}  # real-time signals have no name
        return f"the grader was killed by signal {-code}{names.get(-code, '')}"

    def kill(self) -> str:
        """Kill and reap the process, and return the last line that it wrote to its standard error."""
        self.process.kill()
        with self.process, self.requests, self.errors:
            self.process.wait()
            self.errors.seek(0)
            lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no message"


class GraderPool:
    """Grades and audits model text in processes that can be killed. Use it as a context manager.

    Grades are done before audits, each in the order of submission. Equal jobs in flight are done once, and results are
    kept by answer, target and grader version. Timeouts and crashes are not kept, since they may be due to the moment.
    Workers start when there is work that needs one, or by `start`: a pool that meets only plain answers starts none.

    Args:
        workers: The most processes at a time. None: one per usable core, up to 8.
        deadline_s: Wall-clock seconds for one comparison, or for one step of an audit. The clock starts when a worker
            gets the job, and again when the parent reads the reply of a step. Start-up is not counted.
        memory_bytes: The address space that one worker may use.

    Raises:
        GraderError: a limit is out of range. Later calls raise it if no worker can be started.
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
        self._finished: list[tuple[Hashable, Grade | Audit]] = []
        self._failed_starts = 0
        self._audits_to_come = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """Number of submitted jobs that `poll` and `drain` have not handed out yet."""
        return len(self._finished) + sum(map(len, self._waiting.values()))

    def start(self, *, audits: bool = False) -> None:
        """Start all workers now, so that they are ready before the work comes.

        Args:
            audits: Whether audits will come too. Then the workers also load the other graders.
        """
        self._audits_to_come = audits
        while not self._closed and len(self._workers) < self._most:
            self._add_worker()

    def close(self) -> None:
        """Kill all workers and drop all pending jobs. The pool cannot be used again."""
        for worker in list(self._workers):
            self._remove(worker)
        self._grades.clear()
        self._audits.clear()
        self._waiting.clear()
        self._finished.clear()
        self._selector.close()
        self._closed = True

    def grade_many(self, pairs: Sequence[tuple[str, str]]) -> list[Grade]:
        """Grade (completion, target) pairs and return the grades in their order."""
        call = object()  # results of jobs that were submitted before have other tags, and are left for `poll`
        for place, (completion, target) in enumerate(pairs):
            self.submit((call, place), GradeJob(completion=completion, target=target))
            if place % 16 == 0:
                self._advance(0.0)  # the workers must not wait while we read
        grades: dict[int, Grade] = {}
        others = []
        while len(grades) < len(pairs):
            for tag, result in self.poll(self._deadline_s):
                if isinstance(tag, tuple) and tag[:1] == (call,) and isinstance(result, Grade):
                    grades[tag[1]] = result
                else:
                    others.append((tag, result))
        self._finished += others
        return [grades[place] for place in range(len(pairs))]

    def submit(self, tag: Hashable, job: GradeJob | AuditJob) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` hand out its result with the tag."""
        if self._closed:
            raise GraderError("the grader pool is closed. Submit inside its `with` block.")
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
        """Hand out all finished results, in the order of finishing. Wait up to `timeout_s` seconds for the first.

        Only here, in `drain` and in `grade_many` are deadlines kept and killed workers replaced. Any time may pass
        between two calls: what a worker said meanwhile is read before its deadline is looked at.
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

    def _enqueue(self, tag: Hashable, job: Job, queue: deque[Job]) -> None:
        """Take a kept result for the tag, or let it wait for an equal job, or queue the job."""
        if job.key in self._cache:
            self._finished.append((tag, self._cache[job.key]))
        elif job.key in self._waiting:
            self._waiting[job.key].append(tag)
        else:
            self._waiting[job.key] = [tag]
            queue.append(job)
            self._dispatch()

    def _advance(self, timeout_s: float) -> None:
        """Take one turn of at most `timeout_s`: give out work, move bytes, keep deadlines."""
        self._dispatch()
        if not self._workers:
            return
        now = time.monotonic()
        nearest = min(worker.deadline for worker in self._workers)
        for key, _ in self._selector.select(max(0.0, min(timeout_s, nearest - now))):
            self._receive(key.data)
        self._keep_deadlines(now)
        self._dispatch()

    def _dispatch(self) -> None:
        """Give idle workers jobs, and start workers for the jobs that are left."""
        for worker in list(self._workers):
            if worker.state is State.IDLE and (self._grades or self._audits):
                worker.give(self._grades.popleft() if self._grades else self._audits.popleft())
                worker.enter(State.WORKING, self._deadline_s)
        starting = sum(worker.state is State.STARTING for worker in self._workers)
        wanted = len(self._grades) + len(self._audits) - starting
        for _ in range(min(wanted, self._most - len(self._workers))):
            self._add_worker()

    def _add_worker(self) -> None:
        worker = _Worker(self._memory_bytes, audits=self._audits_to_come)
        self._selector.register(worker.replies, selectors.EVENT_READ, worker)
        self._workers.append(worker)

    def _receive(self, worker: _Worker) -> None:
        """Read a worker's messages, or that it has ended."""
        received = worker.replies.read(2**16)
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
        """Change the worker's state by its message, and take the reply that the message holds.

        Raises:
            KeyError, TypeError, ValueError: a worker in this state may not send such a message.
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
        """Give up every worker that was late at `now`, a time before the pipes were read.

        So all that was said by then has been heard. A later time would count what the parent slept in between.
        """
        for worker in list(self._workers):
            if now >= worker.deadline:
                self._lose(worker, "timeout", f"{worker.state.value} {worker.limit_s:g} s")

    def _lose(self, worker: _Worker, verdict: Verdict, reason: str) -> None:
        """Give up a worker, and with it its comparison or the current step of its audit. The other steps go on.

        Raises:
            GraderError: it is the third worker in a row that did not start.
        """
        last_line = self._remove(worker)
        if worker.state is State.STARTING:
            self._failed_starts += 1
            if self._failed_starts >= TRIES_TO_START:
                raise GraderError(
                    f"no grader worker can be started ({TRIES_TO_START} tries; {reason}): {last_line}. "
                    "Check that mpmath and math-verify can be imported, and that memory is left."
                )
        elif job := worker.job:
            job.fail(verdict, reason)
            if job.result is not None:
                self._finish(job)
            else:
                self._audits.appendleft(job)

    def _finish(self, job: Job) -> None:
        """Hand out the job's result to every tag that waits for it, and keep the result if it lasts."""
        result = job.result
        assert result is not None
        if job.lasting:
            if len(self._cache) >= CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[job.key] = result
        self._finished.extend((tag, result) for tag in self._waiting.pop(job.key))

    def _remove(self, worker: _Worker) -> str:
        """Kill and forget a worker, and return its last line of standard error."""
        self._workers.remove(worker)
        self._selector.unregister(worker.replies)
        return worker.kill()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
