"""The files of a run folder: their names, and their content in the form of `records`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from harness import resources
from harness.constants import JsonObject
from harness.errors import JournalError, RunError, name_similar_files
from harness.experiment.prompt import hash_prompts, hash_text
from harness.runs.journal import read_header, read_notes, read_records
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


def read_receipt(folder: Path) -> JsonObject:
    """The run's receipt.

    Raises:
        RunError: there is no finished run, or its receipt is damaged, is another file or lacks a
            key that is read.
    """
    path = folder / RECEIPT
    if not folder.exists():
        raise RunError(f"{folder} does not exist.{name_similar_files(folder)}")
    if not path.is_file():
        if is_stored(folder / JOURNAL):
            remedy = "repeat the command that began it"
        else:
            remedy = f"expected {RECEIPT} in it, or lm-eval's samples_*.jsonl"
        raise RunError(f"{folder} has no finished run: {remedy}.")
    try:
        receipt = msgspec.json.decode(path.read_bytes(), type=JsonObject)
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is incomplete or damaged: {error}. Repeat the command that wrote it."
        ) from None
    fit(Receipt, receipt, path)
    return receipt


def read_identity(path: Path) -> Identity:
    """The first line of the folder's journal.

    Raises:
        RunError: there is no such line, or it is damaged or of another format.
    """
    journal = path / JOURNAL
    header = read_header(journal)
    if not header:
        raise JournalError(
            f"{journal} is empty, or its first line is incomplete. Restore it from a copy."
        )
    return fit(Identity, header, journal)


def read_sessions(path: Path) -> tuple[list[JsonObject], JsonObject]:
    """The sessions that wrote the journal, in order, and the timing of the last that generated.

    The timing is empty if no session has ended.

    Raises:
        RunError: no session has begun yet, or the last session's note lacks a key of its config
            that is read.
    """
    notes = read_notes(path / JOURNAL)
    sessions = [note for note in notes if note["key"].startswith(SESSION)]
    if not sessions:
        raise JournalError(f"{path} has no sample yet. Repeat the command that began it.")
    fit(SessionNote, sessions[-1], path / JOURNAL)
    timings = [note for note in notes if note["key"].startswith(TIMING)]
    # a session that only graded has no speed
    timings = [timing for timing in timings if timing.get("samples")] or timings
    if not timings:
        return sessions, {}
    del timings[-1]["key"]
    return sessions, timings[-1]


def read_samples(path: Path) -> Iterator[Sample]:
    """Every sample of the folder's journal, in the order in which the samples finished.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_records(path / JOURNAL, Sample)


def read_scores(path: Path, name: str = SCORES) -> dict[str, Score]:
    """The score of every sample, by the sample's key.

    Raises:
        RunError: the file is missing or damaged, or a score has a value that no grader gives.
    """
    return {score.key: score for score in read_records(path / name, Score)}


def scored_now() -> ScoredBy:
    """The versions that this installation would score with."""
    return ScoredBy(task_version=resources.task_version())


def read_scored_by(path: Path) -> ScoredBy | None:
    """The versions that made the folder's scores; None without scores.

    Raises:
        RunError: the first line of the scores is damaged or of another format.
    """
    file = path / SCORES
    header = read_header(file) if is_stored(file) else {}
    return fit(ScoredBy, header, file) if header else None


def read_prompts(path: Path) -> list[StoredPrompt]:
    """Every prompt with its document.

    Raises:
        JournalError: the file is missing, or its hash is not the hash in the journal's first line.
    """
    identity = read_identity(path)
    reason = "its prompts are not those of the journal"
    try:
        with open_stored(path / PROMPTS) as stream:
            prompts = [msgspec.json.decode(line, type=StoredPrompt) for line in stream]
        for prompt in prompts:
            msgspec.convert(prompt.doc, Document)
        are_intact = all(
            hash_text(prompt.prompt) == prompt.prompt_sha256 and prompt.task in identity.arms
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
