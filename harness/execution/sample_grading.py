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

NO_AUDIT_REASON = "not asked for"
"""The reason why a grade has no audit."""


def grade_job(prompt: StoredPrompt, sample: Sample) -> GradeJob:
    """The grader's job for a sample: the text that it grades, and how it is read.

    The text has three parts:

    - The start of the reasoning, if the prompt ends with it. So nothing is read before the
      reasoning ends.
    - The answer prefix of the prompt, as in `... is \\boxed{`. Where the first line is read as the
      answer, it is graded only if it begins a box.
    - The completion, up to the next question if the model writes one.

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
    # the text before a next question is complete, even if the limit ended the completion later
    if finish_reason == "length" and completion != sample.completion:
        finish_reason = "stop"
    return GradeJob.of(
        prompt.doc,
        completion=reasoning_start + graded_prefix + completion,
        finish_reason=finish_reason,
        is_line=is_line,
        reasoning_markers=prompt.thinking,
        # the prefix is graded with the completion, so it is not a part of the prompt
        prompt=prompt.prompt.removesuffix(prompt.answer_prefix),
    )


class Scorer:
    """Grades samples in worker processes and stores the scores. Only `finish` waits for a worker.

    A sample of log-probabilities needs no worker: it is correct if its gold answer is likelier than
    all others.

    Args:
        score_journal: The journal of finished scores.
        prompts: The run's prompts, with the gold answers; the authors' rule reads their texts too.
        audit: Whether other graders give their verdicts too.
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
        self._pool.submit(key, Grade(verdict=verdict, answer=None, audit_reason=NO_AUDIT_REASON))

    def poll(self) -> list[Score]:
        """Store and return the scores that are finished; returns at once."""
        return list(self._store_grades(self._pool.poll()))

    def finish(self) -> Iterator[Score]:
        """Wait for the remaining scores; each is stored and yielded as soon as it is finished."""
        yield from self._store_grades(self._pool.drain())

    def _store_grades(self, keys_and_grades: Iterable[tuple[Any, Grade]]) -> Iterator[Score]:
        """Store each grade as the score of the sample with its key, and yield the score."""
        for key, grade in keys_and_grades:
            score_fields = {"key": key, **structs.asdict(grade)}
            if not self._has_audit:
                score_fields["audit_reason"] = NO_AUDIT_REASON
            self._score_journal.append(score_fields)
            yield Score(**score_fields)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._pool.__exit__(*error)
