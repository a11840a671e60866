"""The grader pool: worker processes that can be killed, and a parent that keeps their deadlines.

Model text is hostile. On such text the other graders can hang, exhaust memory or crash, even in
native code that no signal and no exception reaches. Our grader is bounded, but may have a bug. So
the single-threaded parent does only what is linear in the text (`read_answer`, equality), and a
worker that the parent can kill does the rest: see `grader_worker`.

A job has one or several steps: the comparison with the gold answer, or each of the other graders. A
worker replies after every step, so a step that hangs costs only its own columns.
"""

import json
import selectors
import time
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import asdict
from typing import Any, Self

from harness.errors import GraderError
from harness.grading.extract_answer import Grade, GradeJob, Verdict, read_answer
from harness.grading.grader_worker import COMPARE, Job, Worker
from harness.grading.named_choices import expect_choice
from harness.grading.other_graders import Audit, AuditJob
from harness.resources import count_cores

GRADER_DEADLINE_S = 3.0
"""For one comparison, or one step of an audit: a hundred times the time of the slowest honest
answer."""
GRADER_MEMORY_BYTES = 2**30
"""Address space of one worker. With math_verify loaded it needs a sixth of this."""
MOST_GRADERS = 8
"""Default limit of the number of workers. More would not help: no run waits for its grading."""
GRADER_STARTS = 3
"""Workers in a row that fail to start before the pool gives up."""
MOST_CACHED_RESULTS = 2**16
"""Results that are cached for equal jobs. The oldest result is dropped first."""


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
        self._workers: list[Worker] = []
        self._selector = selectors.DefaultSelector()
        self._comparisons: deque[Job] = deque()
        self._audit_jobs: deque[Job] = deque()
        self._waiting: dict[bytes, list[Hashable]] = {}
        """The tags that wait for a job, by its key: equal jobs run once."""
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
            worker = Worker(self._memory_bytes, audits=self._has_audits)
            self._selector.register(worker.replies, selectors.EVENT_READ, worker)
            self._workers.append(worker)

    def submit(self, tag: Hashable, job: GradeJob | AuditJob | Grade) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` return its result by tag.

        A grade is its own result.
        """
        if isinstance(job, AuditJob):
            self._enqueue(tag, Job(asdict(job.essential()), job.steps))
            return
        if isinstance(job, Grade):
            self._finished.append((tag, job))
            return
        answer = read_answer(job)
        targets = job.targets
        if job.choices and isinstance(answer, str):
            targets = expect_choice(answer, job.target, job.choices)
        if isinstance(answer, Grade):
            self._finished.append((tag, answer))
        elif answer in targets:
            self._finished.append((tag, Grade(verdict="correct", answer=answer)))
        else:
            request = {"answer": answer, "targets": targets, "decimal": job.decimal}
            self._enqueue(tag, Job(request, [COMPARE]))

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

    def _enqueue(self, tag: Hashable, job: Job) -> None:
        """Use the cached result of an equal job, or wait for an equal job, or queue the job."""
        if job.key in self._cache:
            self._finished.append((tag, self._cache[job.key]))
        elif job.key in self._waiting:
            # an equal job is under way, so this tag gets its result too
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

    def _receive(self, worker: Worker) -> None:
        """Read a worker's replies. Without a reply it has ended."""
        received_bytes = worker.replies.read(2**16)
        if not received_bytes:
            self._lose(worker, "crashed", None)
            return
        *lines, worker.received = (worker.received + received_bytes).split(b"\n")
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

    def _lose(self, worker: Worker, verdict: Verdict, reason: str | None) -> None:
        """Remove a worker. Its comparison, or the current step of its audit, has no result.

        The remaining steps of an audit are queued again.

        Args:
            worker: The worker.
            verdict: The verdict of a comparison that was lost.
            reason: Why the worker is removed. None: the process has ended.

        Raises:
            GraderError: This is the third worker in a row that did not start.
        """
        # a process that has closed its pipe ends by itself, with an exit code that says why
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

    def _finish(self, job: Job) -> None:
        """Give the job's result to all tags that wait for it, and cache a reproducible result."""
        result = job.result()
        if job.is_reproducible:
            if len(self._cache) >= MOST_CACHED_RESULTS:
                # a dictionary keeps the order of insertion, so this is the oldest result
                del self._cache[next(iter(self._cache))]
            self._cache[job.key] = result
        self._finished.extend((tag, result) for tag in self._waiting.pop(job.key))

    def _remove(self, worker: Worker, *, patience_s: float = 0.0) -> tuple[str, str]:
        self._workers.remove(worker)
        self._selector.unregister(worker.replies)
        return worker.end(patience_s)
