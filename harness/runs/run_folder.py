"""An open run folder: its lock, what a run adds to it, and whether the run can be continued."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

import msgspec
from filelock import FileLock, Timeout
from msgspec.structs import replace

from harness.constants import JsonObject
from harness.errors import JournalError
from harness.runs.journal import (
    Journal,
    changed_settings_error,
    list_differences,
    replace_header,
)
from harness.runs.records import SESSION_PREFIX, TIMING_PREFIX, Identity, StoredPrompt, as_json
from harness.runs.run_files import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    RunFiles,
    current_score_versions,
    read_prompts,
)
from harness.runs.stored_files import explain_write_errors, is_stored, open_atomic, unpack_files

LOCK_NAME = ".lock"
EXTENSION_KEYS = (
    "conditions",
    "repeats",
    "replicates",
    "positive_control",
    "template",
    "question",
    "fewshot",
)
"""Keys of a config that may add samples to a run, or only shape its prompts. Whether they change
anything else is seen from the prompts and the ids of the examples."""


class RunFolder:
    """An open run folder. It holds the lock, the journal and the scores.

    Args:
        path: The folder; made if it is missing.
        identity: What is being recorded; `execution.run_execution.run_identity` makes it.
        prompts: Every prompt with its document; written once.

    Raises:
        JournalError: another process has the folder, it belongs to a run with other settings, it is
            not a run folder, or it cannot be written.
    """

    def __init__(self, path: Path, identity: Identity, prompts: Sequence[StoredPrompt]) -> None:
        self.path, self.identity, self.prompts = path, identity, prompts
        with explain_write_errors(path), ExitStack() as stack:
            refuse_unusable_folder(path)
            path.mkdir(parents=True, exist_ok=True)
            stack.callback(lock_folder(path).release)
            files = RunFiles(path)
            self.journal = stack.enter_context(Journal(path / JOURNAL, self._prepare_files(files)))
            try:
                read_prompts(path, self.identity)
            except JournalError:
                # a new run has no prompts yet, and a kill during an extension leaves the old ones
                with open_atomic(path / PROMPTS) as file:
                    _write_prompts(file, prompts)
            set_old_scores_aside(files)
            self.scores = stack.enter_context(
                Journal(path / SCORES, as_json(current_score_versions()))
            )
            self._resources = stack.pop_all()

    def _prepare_files(self, files: RunFiles) -> JsonObject:
        """Make the stored files those of this run, and return the header of its journal."""
        if not files.has_sample:
            # A run may have begun here, but without a sample nothing needs protection. Compressed
            # files are unpacked first, so that they are removed too.
            unpack_files(self.path)
            for name in (SCORES, JOURNAL, PROMPTS, RECEIPT):
                (self.path / name).unlink(missing_ok=True)
            return as_json(self.identity)
        self.identity = extend_identity(files, self.identity, self.prompts)
        unpack_files(self.path)
        if files.identity == self.identity:
            # The stored header may have fields that this version does not know. A journal cannot
            # be opened with another header than its own.
            return files.journal.header
        # an extended run is unfinished again, and a receipt would say that it is finished
        (self.path / RECEIPT).unlink(missing_ok=True)
        header = as_json(self.identity)
        with open_atomic(self.path / PROMPTS) as file:
            _write_prompts(file, self.prompts)
            # The old prompts are replaced only when this block ends. If the disk is too full for
            # the header's copy, the old run stays whole.
            replace_header(self.path / JOURNAL, header)
        return header

    def note(self, key_prefix: str, facts: Mapping[str, Any]) -> None:
        """Note in the journal that a session begins, or its timing; the prefix says which."""
        note_number = 1 + sum(key.startswith(key_prefix) for key in self.journal.keys)
        self.journal.append({"key": f"{key_prefix}{note_number}", **facts})

    @property
    def sample_keys(self) -> set[str]:
        """Keys of the recorded samples."""
        return {
            key for key in self.journal.keys if not key.startswith((SESSION_PREFIX, TIMING_PREFIX))
        }

    def sync_if_due(self) -> None:
        """Make all records safe from a power cut, every few seconds."""
        self.journal.sync_if_due()
        self.scores.sync_if_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()


def _write_prompts(file: IO[bytes], prompts: Sequence[StoredPrompt]) -> None:
    file.writelines(msgspec.json.encode(prompt) + b"\n" for prompt in prompts)


def lock_folder(path: Path) -> FileLock:
    """Lock the folder for this process, as its only writer. The lock ends with the process.

    Raises:
        JournalError: another process has the lock.
    """
    file_lock = FileLock(path / LOCK_NAME)
    try:
        file_lock.acquire(timeout=0)
    except Timeout:
        raise JournalError(
            f"{path} is in use by another mless process. Wait for it, or choose another --output."
        ) from None
    except (OSError, NotImplementedError) as error:
        raise JournalError(f"{path} cannot be locked: {error}. Choose another --output.") from None
    return file_lock


def refuse_unusable_folder(path: Path, journal_name: str = JOURNAL) -> None:
    """Raise JournalError if a folder holds other files and not the file that a run begins with.

    It does so too if nothing can be written there.
    """
    leftovers = (LOCK_NAME, PROMPTS, f"{PROMPTS}.part", f"{journal_name}.part")
    existing_folder = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    try:
        # permissions do not show that /proc and read-only disks take no files, so one is made
        TemporaryFile(dir=existing_folder).close()
    except OSError:
        raise JournalError(
            f"{existing_folder} is not a writable folder. Choose another --output."
        ) from None
    if not path.exists() or is_stored(path / journal_name):
        return
    if any(file.name not in leftovers for file in path.iterdir()):
        raise JournalError(
            f"{path} already holds files, and none is {journal_name}. Choose another --output."
        )


def extend_identity(
    files: RunFiles, requested_identity: Identity, prompts: Sequence[StoredPrompt]
) -> Identity:
    """The identity of the folder's run after it is continued as the requested run.

    A run can be extended by problems, samples and conditions, as long as its prompts stay the same:
    then nothing that is recorded becomes wrong. The contrasts that it tests stay too, so added
    conditions are exploratory. Problems or samples that are added to a finished run, whose table
    was printed, cost a further look.

    Raises:
        JournalError: the run has other settings, or its prompts are damaged. The message names
            each setting with its old and its new value.
    """
    stored_identity = files.identity
    extended_identity = replace(requested_identity, looks=stored_identity.looks)
    if stored_identity == extended_identity:
        return extended_identity
    if {*stored_identity.contrasts} <= {*requested_identity.contrasts}:
        # a contrast of an added condition is exploratory, so it cannot become the primary one
        is_primary_stored = requested_identity.primary in stored_identity.contrasts
        primary = requested_identity.primary if is_primary_stored else stored_identity.primary
        extended_identity = replace(
            extended_identity, contrasts=stored_identity.contrasts, primary=primary
        )
    changes = _describe_changes(files, extended_identity, prompts)
    if changes:
        raise changed_settings_error(files.path / JOURNAL, changes)
    # counted by condition and not by task, because each sample can have a task of its own
    stored_prompt_counts = Counter(prompt.condition for prompt in files.prompts)
    requested_prompt_counts = Counter(prompt.condition for prompt in prompts)
    adds_samples = any(
        requested_prompt_counts[task.condition] > stored_prompt_counts[task.condition]
        or extended_identity.tasks[task_name].samples > task.samples
        for task_name, task in stored_identity.tasks.items()
    )
    if adds_samples and (files.path / RECEIPT).is_file():
        extended_identity = replace(extended_identity, looks=stored_identity.looks + 1)
    return extended_identity


def _describe_changes(
    files: RunFiles, identity: Identity, prompts: Sequence[StoredPrompt]
) -> list[str]:
    """Each setting that may not change when a run continues, with its old and new value."""
    prompt_changes = _list_prompt_changes(files.prompts, prompts)
    requested_header = as_json(identity)
    # compared with the header after its permitted growth, so that growth is not listed
    grown_header = _grow_header(
        as_json(files.identity), requested_header, keeps_prompts=not prompt_changes
    )
    return [*prompt_changes, *list_differences(grown_header, requested_header)]


def _list_prompt_changes(
    stored_prompts: Sequence[StoredPrompt], requested_prompts: Sequence[StoredPrompt]
) -> list[str]:
    """The changes of stored prompts. One that several conditions have is named once."""
    requested_prompt_by_task_and_id = {
        (prompt.task, prompt.doc["id"]): prompt for prompt in requested_prompts
    }
    changes: list[str] = []
    for prompt in stored_prompts:
        problem_id = prompt.doc["id"]
        requested_prompt = requested_prompt_by_task_and_id.get((prompt.task, problem_id))
        if requested_prompt is None:
            changes.append(f"{prompt.task}: problem {problem_id} is not asked any more")
        elif requested_prompt != prompt:
            differences = list_differences(as_json(prompt), as_json(requested_prompt))
            changes += [f"problem {problem_id}, {difference}" for difference in differences]
    return list(dict.fromkeys(changes))


def _grow_header(
    stored_header: JsonObject, requested_header: JsonObject, *, keeps_prompts: bool
) -> JsonObject:
    """The stored header with the values of the requested one where growth is permitted.

    Args:
        stored_header: The journal's first line.
        requested_header: That of the run as which it is continued.
        keeps_prompts: Whether the requested run has every stored prompt unchanged.
    """
    grown_header = dict(stored_header)
    # More problems: a higher limit, or a lower one that leaves out no stored prompt.
    limit = requested_header["limit"]
    if keeps_prompts or (limit or math.inf) > (stored_header["limit"] or math.inf):
        grown_header["limit"] = limit
    if not keeps_prompts:
        return grown_header
    # More prompts, of more problems of the dataset, which keeps its name.
    grown_header["prompts_sha256"] = requested_header["prompts_sha256"]
    dataset_name = stored_header["dataset"]["name"]
    grown_header["dataset"] = {**requested_header["dataset"], "name": dataset_name}
    # More samples and repeat runs of a task; a header has its tasks under the key `arms`.
    requested_tasks, grown_tasks = requested_header["arms"], {}
    for task_name, task in stored_header["arms"].items():
        counts = {
            key: max(task[key], requested_tasks[task_name][key])
            for key in ("samples", "replicates")
        }
        grown_tasks[task_name] = {**task, **counts}
    grown_header["arms"] = grown_tasks
    # More tasks. If no stored task changed otherwise, `EXTENSION_KEYS` have only added tasks.
    if grown_tasks.items() <= requested_tasks.items():
        grown_header["arms"] = requested_tasks
        extensions = {key: requested_header["config"].get(key) for key in EXTENSION_KEYS}
        grown_header["config"] = {**stored_header["config"], **extensions}
    return grown_header


def set_old_scores_aside(files: RunFiles) -> None:
    """Rename scores of another version, so that every sample is graded again."""
    folder = files.path
    if files.score_versions not in (None, current_score_versions()):
        paths = (folder / f"old-scores-{number}.jsonl" for number in count(1))
        (folder / SCORES).replace(next(path for path in paths if not is_stored(path)))
