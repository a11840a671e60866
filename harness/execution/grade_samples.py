"""Grade and audit every sample in the grader pool, while others are still generated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from harness.grading import Audit, AuditJob, Grade, GradeJob, GraderPool, as_record
from harness.runs.journal import Journal
from harness.runs.records import Prompt, Sample, Score
from harness.runs.run_folder import PromptIndex


def grade_job(prompt: Prompt, sample: Sample) -> GradeJob:
    """What the grader gets of a sample: its completion after what the prompt had begun of it.

    An answer prefix, as in `... is \\boxed{`, is read together with what completes it; where the first line is read, if
    it begins a box. In a think block that the template opened, no box is an answer before `</think>`.

    Args:
        prompt: The sample's prompt.
        sample: One of its samples.
    """
    line = prompt.read == "line"
    begun = "<think>" * prompt.thinking_opened + prompt.answer_prefix
    return GradeJob(
        completion=("" if line and "boxed" not in begun else begun) + sample.completion,
        target=prompt.doc["answer"],
        finish_reason=sample.finish_reason,
        line=line,
    )


class Scorer:
    """Grades samples in worker processes and files the scores. Only `finish` waits for a worker.

    Args:
        scores: Where finished scores go.
        prompts: The run's prompts: the target of each problem, and the text that the authors' rule reads too.
        audit: Whether the other graders are asked as well.
    """

    def __init__(self, scores: Journal, prompts: Sequence[Prompt], *, audit: bool = True) -> None:
        self._scores = scores
        self._prompts = prompts
        self._places = PromptIndex(prompts)
        self._audit = audit
        self._half: dict[str, dict[str, Any]] = {}
        self._pool = GraderPool(audits=audit)

    def submit(self, sample: Sample) -> None:
        """Take a sample unless it has its score."""
        key = sample.key
        if key in self._scores.keys or key in self._half:
            return
        prompt = self._prompts[self._places.find(sample)]
        job = grade_job(prompt, sample)
        self._half[key] = {}
        self._pool.submit((key, "grade"), job)
        if self._audit:
            audit = AuditJob(
                prompt=prompt.prompt.removesuffix(prompt.answer_prefix),
                completion=job.completion,
                target=job.target,
                solution=prompt.doc["solution"] or "",
                line=job.line,
            )
            self._pool.submit((key, "audit"), audit)
        else:
            self._half[key]["audit"] = Audit(reason="not asked for")

    def start(self) -> None:
        """Get the workers ready: samples are sure to come."""
        self._pool.start()

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
                record = as_record(parts["grade"], parts["audit"])
                self._scores.append({"key": key, **record})
                del self._half[key]
                done.append(Score(key=key, **record))
        return done

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool.__exit__(*error)
