"""The grader pool: killable worker processes behind one single-threaded parent that has the clock.

Model text is hostile, and sympy on hostile text can hang, exhaust memory or crash, in native code too, where no signal
and no exception reaches. So the parent does only what is linear in the text (`read`, equality), and everything else
runs in a worker that it can kill. No threads, no signals, no pickle, no `multiprocessing`: the workers are plain
programs that speak JSON lines, so nothing is forked, `__main__` is never imported again, and any console script can
hold a pool.

Over 300 lines because a worker's whole life, from start to kill, is one state machine: apart, its halves would have to
share all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, get_args

import harness
from harness.errors import GraderError
from harness.grading.audit import FILLS, STEPS, Audit, AuditJob
from harness.grading.boxes import boxes_after_first, visible_answer
from harness.grading.grade_completion import GRADER_VERSION, Grade, Verdict, read

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

LONGEST_LINE = 2**20
"""Bytes of a worker's reply; its own are under a thousand."""

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); import harness; del sys.path[0]; "
    "from harness.grading.worker import main; main(int(sys.argv[2]), audits=sys.argv[3] == 'audits')"
)
"""Finds this very `harness`, whatever else of that name the working directory or PYTHONPATH holds."""

_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One order of sets, so that sympy does the same in every run; no thread pools, whose stacks would use the memory."""

_STEPS = tuple(STEPS)
_Key = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradeJob:
    """One completion to be graded against a target.

    Attributes:
        completion: What the model wrote, without the prompt.
        target: The gold answer.
        finish_reason: vLLM's, if known; see `harness.grading.read`.
    """

    completion: str
    target: str
    finish_reason: str | None = None


@dataclass(slots=True, kw_only=True)
class _Task:
    """Something that a worker must do, once for all tags that wait for it."""

    key: _Key
    tags: list[Hashable]
    answer: str | None = None
    target: str = ""
    audit: AuditJob | None = None
    steps: list[str] = field(default_factory=list)
    columns: dict[str, bool | None] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    sound: bool = True

    def request(self) -> bytes:
        if self.audit is None:
            message: dict[str, Any] = {"answer": self.answer, "target": self.target}
        else:
            job = {name: getattr(self.audit, name) for name in AuditJob.__slots__}
            message = {"audit": job, "steps": self.steps}
        return json.dumps(message).encode() + b"\n"  # ASCII only, so lone surrogates and NULs pass too


@dataclass(slots=True, kw_only=True, eq=False)
class _Worker:
    """A worker process as the parent sees it."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    requests: int
    replies: int
    deadline: float
    task: _Task | None = None
    ready: bool = False
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    received: bytearray = field(default_factory=bytearray)


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
        self._most = workers or min(MOST_WORKERS, _usable_cores())
        self._deadline_s = deadline_s
        self._memory_bytes = memory_bytes
        self._workers: list[_Worker] = []
        self._selector: selectors.BaseSelector | None = selectors.DefaultSelector()
        self._grades: deque[_Task] = deque()
        self._audits: deque[_Task] = deque()
        self._tasks: dict[_Key, _Task] = {}
        self._cache: dict[_Key, Grade | Audit] = {}
        self._finished: deque[tuple[Hashable, Grade | Audit]] = deque()
        self._pending = 0
        self._failed_starts = 0
        self._audits_to_come = False

    def __enter__(self) -> GraderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, *, audits: bool = False) -> None:
        """Start all workers now, for work that is sure to come: they are ready before it.

        Args:
            audits: Whether audits will come too; the other graders are loaded then as well.
        """
        self._audits_to_come = audits
        while self._selector is not None and len(self._workers) < self._most:
            self._start()

    def close(self) -> None:
        """Kill all workers; what is pending is dropped. The pool cannot be used again."""
        for worker in list(self._workers):
            self._remove(worker)
        if self._selector is not None:
            self._selector.close()
            self._selector = None

    @property
    def pending(self) -> int:
        """How many submitted jobs `poll` and `drain` have not handed out yet."""
        return self._pending

    def grade_many(self, pairs: Sequence[tuple[str, str]]) -> list[Grade]:
        """Grade (completion, target) pairs and return the grades in their order."""
        mine = object()  # jobs submitted before keep their place and their results
        for place, (completion, target) in enumerate(pairs):
            self.submit((mine, place), GradeJob(completion=completion, target=target))
            if place % 16 == 0:
                self._advance(0.0)  # the workers must not wait while we read
        grades: dict[int, Grade] = {}
        others: list[tuple[Hashable, Grade | Audit]] = []
        while True:
            while self._finished:
                tag, result = self._finished.popleft()
                if isinstance(tag, tuple) and tag and tag[0] is mine and isinstance(result, Grade):
                    grades[tag[1]] = result
                else:
                    others.append((tag, result))
            if len(grades) == len(pairs):
                break
            self._advance(self._deadline_s)
        self._finished.extend(others)
        self._pending -= len(pairs)
        return [grades[place] for place in range(len(pairs))]

    def submit(self, tag: Hashable, job: GradeJob | AuditJob) -> None:
        """Take a job; `poll` and `drain` hand its result out beside the tag. Never waits for a worker."""
        if self._selector is None:
            raise GraderError("the grader pool is closed. Submit inside its `with` block.")
        self._pending += 1
        if isinstance(job, GradeJob):
            answer = read(job.completion, finish_reason=job.finish_reason)
            if isinstance(answer, Grade):
                self._finished.append((tag, answer))
                return
            if answer == job.target:
                self._finished.append((tag, Grade(verdict="correct", answer=answer)))
                return
            key: _Key = (answer, job.target, GRADER_VERSION)
            task = _Task(key=key, tags=[tag], answer=answer, target=job.target)
        else:
            job = job.essential()
            key = ("audit", _digest(job), GRADER_VERSION)
            task = _Task(key=key, tags=[tag], audit=job, steps=list(_STEPS))
        if key in self._cache:
            self._finished.append((tag, self._cache[key]))
        elif key in self._tasks:
            self._tasks[key].tags.append(tag)
        else:
            self._tasks[key] = task
            (self._grades if task.audit is None else self._audits).append(task)
            self._dispatch()

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Grade | Audit]]:
        """Hand out what is finished, in order of finishing; waits up to `timeout_s` for the first.

        Deadlines are kept, and killed workers replaced, only in here, in `drain` and in `grade_many`. Between two calls
        any time may pass: what a worker said meanwhile is heard before its deadline is looked at.
        """
        until = time.monotonic() + timeout_s
        self._advance(0.0)
        while self._pending and not self._finished and (left := until - time.monotonic()) > 0:
            self._advance(left)
        done = list(self._finished)
        self._finished.clear()
        self._pending -= len(done)
        return done

    def drain(self) -> Iterator[tuple[Any, Grade | Audit]]:
        """Hand out results until nothing is pending."""
        while self._pending:
            yield from self.poll(self._deadline_s)

    def _advance(self, timeout_s: float) -> None:
        """One turn: give out work, move bytes, keep deadlines."""
        if self._selector is None:
            return
        self._dispatch()
        if self._workers:
            nearest = min((w.deadline for w in self._workers if w.task or not w.ready), default=float("inf"))
            now = time.monotonic()
            wait = max(0.0, min(timeout_s, nearest - now))
            for key, _ in self._selector.select(wait):
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
        for worker in list(self._workers):
            if worker.ready and worker.task is None and (self._grades or self._audits):
                worker.task = self._grades.popleft() if self._grades else self._audits.popleft()
                worker.unsent = memoryview(worker.task.request())
                self._send(worker)
        starting = sum(not worker.ready for worker in self._workers)
        wanted = min(len(self._grades) + len(self._audits) - starting, self._most - len(self._workers))
        for _ in range(wanted):
            self._start()

    def _start(self) -> None:
        errors = tempfile.TemporaryFile()
        environment = {**os.environ, **_ENVIRONMENT}
        audits = "audits" if self._audits_to_come else ""
        root = str(Path(harness.__file__).resolve().parent.parent)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, root, str(self._memory_bytes), audits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                env=environment,
                start_new_session=True,  # Ctrl-C in the terminal is for the parent alone
            )
        except OSError as error:
            errors.close()
            raise GraderError(f"no grader worker can be started: {error}. Check the Python named there.") from error
        assert process.stdin is not None and process.stdout is not None and self._selector is not None
        worker = _Worker(
            process=process,
            errors=errors,
            requests=process.stdin.fileno(),
            replies=process.stdout.fileno(),
            deadline=time.monotonic() + STARTING_S,
        )
        os.set_blocking(worker.requests, False)
        self._selector.register(worker.replies, selectors.EVENT_READ, worker)
        self._workers.append(worker)

    def _send(self, worker: _Worker) -> None:
        """Write what the pipe takes now; the rest when the selector says so. A long job cannot block the parent.

        The clock of the job starts behind its last byte: before that, how fast it goes is the parent's doing.
        """
        assert self._selector is not None
        try:
            while worker.unsent:
                worker.unsent = worker.unsent[os.write(worker.requests, worker.unsent) :]
        except BlockingIOError:
            if worker.requests not in self._selector.get_map():
                self._selector.register(worker.requests, selectors.EVENT_WRITE, worker)
            worker.deadline = time.monotonic() + TAKING_S
            return
        except BrokenPipeError:
            worker.unsent = memoryview(b"")  # it has died; its other pipe will say so
        worker.deadline = time.monotonic() + self._deadline_s
        if worker.requests in self._selector.get_map():
            self._selector.unregister(worker.requests)

    def _receive(self, worker: _Worker) -> None:
        received = os.read(worker.replies, 2**16)
        if not received:
            self._died(worker)
            return
        worker.received += received
        *lines, rest = worker.received.split(b"\n")
        worker.received = rest
        try:
            for line in lines:
                self._reply(worker, json.loads(line))
            if len(rest) > LONGEST_LINE:
                raise ValueError("no end of line")
        except (ValueError, KeyError, TypeError, AttributeError):
            self._fail(worker, "crashed", "the grader answered nonsense")

    def _reply(self, worker: _Worker, message: dict[str, Any]) -> None:
        if "ready" in message:
            worker.ready = True
            self._failed_starts = 0
        elif worker.task is not None and ("preparing" in message or "prepared" in message):
            worker.deadline = time.monotonic() + (STARTING_S if "preparing" in message else self._deadline_s)
        elif "failed" in message and (worker.task is None or message.get("leaving")):
            self._fail(worker, "crashed", str(message["failed"]))
        elif worker.task is None:
            raise ValueError("a reply to nothing")
        elif "failed" in message:
            task, worker.task = worker.task, None
            self._settle(task, "crashed", str(message["failed"]))
        elif "verdict" in message:
            task, worker.task = worker.task, None
            if task.audit is not None or message["verdict"] not in get_args(Verdict):
                worker.task = task
                raise ValueError("not a verdict")
            self._finish(task, Grade(verdict=message["verdict"], answer=task.answer, reason=message["reason"]))
        else:
            self._step_done(worker, worker.task, message)

    def _step_done(self, worker: _Worker, task: _Task, message: dict[str, Any]) -> None:
        if not task.steps or message["step"] != task.steps[0]:
            raise ValueError("another step than the next")
        step = task.steps[0]
        columns = {name: message["fields"][name] for name in FILLS[step]}
        if any(value not in (True, False, None) for value in columns.values()):
            raise ValueError("not a truth value")
        task.steps.pop(0)
        task.columns.update(columns)
        if message["remark"] is not None:
            task.remarks.append(f"{step}: {message['remark']}")
        if task.steps:
            worker.deadline = time.monotonic() + self._deadline_s
        else:
            worker.task = None
            self._finish_audit(task)

    def _keep_deadlines(self, now: float) -> None:
        """Kill whoever is late. `now` is from before the pipes were read, so all that was said by then has been heard.

        A clock read afterwards would also count what the parent slept between the two.
        """
        for worker in list(self._workers):
            if now < worker.deadline:
                continue
            if worker.task is not None:
                limit = (
                    f"took no more of its job for {TAKING_S:g} s" if worker.unsent else f"over {self._deadline_s:g} s"
                )
                self._fail(worker, "timeout", limit)
            elif not worker.ready:
                self._start_failed(worker, f"not ready after {STARTING_S:g} s")

    def _died(self, worker: _Worker) -> None:
        """A worker closed its pipe: it has ended, or is about to."""
        try:
            code = worker.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = 0
        how = f"was killed by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        if worker.ready:
            self._fail(worker, "crashed", f"the grader {how}")
        else:
            self._start_failed(worker, f"it {how}")

    def _fail(self, worker: _Worker, verdict: Verdict, reason: str) -> None:
        """The worker's job is lost, and the worker with it."""
        task, worker.task = worker.task, None
        if not worker.ready:
            self._start_failed(worker, reason)
            return
        self._remove(worker)
        if task is not None:
            self._settle(task, verdict, reason)

    def _settle(self, task: _Task, verdict: Verdict, reason: str) -> None:
        """A grade that failed is done; an audit goes on behind the step that failed."""
        task.sound = False
        if task.audit is None:
            self._finish(task, Grade(verdict=verdict, answer=task.answer, reason=reason))
            return
        step = task.steps.pop(0)
        task.columns.update(dict.fromkeys(FILLS[step]))
        task.remarks.append(f"{step}: {reason}")
        if task.steps:
            self._audits.appendleft(task)
        else:
            self._finish_audit(task)

    def _start_failed(self, worker: _Worker, reason: str) -> None:
        worker.errors.seek(0)
        said = worker.errors.read().decode(errors="replace").strip().splitlines()
        self._remove(worker)
        self._failed_starts += 1
        if self._failed_starts >= TRIES_TO_START:
            message = said[-1] if said else "no message"
            raise GraderError(
                f"no grader worker can be started ({TRIES_TO_START} tries; {reason}): {message}. "
                "Check that math-verify and sympy can be imported, and that memory is left."
            )

    def _finish_audit(self, task: _Task) -> None:
        assert task.audit is not None
        after_first = boxes_after_first(visible_answer(task.audit.completion))
        reason = "; ".join(task.remarks) or None
        self._finish(task, Audit(**task.columns, boxes_after_first=after_first, reason=reason))

    def _finish(self, task: _Task, result: Grade | Audit) -> None:
        del self._tasks[task.key]
        if task.sound and not (isinstance(result, Grade) and result.verdict in ("timeout", "crashed")):
            while len(self._cache) >= CACHED:
                del self._cache[next(iter(self._cache))]
            self._cache[task.key] = result
        self._finished.extend((tag, result) for tag in task.tags)

    def _remove(self, worker: _Worker) -> None:
        """Kill, reap and forget a worker."""
        self._workers.remove(worker)
        for pipe in (worker.requests, worker.replies):
            if self._selector is not None and pipe in self._selector.get_map():
                self._selector.unregister(pipe)
        worker.process.kill()
        worker.process.wait()
        for stream in (worker.process.stdin, worker.process.stdout, worker.errors):
            if stream is not None:
                stream.close()


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _digest(job: AuditJob) -> str:
    parts = (job.prompt, job.completion, job.target, job.solution)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
