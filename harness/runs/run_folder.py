"""An open run folder: its lock, what a run adds to it, and whether the run can be continued."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec
from filelock import FileLock, Timeout

from harness.errors import JournalError
from harness.experiment.prompt import hash_prompts
from harness.runs.journal import (
    Journal,
    changed_settings,
    differences,
    read_header,
    read_records,
    replace_header,
)
from harness.runs.records import SESSION, TIMING, Identity, Keyed, Prompt, as_json
from harness.runs.run_files import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    limit_prompts,
    read_prompts,
    read_scored_by,
    scored_now,
)
from harness.runs.stored_files import clear_messages, compress, expand, is_stored, write_whole

LOCK = ".lock"


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
            # also if an error follows, so that the files of a finished run do not stay expanded
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
    # the first prompts are the same, so nothing recorded becomes wrong
    if hash_prompts(limit_prompts(prompts, header.get("limit"))) == header.get("prompts_sha256"):
        header |= {"limit": identity.limit, "prompts_sha256": identity.prompts_sha256}
    return differences(header, as_json(identity))


def set_old_scores_aside(path: Path) -> None:
    """Rename scores of another version, so that every sample is graded again."""
    if read_scored_by(path) not in (None, scored_now()):
        names = (path / f"old-scores-{number}.jsonl" for number in count(1))
        (path / SCORES).replace(next(name for name in names if not is_stored(name)))
