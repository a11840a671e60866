"""A run on disk: which file is what, one writer at a time, and the journal that a run is continued from."""

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

JOURNAL, SCORES, PROMPTS, RECEIPT, LOCK = (
    "journal.jsonl",
    "scores.jsonl",
    "prompts.jsonl",
    "run.json",
    ".lock",
)
RECORDED = "attention"
"""In a run's folder: traces that its engine recorded."""


class RunFolder:
    """An open run folder. Holds the lock, the journal and the scores; knows what is done.

    Args:
        path: The folder; made if it is missing.
        identity: What is being recorded; `execution.execute_plan.run_identity` makes it.
        prompts: Every prompt with its document; written once.

    Raises:
        JournalError: another process has the folder, it belongs to a run with other settings, it is not a run folder,
            or it cannot be written.
    """

    def __init__(self, path: Path, identity: Identity, prompts: Sequence[Prompt]) -> None:
        self.path, self.prompts = path, prompts
        with clear_messages(path), ExitStack() as opened:
            refuse_foreign(path)
            path.mkdir(parents=True, exist_ok=True)
            opened.callback(lock(path).release)
            opened.callback(compress_finished, path)
            if has_sample(path) and (changed := changes(path, identity, prompts)):
                raise changed_settings(path / JOURNAL, changed)
            expand(path)
            if new := not has_sample(path):  # begun, but nothing there needs protection
                for name in (SCORES, JOURNAL):
                    (path / name).unlink(missing_ok=True)
            if new or differences(
                read_header(path / JOURNAL), as_json(identity)
            ):  # it gets more problems
                # a kill after any of these leaves one of the two runs whole
                (path / RECEIPT).unlink(missing_ok=True)
                write_whole(
                    path / PROMPTS,
                    "".join(f"{msgspec.json.encode(prompt).decode()}\n" for prompt in prompts),
                )
                if not new:
                    replace_header(path / JOURNAL, as_json(identity))
            self.journal = opened.enter_context(Journal(path / JOURNAL, as_json(identity)))
            read_prompts(path)
            set_old_scores_aside(path)
            self.scores = opened.enter_context(Journal(path / SCORES, as_json(scored_now())))
            self._opened = opened.pop_all()

    def note(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Note in the journal that a process takes over (`SESSION`), or how long one that ends has taken (`TIMING`)."""
        number = 1 + sum(key.startswith(kind) for key in self.journal.keys)
        self.journal.append({"key": f"{kind}{number}", **facts})

    @property
    def sample_keys(self) -> set[str]:
        """Keys of the samples that are there."""
        return {key for key in self.journal.keys if not key.startswith((SESSION, TIMING))}

    def sync_if_due(self) -> None:
        """Make what was written safe from a power cut, every few seconds."""
        self.journal.sync_if_due()
        self.scores.sync_if_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def compress_finished(path: Path) -> None:
    """Compress the files of a finished run. On a full disk they stay as they are, and every command reads them so."""
    if (path / RECEIPT).is_file():
        with suppress(OSError):
            compress(path, (JOURNAL, SCORES, PROMPTS))


def lock(path: Path) -> FileLock:
    """Be the folder's only writer; the lock goes when this process does.

    Raises:
        JournalError: another process is.
    """
    held = FileLock(path / LOCK)
    try:
        held.acquire(timeout=0)
    except (OSError, NotImplementedError) as error:
        told = f"cannot be locked: {error}. Choose"
        if isinstance(error, Timeout):
            told = "is in use by another mless process. Wait for it, or choose"
        raise JournalError(f"{path} {told} another --output.") from None
    return held


def refuse_foreign(path: Path, name: str = JOURNAL) -> None:
    """Raise JournalError if nothing can be stored here: a folder with other files, and without the file that begins it.

    Of a file the system says so.
    """
    begun = (LOCK, PROMPTS, f"{PROMPTS}.part", f"{name}.part")
    if (
        path.exists()
        and not is_stored(path / name)
        and any(file.name not in begun for file in path.iterdir())
    ):
        raise JournalError(
            f"{path} already holds files, and none is {name}. Choose another --output."
        )


def has_sample(path: Path) -> bool:
    """Whether a journal with a sample is in the folder; a run without one may become any other run."""
    return is_stored(path / JOURNAL) and any(True for _ in read_records(path / JOURNAL, Keyed))


def changes(path: Path, identity: Identity, prompts: Sequence[Prompt]) -> list[str]:
    """What differs between the run in the folder and the one that is wanted; empty if it can be continued.

    A run of the first problems can be continued as one of more.
    """
    begun = read_header(path / JOURNAL)
    if hash_prompts(_limit(prompts, begun)) == begun.get("prompts_sha256"):
        begun |= {"limit": identity.limit, "prompts_sha256": identity.prompts_sha256}
    return differences(begun, as_json(identity))


def _limit(prompts: Sequence[Prompt], begun: Mapping[str, Any]) -> list[Prompt]:
    """The prompts of the first problems, as many as a limited run asks; all of one without a limit."""
    problems = list(dict.fromkeys(prompt.doc["id"] for prompt in prompts))
    limited = set(problems[: begun.get("limit")])
    return [prompt for prompt in prompts if prompt.doc["id"] in limited]


def set_old_scores_aside(path: Path) -> None:
    """Keep scores of another version under another name; every sample is graded again."""
    if read_scored_by(path) not in (None, scored_now()):
        names = (path / f"old-scores-{number}.jsonl" for number in count(1))
        (path / SCORES).replace(next(name for name in names if not is_stored(name)))


def read_receipt(folder: Path) -> dict[str, Any]:
    """The run's receipt.

    Raises:
        RunError: there is no finished run, or its receipt is damaged, another file or lacks what is read of it.
    """
    path = folder / RECEIPT
    if not path.is_file():
        told = f"expected {RECEIPT} in it, or lm-eval's samples_*.jsonl"
        if is_stored(folder / JOURNAL):
            told = "the command that began it continues it"
        raise RunError(f"{folder} holds no finished run: {told}.")
    try:
        receipt = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"{path} is torn or damaged: {error}. The command that made it makes it again."
        ) from None
    fit(Receipt, receipt, path)
    return receipt


def read_identity(path: Path) -> Identity:
    """The first line of the folder's journal.

    Raises:
        RunError: there is none, or it is damaged or of another format.
    """
    header = read_header(path / JOURNAL)
    if not header:
        raise JournalError(
            f"{path / JOURNAL} is empty, or its first line is torn. Restore it from a copy."
        )
    return fit(Identity, header, path / JOURNAL)


def read_sessions(path: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Who wrote the journal, in order; and how long the last session that generated anything took, if any has ended.

    Raises:
        RunError: no session has begun yet, or the last one's note lacks what is read of its config.
    """
    notes = read_notes(path / JOURNAL)
    sessions = [note for note in notes if note["key"].startswith(SESSION)]
    if not sessions:
        raise JournalError(
            f"{path} holds no sample yet. Continue it with the command that began it."
        )
    fit(SessionNote, sessions[-1], path / JOURNAL)
    ended = [note for note in notes if note["key"].startswith(TIMING)]
    generated = [note for note in ended if note.get("samples")] or ended
    return sessions, {
        name: value for name, value in generated[-1].items() if name != "key"
    } if generated else {}


def read_samples(path: Path) -> Iterator[Sample]:
    """Every sample of the folder's journal, in the order in which they finished.

    Raises:
        RunError: the file is missing or damaged.
    """
    return read_records(path / JOURNAL, Sample)


def read_scores(path: Path, name: str = SCORES) -> dict[str, Score]:
    """The score of every sample, by the sample's key.

    Raises:
        RunError: the file is missing or damaged, or a score says what no grader says.
    """
    return {score.key: score for score in read_records(path / name, Score)}


def scored_now() -> ScoredBy:
    """What this mless would score with."""
    return ScoredBy(task_version=resources.task_version())


def read_scored_by(path: Path) -> ScoredBy | None:
    """What made the folder's scores; None where there are none.

    Raises:
        RunError: their first line is damaged or of another format.
    """
    file = path / SCORES
    header = read_header(file) if is_stored(file) else {}
    return fit(ScoredBy, header, file) if header else None


def read_prompts(path: Path) -> list[Prompt]:
    """Every prompt with its document.

    Raises:
        JournalError: the file is missing, or is not the one that the journal's first line speaks of.
    """
    begun, why = read_identity(path), "its prompts are not those of the journal"
    try:
        with open_stored(path / PROMPTS) as stream:
            prompts = [msgspec.json.decode(line, type=Prompt) for line in stream]
        for prompt in prompts:
            msgspec.convert(prompt.doc, Document)
        prompts = _limit(prompts, as_json(begun))  # a kill may have left those of a larger limit
        are_known = all(
            hash_text(one.prompt) == one.prompt_sha256 and one.task in begun.arms for one in prompts
        )
        if are_known and hash_prompts(prompts) == begun.prompts_sha256:
            return prompts
    except (OSError, ValueError, RecursionError, JournalError) as error:
        why = str(error)
    raise JournalError(
        f"{path / PROMPTS} is missing or damaged: {why}. Restore it from a copy, or from a run of the same config into "
        "a new --output."
    )


class PromptPlaces:
    """Finds the prompt of a sample among a run's prompts, by task and problem.

    Args:
        prompts: The run's prompts.
    """

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._places = {
            (prompt.task, prompt.doc["id"]): place for place, prompt in enumerate(prompts)
        }

    def find(self, sample: Sample) -> int:
        """The prompt's row.

        Raises:
            RunError: there is none.
        """
        place = self._places.get((sample.task, sample.problem_id))
        if place is None:
            raise RunError(
                f"{PROMPTS} lacks the prompt of problem {sample.problem_id}, {sample.task}."
            )
        return place


def refuse_missing(
    path: Path, prompts: Sequence[Prompt], identity: Identity, there: Sequence[int]
) -> None:
    """Refuse a run in which a prompt has fewer samples than a finished run has.

    Raises:
        JournalError: naming the problems that lack some.
    """
    arms = [identity.arms[prompt.task] for prompt in prompts]
    expected = [arm.replicates * arm.samples for arm in arms]
    short = [
        f"{prompt.doc['id']} ({prompt.task})"
        for prompt, count, wanted in zip(prompts, there, expected, strict=True)
        if count < wanted
    ]
    if short:
        raise JournalError(
            f"{path}: samples are missing: expected {sum(expected)}, got {sum(there)}, too few of problem "
            f"{list_first(short)}. The command that began the run continues it."
        )
