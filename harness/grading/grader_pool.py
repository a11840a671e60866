"""The grader pool: worker processes that can be killed, each with a thread that keeps its deadline.

Model text is hostile. On such text the other graders can hang, exhaust memory or crash, even in
native code that no signal and no exception reaches. Our grader is bounded, but may have a bug. So
the parent does only what is linear in the text (`read_answer`, equality), and a process that it can
kill does the rest: see `grader_worker`.

A job has one or several steps: the comparison with the gold answer, and each of the other graders.
A process answers every step, so a step that hangs costs only its own columns.
"""

import hashlib
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, LifoQueue, SimpleQueue
from typing import Any, Self

from msgspec.structs import asdict

from harness.decimal_commas import with_decimal_points
from harness.grading.answer_extraction import Grade, GradeJob, expect_choice, read_answer
from harness.grading.grader_worker import COMPARE, GraderProcess
from harness.grading.other_graders import STEPS, describe_audit
from harness.resources import count_cores

MOST_GRADERS = 8
"""Default limit of the number of workers. More would not help: no run waits for its grading."""
MOST_CACHED_RESULTS = 2**16
"""Results that are cached for equal jobs. The oldest result is dropped first."""


class GraderPool:
    """Grades model text in processes that can be killed. Use it as a context manager.

    Workers take jobs in the order of submission. They do equal jobs only once, and results are
    cached, except timeouts and crashes, which may be accidental.

    Args:
        workers: The number of processes. None: one per usable core, up to 8. They start with the
            first job that needs a worker.
        audits: Whether the other graders are asked as well. The processes load them as they start.
    """

    def __init__(self, *, workers: int | None = None, audits: bool = False) -> None:
        self._audits = audits
        self._processes = [
            GraderProcess(audits=audits) for _ in range(workers or min(MOST_GRADERS, count_cores()))
        ]
        # a thread for each process: it starts the process, and keeps its deadline
        self._threads = ThreadPoolExecutor(len(self._processes), "mless-grader")
        # the process that was used last is used first, so that few jobs start few processes
        self._idle: LifoQueue[GraderProcess] = LifoQueue()
        for process in self._processes:
            self._idle.put(process)
        self._results: dict[bytes, Future[Grade]] = {}
        """The result of each job, by its key: equal jobs run once."""
        self._pending = 0
        self._finished: SimpleQueue[tuple[Hashable, Grade | Future[Grade]]] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes and drop all pending jobs."""
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.end()

    def submit(self, tag: Hashable, job: GradeJob | Grade) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` return its result by tag.

        A grade needs no work and is returned as it is.
        """
        self._pending += 1
        if isinstance(job, Grade):
            self._finished.put((tag, job))
            return
        steps: list[str] = []
        request: dict[str, Any] = {}
        answer = read_answer(job)
        if isinstance(answer, Grade):
            grade = answer
        else:
            targets = job.targets
            if job.choices:
                targets = expect_choice(answer, job.target, job.choices)
                if job.decimal == "," and answer not in targets:
                    targets = tuple(map(with_decimal_points, targets))
            grade = Grade(verdict="correct", answer=answer)
            # an answer that differs as text may still be equal: then the comparison decides
            if answer not in targets:
                steps = [COMPARE]
                request |= {"targets": targets, "decimal": job.decimal}
        if self._audits:
            # a grader that looks for a box is not asked about a line
            steps += ["math_verify"] if job.line else STEPS
            request["audit"] = describe_audit(job)
        if steps:
            request["grade"] = asdict(grade)
            self._enqueue(tag, request, steps)
        else:
            self._finished.put((tag, grade))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Grade]]:
        """Return all finished results in the order of finishing.

        Args:
            timeout_s: How long to wait for the first result.

        Raises:
            GraderError: No process can be started.
        """
        results: list[tuple[Any, Grade]] = []
        with suppress(Empty):
            while self._pending:
                tag, result = self._finished.get(timeout=0 if results else timeout_s)
                self._pending -= 1
                results.append((tag, result.result() if isinstance(result, Future) else result))
        return results

    def drain(self) -> Iterator[tuple[Any, Grade]]:
        """Yield results until no job is pending."""
        while self._pending:
            yield from self.poll(1.0)

    def _enqueue(self, tag: Hashable, request: Mapping[str, Any], steps: Sequence[str]) -> None:
        """Let a process do the job, unless an equal job has been submitted."""
        key = hashlib.sha256(json.dumps([request, steps]).encode()).digest()
        if key not in self._results:
            if len(self._results) >= MOST_CACHED_RESULTS:
                # a dictionary keeps the order of insertion, so this is the oldest result
                del self._results[next(iter(self._results))]
            self._results[key] = self._threads.submit(self._grade, key, request, steps)
        self._results[key].add_done_callback(lambda result: self._finished.put((tag, result)))

    def _grade(self, key: bytes, request: Mapping[str, Any], steps: Sequence[str]) -> Grade:
        process = self._idle.get()
        try:
            result, is_reproducible = process.grade(request, steps)
        finally:
            self._idle.put(process)
        if not is_reproducible:
            self._results.pop(key, None)
        return result
