"""Grade and audit every sample in the grader pool, while others are still generated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from harness.grading import Audit, AuditJob, Grade, GradeJob, GraderPool, as_record
from harness.runs.folder import PromptPlaces
from harness.runs.journal import Journal
from harness.runs.records import Sample, Score


class Scorer:
    """Grades samples in worker processes and files the scores. Only `finish` waits for a worker.

    Args:
        scores: Where finished scores go.
        prompts: The prompts file's rows: the target of each problem, and the text that the authors' rule reads too.
        audit: Whether the other graders are asked as well.
    """

    def __init__(self, scores: Journal, prompts: Sequence[Mapping[str, Any]], *, audit: bool = True) -> None:
        self._scores = scores
        self._prompts = prompts
        self._places = PromptPlaces(prompts)
        self._audit = audit
        self._half: dict[str, dict[str, Grade | Audit]] = {}
        self._pool = GraderPool()

    def submit(self, sample: Sample) -> None:
        """Take a sample unless it has its score."""
        key = sample.key
        if key in self._scores.keys or key in self._half:
            return
        row = self._prompts[self._places.find(sample)]
        doc, completion = row["doc"], sample.completion
        self._half[key] = {}
        self._pool.submit(
            (key, "grade"),
            GradeJob(completion=completion, target=doc["answer"], finish_reason=sample.finish_reason),
        )
        if self._audit:
            job = AuditJob(
                prompt=row["prompt"], completion=completion, target=doc["answer"], solution=doc["solution"] or ""
            )
            self._pool.submit((key, "audit"), job)
        else:
            self._half[key]["audit"] = Audit(reason="not asked for")

    def start(self) -> None:
        """Get the workers ready: samples are sure to come."""
        self._pool.start(audits=self._audit)

    def poll(self) -> list[Score]:
        """File and return what has been finished meanwhile; returns at once."""
        return self._collect(self._pool.poll())

    def finish(self) -> Iterator[Score]:
        """Wait for the rest, filing and yielding scores as they come."""
        for result in self._pool.drain():
            yield from self._collect([result])

    def _collect(self, results: Iterable[tuple[Any, Grade | Audit]]) -> list[Score]:
        done = []
        for (key, part), result in results:
            parts = self._half[key]
            parts[part] = result
            if len(parts) == 2:
                grade, audit = parts["grade"], parts["audit"]
                assert isinstance(grade, Grade) and isinstance(audit, Audit)
                record = as_record(grade, audit)
                self._scores.append({"key": key, **record})
                del self._half[key]
                done.append(Score(key=key, **record))
        return done

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool.__exit__(*error)
