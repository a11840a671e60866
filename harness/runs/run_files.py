"""The files of a run folder: their names, and their content in the form of `records`."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from harness import resources
from harness.constants import JsonObject
from harness.errors import JournalError, RunError, list_first, name_similar_files
from harness.experiment.prompts.prompt import hash_prompts, hash_text
from harness.runs.journal import StoredJournal
from harness.runs.records import (
    SESSION_PREFIX,
    TIMING_PREFIX,
    Document,
    GradedSample,
    Identity,
    Receipt,
    Sample,
    Score,
    ScoreVersions,
    SessionNote,
    StoredPrompt,
    as_record,
)
from harness.runs.stored_files import is_stored, open_stored

JOURNAL = "journal.jsonl"
SCORES = "scores.jsonl"
PROMPTS = "prompts.jsonl"
RECEIPT = "run.json"
"""The receipt: the facts of a finished run. A folder without it has no finished run."""


def current_score_versions() -> ScoreVersions:
    """The versions that this installation would score with."""
    return ScoreVersions(task_version=resources.task_version())


class RunFiles:
    """What a run folder holds. Each file is opened once, when it is first needed.

    Args:
        path: The folder.

    Raises:
        RunError: a file that is needed is missing, damaged or of another format. The message names
            the file, and the line or the key.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def journal(self) -> StoredJournal[Sample]:
        """The journal, with the samples in the order in which they finished."""
        return StoredJournal(self.path / JOURNAL, Sample)

    @cached_property
    def scores_journal(self) -> StoredJournal[Score]:
        """The file of scores, with what made them as its header."""
        return StoredJournal(self.path / SCORES, Score)

    @cached_property
    def receipt(self) -> JsonObject:
        """The receipt of a finished run."""
        receipt_path = self.path / RECEIPT
        if not self.path.exists():
            raise RunError(f"{self.path} does not exist.{name_similar_files(self.path)}")
        if not receipt_path.is_file():
            remedy = (
                f"expected {RECEIPT} in it, or lm-eval's samples_*.jsonl; name tables one by one"
            )
            if is_stored(self.path / JOURNAL):
                remedy = "repeat the command that began it"
            raise RunError(f"{self.path} has no finished run: {remedy}.")
        try:
            receipt = msgspec.json.decode(receipt_path.read_bytes(), type=JsonObject)
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{receipt_path} is incomplete or damaged: {error}. Repeat the command that wrote "
                "it."
            ) from None
        as_record(Receipt, receipt, receipt_path)
        return receipt

    @cached_property
    def identity(self) -> Identity:
        """The journal's first line."""
        journal_path = self.path / JOURNAL
        if not self.journal.header:
            raise JournalError(
                f"{journal_path} is empty, or its first line is incomplete. Restore it from a copy."
            )
        return as_record(Identity, self.journal.header, journal_path)

    @property
    def has_sample(self) -> bool:
        """Whether there is a journal with a sample; a run without samples may be replaced."""
        return is_stored(self.path / JOURNAL) and self.journal.has_records

    @cached_property
    def prompts(self) -> list[StoredPrompt]:
        """Every prompt with its document."""
        return read_prompts(self.path, self.identity)

    @cached_property
    def score_versions(self) -> ScoreVersions | None:
        """The versions that made the scores; None without scores."""
        scores_path = self.path / SCORES
        header = self.scores_journal.header if is_stored(scores_path) else {}
        return as_record(ScoreVersions, header, scores_path) if header else None

    @cached_property
    def scores(self) -> dict[str, Score]:
        """The score of every sample, by the sample's key."""
        return {score.key: score for score in self.scores_journal.records}

    def forget_scores(self) -> None:
        """Read the scores again when they are next needed, because their file was replaced."""
        for name in ("scores_journal", "score_versions", "scores", "graded_samples_of_prompts"):
            self.__dict__.pop(name, None)

    @cached_property
    def graded_samples_of_prompts(self) -> list[list[GradedSample]]:
        """For each prompt of a finished run, its samples with their scores, in the journal's order.

        Raises:
            RunError: a sample is missing, or without a score.
        """
        graded_samples_of_prompts: list[list[GradedSample]] = [[] for _ in self.prompts]
        prompt_index = PromptIndex(self.prompts)
        for sample in self.journal.records:
            score = self.scores.get(sample.key)
            if score is None:
                raise RunError(
                    f"{self.path}: sample {sample.sample_index} of problem {sample.problem_id}, "
                    f"{sample.task}, has no score. Run `mless regrade` on the folder."
                )
            graded_samples_of_prompts[prompt_index.find(sample)].append((sample, score))
        # a prompt without all samples that its task requests shows that the run is not finished
        incomplete_problems = []
        total_expected_count = 0
        for prompt, graded_samples in zip(self.prompts, graded_samples_of_prompts, strict=True):
            task = self.identity.tasks[prompt.task]
            expected_count = task.replicates * task.samples
            total_expected_count += expected_count
            if len(graded_samples) < expected_count:
                incomplete_problems.append(f"{prompt.doc['id']} ({prompt.task})")
        if incomplete_problems:
            raise JournalError(
                f"{self.path}: samples are missing: expected {total_expected_count}, got "
                f"{len(self.journal.records)}, too few of problem "
                f"{list_first(incomplete_problems)}. Repeat the command that began the run."
            )
        return graded_samples_of_prompts

    def read_sessions(self) -> tuple[list[JsonObject], JsonObject]:
        """The notes of all sessions, in order, and the timing of one session without its key.

        The timing is that of the last session that generated samples. If none did, it is that of
        the last session, which only graded. It is empty if no session has ended.

        Raises:
            RunError: no session has begun yet, or the last session's note lacks a key of its config
                that is read.
        """
        notes = self.journal.notes
        sessions = [note for note in notes if note["key"].startswith(SESSION_PREFIX)]
        if not sessions:
            raise JournalError(f"{self.path} has no sample yet. Repeat the command that began it.")
        as_record(SessionNote, sessions[-1], self.path / JOURNAL)
        timings = [note for note in notes if note["key"].startswith(TIMING_PREFIX)]
        # a session that only graded has no speed
        timings_with_samples = [timing for timing in timings if timing.get("samples")]
        last_timing = (timings_with_samples or timings or [{}])[-1]
        return sessions, {name: fact for name, fact in last_timing.items() if name != "key"}


def read_prompts(folder: Path, identity: Identity) -> list[StoredPrompt]:
    """Every prompt of a folder with its document.

    Raises:
        JournalError: the file is missing, a document lacks a field, or a hash is not that of the
            prompt or of the identity.
    """
    try:
        with open_stored(folder / PROMPTS) as stream:
            prompts = [msgspec.json.decode(line, type=StoredPrompt) for line in stream]
        for prompt in prompts:
            msgspec.convert(prompt.doc, Document)
        prompts_are_intact = all(
            hash_text(prompt.prompt) == prompt.prompt_sha256 and prompt.task in identity.tasks
            for prompt in prompts
        )
        if prompts_are_intact and hash_prompts(prompts) == identity.prompts_sha256:
            return prompts
        reason = "its prompts are not those of the journal"
    except (OSError, ValueError, RecursionError, JournalError) as error:
        reason = str(error).rstrip(".")
    raise JournalError(
        f"{folder / PROMPTS} is missing or damaged: {reason}. Repeat the command that made "
        "the run: it writes the file again."
    )


class PromptIndex:
    """Finds the prompt of a sample among a run's prompts, by task and problem.

    Args:
        prompts: The run's prompts.
    """

    def __init__(self, prompts: Sequence[StoredPrompt]) -> None:
        self._index_by_task_and_problem = {
            (prompt.task, prompt.doc["id"]): index for index, prompt in enumerate(prompts)
        }

    def find(self, sample: Sample) -> int:
        """The prompt's position among the run's prompts.

        Raises:
            RunError: the sample has no prompt.
        """
        index = self._index_by_task_and_problem.get((sample.task, sample.problem_id))
        if index is None:
            raise RunError(
                f"{PROMPTS} lacks the prompt of problem {sample.problem_id}, {sample.task}."
            )
        return index
