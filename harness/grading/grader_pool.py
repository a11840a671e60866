"""The grader pool: worker processes that can be killed, each with a thread that keeps its deadline.

Model text is hostile. On such text the other graders can hang, exhaust memory or crash, even in
native code that no signal and no exception reaches. Our grader is bounded, but may have a bug. So
the parent does only what is linear in the text (`read_answer`, equality), and a process that it can
kill does the rest: see `grader_worker`.

A job has one or several steps: the comparison with the gold answer, or each of the other graders. A
process answers every step, so a step that hangs costs only its own columns.
"""

import hashlib
import json
import time
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import Any, Self

from harness.decimal_commas import with_decimal_points
from harness.errors import GraderError
from harness.grading.answer_extraction import Grade, GradeJob, expect_choice, read_answer
from harness.grading.grader_worker import COMPARE, Job, Result, Worker
from harness.grading.other_graders import Audit, AuditJob
from harness.resources import count_cores

GRADER_DEADLINE_S = 3.0
"""For one comparison, or one step of an audit: a hundred times the time of the slowest honest
answer."""
GRADER_MEMORY_BYTES = 2**30
"""Address space of one process. With math_verify loaded it needs a sixth of this."""
MOST_GRADERS = 8
"""Default limit of the number of workers. More would not help: no run waits for its grading."""
MOST_CACHED_RESULTS = 2**16
"""Results that are cached for equal jobs. The oldest result is dropped first."""


class GraderPool:
    """Grades and audits model text in processes that can be killed. Use it as a context manager.

    Workers take jobs in the order of submission. They do equal jobs only once, and results are
    cached, except timeouts and crashes, which may be accidental.

    Args:
        workers: The number of processes. None: one per usable core, up to 8. They start with the
            first job that needs a worker.
        audits: Whether audits will be submitted too. Then the processes load the other graders as
            they start.
        deadline_s: Wall-clock seconds for one comparison, or for one step of an audit. Start-up is
            not counted.
        memory_bytes: The address space that one process may use.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        audits: bool = False,
        deadline_s: float = GRADER_DEADLINE_S,
        memory_bytes: int = GRADER_MEMORY_BYTES,
    ) -> None:
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._results: SimpleQueue[Result] = SimpleQueue()
        self._workers = [
            Worker(
                self._jobs,
                self._results,
                deadline_s=deadline_s,
                memory_bytes=memory_bytes,
                audits=audits,
            )
            for _ in range(workers or min(MOST_GRADERS, count_cores()))
        ]
        self._waiting: dict[bytes, list[Hashable]] = {}
        """The tags that wait for a job, by its key: equal jobs run once."""
        self._cache: dict[bytes, Grade | Audit] = {}
        self._finished: list[tuple[Hashable, Grade | Audit]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes and drop all pending jobs."""
        for worker in self._workers:
            self._jobs.put((b"", {}, ()))
            worker.close()
        for worker in self._workers:
            if worker.ident:
                worker.join()

    def submit(self, tag: Hashable, job: GradeJob | AuditJob | Grade) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` return its result by tag.

        A grade is its own result.
        """
        if isinstance(job, AuditJob):
            self._enqueue(tag, asdict(job.essential()), tuple(job.steps))
            return
        if isinstance(job, Grade):
            self._finished.append((tag, job))
            return
        answer = read_answer(job)
        targets = job.targets
        if job.choices and isinstance(answer, str):
            targets = expect_choice(answer, job.target, job.choices)
            if job.decimal == "," and answer not in targets:
                targets = tuple(map(with_decimal_points, targets))
        if isinstance(answer, Grade):
            self._finished.append((tag, answer))
        elif answer in targets:
            self._finished.append((tag, Grade(verdict="correct", answer=answer)))
        else:
            request = {"answer": answer, "targets": targets, "decimal": job.decimal}
            self._enqueue(tag, request, (COMPARE,))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Grade | Audit]]:
        """Return all finished results in the order of finishing.

        Args:
            timeout_s: How long to wait for the first result.

        Raises:
            GraderError: No process can be started.
        """
        end = time.monotonic() + timeout_s
        while self._waiting:
            remaining_s = 0.0 if self._finished else max(0.0, end - time.monotonic())
            try:
                key, result, is_reproducible = self._results.get(timeout=remaining_s)
            except Empty:
                break
            if isinstance(result, GraderError):
                raise result
            if is_reproducible:
                if len(self._cache) >= MOST_CACHED_RESULTS:
                    # a dictionary keeps the order of insertion, so this is the oldest result
                    del self._cache[next(iter(self._cache))]
                self._cache[key] = result
            self._finished.extend((tag, result) for tag in self._waiting.pop(key))
        results, self._finished = self._finished, []
        return results

    def drain(self) -> Iterator[tuple[Any, Grade | Audit]]:
        """Yield results until no job is pending."""
        while self._waiting or self._finished:
            yield from self.poll(1.0)

    def _enqueue(self, tag: Hashable, request: Mapping[str, Any], steps: tuple[str, ...]) -> None:
        """Use the cached result of an equal job, or wait for an equal job, or queue the job."""
        key = hashlib.sha256(json.dumps([request, steps]).encode()).digest()
        if key in self._cache:
            self._finished.append((tag, self._cache[key]))
        elif key in self._waiting:
            # an equal job is under way, so this tag gets its result too
            self._waiting[key].append(tag)
        else:
            self._waiting[key] = [tag]
            for worker in self._workers:
                if not worker.ident:
                    worker.start()
            self._jobs.put((key, request, steps))
