"""Grade and audit every sample in the grader pool, while others are still generated.

An audit asks other graders for their verdicts on the same completion.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

from msgspec import structs

from harness.finish_reasons import read_reason
from harness.grading import Grade, GradeJob, GraderPool, Verdict
from harness.reasoning_markers import find_open_reasoning
from harness.runs.journal import Journal
from harness.runs.records import Sample, Score, StoredPrompt
from harness.runs.run_files import PromptIndex

NO_AUDIT = "not asked for"
"""The reason why a grade has no audit."""


def grade_job(prompt: StoredPrompt, sample: Sample) -> GradeJob:
    """The grader's job for a sample: its completion after the answer prefix of the prompt.

    An answer prefix, as in `... is \\boxed{`, is graded together with its completion. Where the
    first line is read, this holds only if the prefix begins a box. If the prompt opened the
    reasoning, the marker of its start is put before the completion, so that nothing is read before
    the reasoning ends. The completion ends before the first question that the model adds.

    Args:
        prompt: The sample's prompt.
        sample: One of its samples.
    """
    is_line = prompt.read == "line"
    graded_prefix = prompt.answer_prefix
    if is_line and "boxed" not in graded_prefix:
        graded_prefix = ""
    reasoning_start, _ = find_open_reasoning(prompt.prompt, prompt.thinking)
    completion = prompt.cut_next_question(sample.completion)
    finish_reason = read_reason(sample.finish_reason)
    # the text before the next question is complete, even if the limit ended the completion
    if finish_reason == "length" and completion != sample.completion:
        finish_reason = "stop"
    return GradeJob.of(
        prompt.doc,
        completion=reasoning_start + graded_prefix + completion,
        finish_reason=finish_reason,
        is_line=is_line,
        reasoning_markers=prompt.thinking,
        # the completion above begins with the prefix, so the prompt must not end with it
        prompt=prompt.prompt.removesuffix(prompt.answer_prefix),
    )


class Scorer:
    """Grades samples in worker processes and stores the scores. Only `finish` waits for a worker.

    Log-probabilities need no worker: the verdict says whether the gold answer is likelier than all
    others.

    Args:
        score_journal: The journal of finished scores.
        prompts: The run's prompts, with the gold answers; the authors' rule reads their texts too.
        audit: Whether the other graders are asked as well.
    """

    def __init__(
        self, score_journal: Journal, prompts: Sequence[StoredPrompt], *, audit: bool = True
    ) -> None:
        self._score_journal = score_journal
        self._prompts = prompts
        self._prompt_index = PromptIndex(prompts)
        self._has_audit = audit
        self._submitted_keys: set[str] = set()
        self._pool = GraderPool(with_audit=audit)

    def submit(self, sample: Sample) -> None:
        """Take a sample unless it has its score."""
        key = sample.key
        if key in self._score_journal.keys or key in self._submitted_keys:
            return
        self._submitted_keys.add(key)
        if sample.answer_score is None:
            self._pool.submit(
                key, grade_job(self._prompts[self._prompt_index.find(sample)], sample)
            )
            return
        verdict: Verdict = "correct" if sample.answer_score.gold_is_likeliest else "incorrect"
        # through the pool too, so that `poll` and `finish` store and return all scores
        self._pool.submit(key, Grade(verdict=verdict, answer=None, audit_reason=NO_AUDIT))

    def poll(self) -> list[Score]:
        """Store and return the scores that are finished; returns at once."""
        return self._collect(self._pool.poll())

    def finish(self) -> Iterator[Score]:
        """Wait for the remaining scores; each is stored and yielded as soon as it is finished."""
        for result in self._pool.drain():
            yield from self._collect([result])

    def _collect(self, results: Iterable[tuple[Any, Grade]]) -> list[Score]:
        """Store the pool's grades as scores, and return them; `key` is the sample's."""
        scores = []
        for key, grade in results:
            score_fields = {"key": key, **structs.asdict(grade)}
            if not self._has_audit:
                score_fields["audit_reason"] = NO_AUDIT
            self._score_journal.append(score_fields)
            scores.append(Score(**score_fields))
        return scores

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool.__exit__(*error)
