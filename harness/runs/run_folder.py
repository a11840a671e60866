"""A run folder: its files, its lock, and whether the run in it can be continued."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec
from filelock import FileLock, Timeout

from harness import resources
from harness.errors import JournalError, RunError, list_first
from harness.experiment.prompt import hash_prompts, hash_text
from harness.runs.journal import (
    Journal,
    changed_settings,
    clear_messages,
    compress,
    differences,
    expand,
    is_stored,
    open_stored,
    read_header,
    read_notes,
    read_records,
    replace_header,
    write_whole,
)
from harness.runs.records import (
    SESSION,
    TIMING,
    Document,
    Identity,
    Keyed,
    Prompt,
    Receipt,
    Sample,
    Score,
    ScoredBy,
    SessionNote,
    as_json,
    fit,
)

JOURNAL = "journal.jsonl"
SCORES = "scores.jsonl"
PROMPTS = "prompts.jsonl"
RECEIPT = "run.json"
LOCK = ".lock"
RECORDED = "attention"
"""The folder of the attention traces that the run's engine recorded."""


class RunFolder:
    """An open run folder. It holds the lock, the journal and the scores.

    Args:
        path: The folder; made if it is missing.
        identity: What is being recorded; `execution.execute_plan.run_identity` makes it.
        prompts: Every prompt with its document; written once.

    Raises:
        JournalError: another process has the folder, it belongs to a run with other settings, it is
            not a run folder, or it cannot be written.
    """

    def __init__(self, path: Path, identity: Identity, prompts: Sequence[Prompt]) -> None:
        self.path, self.identity, self.prompts = path, identity, prompts
        journal = path / JOURNAL
        header = as_json(identity)
        with clear_messages(path), ExitStack() as stack:
            refuse_foreign(path)
            path.mkdir(parents=True, exist_ok=True)
            stack.callback(lock(path).release)
            stack.callback(compress_finished, path)
            is_new = not has_sample(path)
            if not is_new and (changed := changes(path, identity, prompts)):
                raise changed_settings(journal, changed)
            expand(path)
            if is_new:  # a run may have begun here, but nothing of it needs protection
                (path / SCORES).unlink(missing_ok=True)
                journal.unlink(missing_ok=True)
            # a stored run has another header if it gets more problems
            if is_new or differences(read_header(journal), header):
                # a kill after any of these steps leaves a complete run: the old or the new one
                (path / RECEIPT).unlink(missing_ok=True)
                lines = [msgspec.json.encode(prompt).decode() + "\n" for prompt in prompts]
                write_whole(path / PROMPTS, "".join(lines))
                if not is_new:
                    replace_header(journal, header)
            self.journal = stack.enter_context(Journal(journal, header))
            read_prompts(path)
            set_old_scores_aside(path)
            self.scores = stack.enter_context(Journal(path / SCORES, as_json(scored_now())))
            self._resources = stack.pop_all()

    def note(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Note in the journal that a process takes over (`SESSION`), or its duration (`TIMING`)."""
        number = 1 + sum(key.startswith(kind) for key in self.journal.keys)
        self.journal.append({"key": f"{kind}{number}", **facts})

    @property
    def sample_keys(self) -> set[str]:
        """Keys of the recorded samples."""
        return {key for key in self.journal.keys if not key.startswith((SESSION, TIMING))}

    def sync_if_due(self) -> None:
        """Make all records safe from a power cut, every few seconds."""
        self.journal.sync_if_due()
        self.scores.sync_if_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()


def compress_finished(path: Path) -> None:
    """Compress the files of a finished run. On a full disk they stay uncompressed and readable."""
    if (path / RECEIPT).is_file():
        with suppress(OSError):
            compress(path, (JOURNAL, SCORES, PROMPTS))


def lock(path: Path) -> FileLock:
    """Lock the folder for this process, as its only writer. The lock ends with the process.

    Raises:
        JournalError: another process has the lock.
    """
    file_lock = FileLock(path / LOCK)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        raise JournalError(
            f"{path} is in use by another mless process. Wait for it, or choose another --output."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise JournalError(f"{path} cannot be locked: {error}. Choose another --output.") from None
    return file_lock


def refuse_foreign(path: Path, name: str = JOURNAL) -> None:
    """Raise JournalError if a folder holds other files and not the file that a run begins with.

    If the path is a file, the operating system raises the error.
    """
    leftovers = (LOCK, PROMPTS, f"{PROMPTS}.part", f"{name}.part")
    if not path.exists() or is_stored(path / name):
        return
    if any(file.name not in leftovers for file in path.iterdir()):
        raise JournalError(
            f"{path} already holds files, and none is {name}. Choose another --output."
        )


def has_sample(path: Path) -> bool:
    """Whether the folder has a journal with a sample; a run without samples may be replaced."""
    return is_stored(path / JOURNAL) and any(True for _ in read_records(path / JOURNAL, Keyed))


def changes(path: Path, identity: Identity, prompts: Sequence[Prompt]) -> list[str]:
    """What differs between the folder's run and the requested run; empty if it can be continued.

    A run of the first problems can be continued as a run of more problems.
    """
    header = read_header(path / JOURNAL)
    if hash_prompts(_limit_prompts(prompts, header.get("limit"))) == header.get("prompts_sha256"):
        header |= {"limit": identity.limit, "prompts_sha256": identity.prompts_sha256}
    return differences(header, as_json(identity))


def _limit_prompts(prompts: Sequence[Prompt], limit: int | None) -> list[Prompt]:
    """The prompts of the first `limit` problems; None: all prompts."""
    problems = list(dict.fromkeys(prompt.doc["id"] for prompt in prompts))
    limited = set(problems[:limit])
    return [prompt for prompt in prompts if prompt.doc["id"] in limited]


def set_old_scores_aside(path: Path) -> None:
    """Rename scores of another version, so that every sample is graded again."""
    if read_scored_by(path) not in (None, scored_now()):
        names = (path / f"old-scores-{number}.jsonl" for number in count(1))
        (path / SCORES).replace(next(name for name in names if not is_stored(name)))


def read_receipt(folder: Path) -> dict[str, Any]:
    """The run's receipt.

    Raises:
        RunError: there is no finished run, or its receipt is damaged, is another file or lacks a
            key that is read.
    """
    path = folder / RECEIPT
    if not path.is_file():
        if is_stored(folder / JOURNAL):
            remedy = "repeat the command that began it"
        else:
            remedy = f"expected {RECEIPT} in it, or lm-eval's samples_*.jsonl"
        raise RunError(f"{folder} has no finished run: {remedy}.")
    try:
        receipt = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
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


def read_sessions(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
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


def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt with its document.

    Raises:
        JournalError: the file is missing, or its hash is not the hash in the journal's first line.
    """
    identity = read_identity(path)
    reason = "its prompts are not those of the journal"
    try:
        with open_stored(path / PROMPTS) as stream:
            prompts = [msgspec.json.decode(line, type=Prompt) for line in stream]
        for prompt in prompts:
            msgspec.convert(prompt.doc, Document)
        # a kill may have left the prompts of a larger limit
        prompts = _limit_prompts(prompts, identity.limit)
        are_intact = all(
            hash_text(prompt.prompt) == prompt.prompt_sha256 and prompt.task in identity.arms
            for prompt in prompts
        )
        if are_intact and hash_prompts(prompts) == identity.prompts_sha256:
            return prompts
    except (OSError, ValueError, RecursionError, JournalError) as error:
        reason = str(error)
    raise JournalError(
        f"{path / PROMPTS} is missing or damaged: {reason}. Restore it from a copy, or from a run "
        "of the same config into a new --output."
    )


class PromptIndex:
    """Finds the prompt of a sample among a run's prompts, by task and problem.

    Args:
        prompts: The run's prompts.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
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


def refuse_missing(
    path: Path, prompts: Sequence[Prompt], identity: Identity, counts: Sequence[int]
) -> None:
    """Refuse a run in which a prompt has fewer samples than in a finished run.

    Args:
        path: The run folder, for the message.
        prompts: The run's prompts.
        identity: Its journal's first line.
        counts: Number of recorded samples of each prompt.

    Raises:
        JournalError: a prompt lacks samples; the message names their problems.
    """
    arms = [identity.arms[prompt.task] for prompt in prompts]
    expected = [arm.replicates * arm.samples for arm in arms]
    short = [
        f"{prompt.doc['id']} ({prompt.task})"
        for prompt, count, expected_count in zip(prompts, counts, expected, strict=True)
        if count < expected_count
    ]
    if short:
        raise JournalError(
            f"{path}: samples are missing: expected {sum(expected)}, got {sum(counts)}, too few of "
            f"problem {list_first(short)}. Repeat the command that began the run."
        )
