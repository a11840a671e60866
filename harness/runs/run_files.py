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
    SESSION,
    TIMING,
    Document,
    Identity,
    Receipt,
    Sample,
    Score,
    ScoredBy,
    SessionNote,
    StoredPrompt,
    fit,
)
from harness.runs.stored_files import is_stored, open_stored

JOURNAL = "journal.jsonl"
SCORES = "scores.jsonl"
PROMPTS = "prompts.jsonl"
RECEIPT = "run.json"


def scored_now() -> ScoredBy:
    """The versions that this installation would score with."""
    return ScoredBy(task_version=resources.task_version())


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
        path = self.path / RECEIPT
        if not self.path.exists():
            raise RunError(f"{self.path} does not exist.{name_similar_files(self.path)}")
        if not path.is_file():
            if is_stored(self.path / JOURNAL):
                remedy = "repeat the command that began it"
            else:
                remedy = (
                    f"expected {RECEIPT} in it, or lm-eval's samples_*.jsonl; name tables one by "
                    "one"
                )
            raise RunError(f"{self.path} has no finished run: {remedy}.")
        try:
            receipt = msgspec.json.decode(path.read_bytes(), type=JsonObject)
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{path} is incomplete or damaged: {error}. Repeat the command that wrote it."
            ) from None
        fit(Receipt, receipt, path)
        return receipt

    @cached_property
    def identity(self) -> Identity:
        """The journal's first line."""
        journal_path = self.path / JOURNAL
        if not self.journal.header:
            raise JournalError(
                f"{journal_path} is empty, or its first line is incomplete. Restore it from a copy."
            )
        return fit(Identity, self.journal.header, journal_path)

    @property
    def has_sample(self) -> bool:
        """Whether there is a journal with a sample; a run without samples may be replaced."""
        return is_stored(self.path / JOURNAL) and self.journal.has_records

    @cached_property
    def prompts(self) -> list[StoredPrompt]:
        """Every prompt with its document."""
        return read_prompts(self.path, self.identity)

    @cached_property
    def scored_by(self) -> ScoredBy | None:
        """The versions that made the scores; None without scores."""
        file = self.path / SCORES
        header = self.scores_journal.header if is_stored(file) else {}
        return fit(ScoredBy, header, file) if header else None

    @cached_property
    def scores(self) -> dict[str, Score]:
        """The score of every sample, by the sample's key."""
        return {score.key: score for score in self.scores_journal.records}

    def forget_scores(self) -> None:
        """Read the scores anew when they are next needed, as others have replaced them."""
        for name in ("scores_journal", "scored_by", "scores", "graded_samples"):
            self.__dict__.pop(name, None)

    @cached_property
    def graded_samples(self) -> list[list[tuple[Sample, Score]]]:
        """For each prompt of a finished run, its samples and their scores.

        Raises:
            RunError: a sample is missing, or without a score.
        """
        graded_samples: list[list[tuple[Sample, Score]]] = [[] for _ in self.prompts]
        index = PromptIndex(self.prompts)
        for sample in self.journal.records:
            if sample.key not in self.scores:
                raise RunError(
                    f"{self.path}: sample {sample.sample_index} of problem {sample.problem_id}, "
                    f"{sample.task}, has no score. Run `mless regrade` on the folder."
                )
            graded_samples[index.find(sample)].append((sample, self.scores[sample.key]))
        incomplete, expected_count = [], 0
        for prompt, pairs in zip(self.prompts, graded_samples, strict=True):
            task = self.identity.tasks[prompt.task]
            expected_count += task.replicates * task.samples
            if len(pairs) < task.replicates * task.samples:
                incomplete.append(f"{prompt.doc['id']} ({prompt.task})")
        if incomplete:
            raise JournalError(
                f"{self.path}: samples are missing: expected {expected_count}, got "
                f"{len(self.journal.records)}, too few of problem {list_first(incomplete)}. "
                "Repeat the command that began the run."
            )
        return graded_samples

    def read_sessions(self) -> tuple[list[JsonObject], JsonObject]:
        """The sessions that wrote the journal, in order, and the timing of the last that generated.

        The timing is empty if no session has ended.

        Raises:
            RunError: no session has begun yet, or the last session's note lacks a key of its config
                that is read.
        """
        notes = self.journal.notes
        sessions = [note for note in notes if note["key"].startswith(SESSION)]
        if not sessions:
            raise JournalError(f"{self.path} has no sample yet. Repeat the command that began it.")
        fit(SessionNote, sessions[-1], self.path / JOURNAL)
        timings = [note for note in notes if note["key"].startswith(TIMING)]
        # a session that only graded has no speed
        timings = [timing for timing in timings if timing.get("samples")] or timings
        if not timings:
            return sessions, {}
        timing = dict(timings[-1])
        del timing["key"]
        return sessions, timing


def read_prompts(path: Path, identity: Identity) -> list[StoredPrompt]:
    """Every prompt of a folder with its document.

    Raises:
        JournalError: the file is missing, or its hash is not that of the identity.
    """
    reason = "its prompts are not those of the journal"
    try:
        with open_stored(path / PROMPTS) as stream:
            prompts = [msgspec.json.decode(line, type=StoredPrompt) for line in stream]
        for prompt in prompts:
            msgspec.convert(prompt.doc, Document)
        are_intact = all(
            hash_text(prompt.prompt) == prompt.prompt_sha256 and prompt.task in identity.tasks
            for prompt in prompts
        )
        if are_intact and hash_prompts(prompts) == identity.prompts_sha256:
            return prompts
    except (OSError, ValueError, RecursionError, JournalError) as error:
        reason = str(error).rstrip(".")
    raise JournalError(
        f"{path / PROMPTS} is missing or damaged: {reason}. Repeat the command that made the run: "
        "it writes the file again."
    )


class PromptIndex:
    """Finds the prompt of a sample among a run's prompts, by task and problem.

    Args:
        prompts: The run's prompts.
    """

    def __init__(self, prompts: Sequence[StoredPrompt]) -> None:
        self._indices = {
            (prompt.task, prompt.doc["id"]): index for index, prompt in enumerate(prompts)
        }

    def find(self, sample: Sample) -> int:
        """The prompt's position among the run's prompts.

        Raises:
            RunError: the sample has no prompt.
        """
        index = self._indices.get((sample.task, sample.problem_id))
        if index is None:
            raise RunError(
                f"{PROMPTS} lacks the prompt of problem {sample.problem_id}, {sample.task}."
            )
        return index
