"""An open run folder: its lock, what a run adds to it, and whether the run can be continued."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self

import msgspec
from filelock import FileLock, Timeout
from msgspec.structs import replace

from harness.constants import JsonObject
from harness.errors import JournalError
from harness.runs.journal import Journal, changed_settings_error, list_differences, replace_header
from harness.runs.records import NOTE_KEY_PREFIXES, Identity, StoredPrompt, as_json
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
EXTENSION_KEYS = "conditions repeats replicates positive_control template question fewshot".split()
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
        self.path = path
        self.identity = identity
        self.prompts = prompts
        with explain_write_errors(path), ExitStack() as stack:
            refuse_unusable_folder(path)
            path.mkdir(parents=True, exist_ok=True)
            stack.callback(lock_folder(path).release)
            files = RunFiles(path)
            if files.has_sample:
                self.identity = extend_identity(files, identity, prompts)
            header = _prepare_journal(files, self.identity, prompts)
            self.journal = stack.enter_context(Journal(path / JOURNAL, header))
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

    def note(self, key_prefix: str, facts: JsonObject) -> None:
        """Note in the journal that a session begins, or its timing; the prefix says which."""
        note_number = 1 + sum(key.startswith(key_prefix) for key in self.journal.keys)
        self.journal.append({"key": f"{key_prefix}{note_number}"} | facts)

    @property
    def sample_keys(self) -> set[str]:
        """Keys of the recorded samples."""
        return {key for key in self.journal.keys if not key.startswith(NOTE_KEY_PREFIXES)}

    def sync_if_due(self) -> None:
        """Make all records safe from a power cut, every few seconds."""
        self.journal.sync_if_due()
        self.scores.sync_if_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()


def _prepare_journal(
    files: RunFiles, identity: Identity, prompts: Sequence[StoredPrompt]
) -> JsonObject:
    """Prepare a folder for a run with this identity. Returns the header to open its journal with.

    The files of a run without samples are removed. An extended run gets its new header and prompts,
    and loses its receipt. The files of a run that is continued as it is stay as they are.
    """
    header = as_json(identity)
    path = files.path
    unpack_files(path)
    if not files.has_sample:
        # without a sample nothing needs protection
        for name in (SCORES, JOURNAL, PROMPTS, RECEIPT):
            (path / name).unlink(missing_ok=True)
        return header
    if files.identity == identity:
        # The stored header may have fields that this version does not know. A journal cannot be
        # opened with another header than its own.
        return files.journal.header
    # an extended run is unfinished again, and a receipt would say that it is finished
    (path / RECEIPT).unlink(missing_ok=True)
    with open_atomic(path / PROMPTS) as file:
        _write_prompts(file, prompts)
        # The old prompts are replaced only when this block ends. If the disk is too full for the
        # header's copy, the old run stays whole.
        replace_header(path / JOURNAL, header)
    return header


def _write_prompts(file: IO[bytes], prompts: Sequence[StoredPrompt]) -> None:
    """Write each prompt as a line of JSON."""
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
    # the files that a process leaves if it is killed before its journal exists
    harmless_names = (LOCK_NAME, PROMPTS, f"{PROMPTS}.part", f"{journal_name}.part")
    # a missing folder will be made in the nearest parent that exists
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
    if any(file.name not in harmless_names for file in path.iterdir()):
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
    was printed, cost a further look: a further test of each contrast, for which its p is adjusted.

    Raises:
        JournalError: the run has other settings, or its prompts are damaged. The message names
            each setting with its old and its new value.
    """
    stored_identity = files.identity
    new_identity = replace(requested_identity, looks=stored_identity.looks)
    if stored_identity == new_identity:
        return new_identity
    new_identity = _keep_contrasts(stored_identity, new_identity)
    prompt_changes = _list_prompt_changes(files.prompts, prompts)
    # With the permitted changes made, all remaining differences are changes that are not permitted.
    permitted_identity = _grow_identity(
        stored_identity, new_identity, keeps_prompts=not prompt_changes
    )
    differences = list_differences(as_json(permitted_identity), as_json(new_identity))
    if changes := [*prompt_changes, *differences]:
        raise changed_settings_error(files.path / JOURNAL, changes)
    # All stored prompts are still there. So there are added problems, or samples with prompts of
    # their own, exactly if the stored conditions have more prompts than before.
    stored_conditions = {task.condition for task in stored_identity.tasks.values()}
    prompt_count = sum(prompt.condition in stored_conditions for prompt in prompts)
    adds_samples = any(
        new_identity.tasks[task_name].samples > task.samples
        for task_name, task in stored_identity.tasks.items()
    )
    adds_data = adds_samples or prompt_count > len(files.prompts)
    # only the table of a finished run was printed
    if adds_data and (files.path / RECEIPT).is_file():
        return replace(new_identity, looks=stored_identity.looks + 1)
    return new_identity


def _keep_contrasts(stored_identity: Identity, requested_identity: Identity) -> Identity:
    """The requested identity with the stored contrasts, if it has all of them.

    The contrasts of added conditions are exploratory. So they are not among the tested ones, and
    none of them becomes the primary one.
    """
    if not {*stored_identity.contrasts} <= {*requested_identity.contrasts}:
        return requested_identity
    primary = stored_identity.primary
    if requested_identity.primary in stored_identity.contrasts:
        primary = requested_identity.primary
    return replace(requested_identity, contrasts=stored_identity.contrasts, primary=primary)


def _list_prompt_changes(
    stored_prompts: Sequence[StoredPrompt], requested_prompts: Sequence[StoredPrompt]
) -> list[str]:
    """The changes of stored prompts. One that several conditions have is named once."""
    requested_prompt_by_task_and_id = {
        (prompt.task, prompt.doc["id"]): prompt for prompt in requested_prompts
    }
    changes = []
    for prompt in stored_prompts:
        problem_id = prompt.doc["id"]
        requested_prompt = requested_prompt_by_task_and_id.get((prompt.task, problem_id))
        if requested_prompt is None:
            changes.append(f"{prompt.task}: problem {problem_id} is not asked any more")
        elif requested_prompt != prompt:
            differences = list_differences(as_json(prompt), as_json(requested_prompt))
            changes += [f"problem {problem_id}, {difference}" for difference in differences]
    return list(dict.fromkeys(changes))


def _grow_identity(
    stored_identity: Identity, requested_identity: Identity, *, keeps_prompts: bool
) -> Identity:
    """The stored identity with the values of the requested one where growth is permitted.

    `keeps_prompts` says whether the requested run has every stored prompt unchanged.
    """
    # More problems: a higher limit, or a lower one that leaves out no stored prompt.
    limit = stored_identity.limit
    if keeps_prompts or (requested_identity.limit or math.inf) > (limit or math.inf):
        limit = requested_identity.limit
    if not keeps_prompts:
        return replace(stored_identity, limit=limit)
    # More samples and repeat runs of a task.
    tasks = {}
    for name, task in stored_identity.tasks.items():
        requested_task = requested_identity.tasks[name]
        tasks[name] = replace(
            task,
            samples=max(task.samples, requested_task.samples),
            replicates=max(task.replicates, requested_task.replicates),
        )
    # More tasks. If no stored task changed otherwise, `EXTENSION_KEYS` have only added tasks.
    config = stored_identity.config
    if tasks.items() <= requested_identity.tasks.items():
        tasks = requested_identity.tasks
        config = config | {key: requested_identity.config.get(key) for key in EXTENSION_KEYS}
    return replace(
        stored_identity,
        limit=limit,
        # More problems bring more prompts. The dataset's hash changes with them, its name does not.
        prompts_sha256=requested_identity.prompts_sha256,
        dataset=replace(requested_identity.dataset, name=stored_identity.dataset.name),
        tasks=tasks,
        config=config,
    )


def set_old_scores_aside(files: RunFiles) -> None:
    """Rename scores of another version, so that every sample is graded again."""
    if files.score_versions not in (None, current_score_versions()):
        candidate_paths = (files.path / f"old-scores-{number}.jsonl" for number in count(1))
        (files.path / SCORES).replace(next(path for path in candidate_paths if not is_stored(path)))
