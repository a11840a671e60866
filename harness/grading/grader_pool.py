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
from queue import Empty, SimpleQueue
from typing import Any, Self

from msgspec.structs import asdict

from harness.grading.answer_extraction import Grade, GradeJob, list_accepted_texts, read_answer
from harness.grading.grader_worker import COMPARISON_STEP, GraderProcess
from harness.grading.other_graders import COLUMNS_BY_STEP, select_audit_texts
from harness.resources import count_cores

MOST_WORKERS = 8
"""Default limit of the number of workers. More would not help: no run waits for its grading."""
MOST_CACHED_RESULTS = 2**16
"""Results that are cached for equal jobs. The oldest result is dropped first."""


class GraderPool:
    """Grades model text in processes that can be killed. Use it as a context manager.

    Workers take jobs in the order of submission. They do equal jobs only once, and results are
    cached, except timeouts and crashes, which may be accidental.

    Args:
        worker_count: The number of processes. None: one per usable core, up to 8. They start with
            the first job that needs a worker.
        with_audit: Whether the other graders are asked as well. The processes load them as they
            start.
    """

    def __init__(self, *, worker_count: int | None = None, with_audit: bool = False) -> None:
        self._with_audit = with_audit
        self._processes = [
            GraderProcess(with_audit=with_audit)
            for _ in range(worker_count or min(MOST_WORKERS, count_cores()))
        ]
        # each process has a thread that starts it, waits for its replies and kills it if it hangs
        self._threads = ThreadPoolExecutor(len(self._processes), "mless-grader")
        # the process that was used last is used again first, so that few jobs start few processes
        self._idle_processes = [*self._processes]
        self._future_by_key: dict[bytes, Future[Grade]] = {}
        """The result of each job, by its key: equal jobs run once."""
        self._pending_count = 0
        self._finished_results: SimpleQueue[tuple[Hashable, Grade | Future[Grade]]] = SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill all processes and drop all pending jobs."""
        # the processes are killed first, because a thread waits until its process has ended
        for process in self._processes:
            process.kill()
        self._threads.shutdown(cancel_futures=True)
        for process in self._processes:
            process.end()

    def submit(self, tag: Hashable, job: GradeJob | Grade) -> None:
        """Take a job without waiting for a worker. `poll` and `drain` return its result by tag.

        A grade, of a sample whose verdict is known without a grader, is returned as it is.
        """
        self._pending_count += 1
        if isinstance(job, Grade):
            self._finished_results.put((tag, job))
            return
        grade, comparison_fields = _grade_as_text(job)
        # there are no such fields if the verdict is already known
        steps = [COMPARISON_STEP] if comparison_fields else []
        # `GraderProcess.grade` describes the keys
        request = {"grade": asdict(grade), **comparison_fields}
        if self._with_audit:
            # the authors' rule looks for a box, so it cannot grade an answer that is a line
            steps += ["math_verify"] if job.is_line else COLUMNS_BY_STEP
            request["audit"] = select_audit_texts(job)
        # without steps the grade is final, and no worker is needed
        if steps:
            self._enqueue(tag, request, steps)
        else:
            self._finished_results.put((tag, grade))

    def poll(self, timeout_s: float = 0.0) -> list[tuple[Any, Grade]]:
        """Return all finished results in the order of finishing.

        Args:
            timeout_s: How long to wait for the first result.

        Raises:
            GraderError: No process can be started.
        """
        results: list[tuple[Any, Grade]] = []
        with suppress(Empty):
            while self._pending_count:
                tag, grade = self._finished_results.get(timeout=0 if results else timeout_s)
                self._pending_count -= 1
                # The queue holds the grade itself if no worker was needed. Otherwise it holds the
                # worker's future, which was put into the queue when it was done.
                if isinstance(grade, Future):
                    grade = grade.result()
                results.append((tag, grade))
        return results

    def drain(self) -> Iterator[tuple[Any, Grade]]:
        """Yield results until no job is pending."""
        while self._pending_count:
            yield from self.poll(1.0)

    def _enqueue(self, tag: Hashable, request: Mapping[str, Any], steps: Sequence[str]) -> None:
        """Let a process do the job, unless an equal job has been submitted.

        Args:
            tag: The tag of the result.
            request: What the steps need: see `GraderProcess.grade`.
            steps: The graders of the job.
        """
        key = hashlib.sha256(json.dumps([request, steps]).encode()).digest()
        if key not in self._future_by_key:
            if len(self._future_by_key) >= MOST_CACHED_RESULTS:
                # a dictionary keeps the order of insertion, so this is the oldest result
                del self._future_by_key[next(iter(self._future_by_key))]
            self._future_by_key[key] = self._threads.submit(self._grade, key, request, steps)
        self._future_by_key[key].add_done_callback(
            lambda future: self._finished_results.put((tag, future))
        )

    def _grade(self, key: bytes, request: Mapping[str, Any], steps: Sequence[str]) -> Grade:
        """Grade a job in an idle process. Only a reproducible result stays cached."""
        # there are as many threads as processes, so this thread has an idle process
        process = self._idle_processes.pop()
        try:
            grade, is_reproducible = process.grade(request, steps)
        finally:
            self._idle_processes.append(process)
        if not is_reproducible:
            self._future_by_key.pop(key, None)
        return grade


def _grade_as_text(job: GradeJob) -> tuple[Grade, dict[str, Any]]:
    """Grade a job by comparing texts, and return what a worker needs to compare as mathematics.

    The mapping for the worker has `targets`, the accepted answers, and `decimal`, the job's decimal
    sign. It is empty if the texts decide, because the answer is missing or equal to a target.
    Otherwise the grade is incorrect until a worker has replaced its verdict.
    """
    answer = read_answer(job)
    if isinstance(answer, Grade):
        return answer, {}
    targets = list_accepted_texts(job, answer)
    if answer in targets:
        return Grade(verdict="correct", answer=answer), {}
    comparison_fields = {"targets": targets, "decimal": job.decimal_sign}
    return Grade(verdict="incorrect", answer=answer), comparison_fields
