"""A run on disk: which file is what, one writer at a time, and the journal that a run is continued from."""

from __future__ import annotations

import errno
import json
import lzma
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from harness.errors import JournalError, RunError
from harness.experiment.conditions import BASELINE
from harness.experiment.prompt import hash_text
from harness.experiment.requests import hash_prompts
from harness.grading import GRADER_VERSION
from harness.runs.journal import (
    PACKED,
    Journal,
    changed_settings,
    differences,
    has_samples,
    is_stored,
    open_stored,
    parse,
    read_header,
    read_notes,
    read_records,
)
from harness.runs.records import SESSION, TIMING, Keyed, Prompt, Sample, Score, Session, fit

JOURNAL, SCORES, PROMPTS, RECEIPT, LOCK = "journal.jsonl", "scores.jsonl", "prompts.jsonl", "run.json", ".lock"


class RunFolder:
    """An open run folder. Holds the lock, the journal and the scores; knows what is done.

    Args:
        path: The folder; made if it is missing.
        identity: What is being recorded: see `run.run_identity`.
        prompts: Every prompt with its document; written once.

    Raises:
        JournalError: another process has the folder, it belongs to a run with other settings, it is not a run folder,
            or it cannot be written.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]]) -> None:
        self.path = path
        with clear_messages(path), ExitStack() as opened:
            _make(path)
            opened.callback(lock(path).release)
            if changed := changes(path, identity):
                raise changed_settings(path / JOURNAL, changed)
            unpack(path)
            if not known_identity(path):  # begun, but without a sample yet: nothing there needs protection
                for name in (SCORES, JOURNAL):
                    (path / name).unlink(missing_ok=True)
                write_whole(path / PROMPTS, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in prompts))
            self.journal = opened.enter_context(Journal(path / JOURNAL, _as_begun(path, identity)))
            read_prompts(path)
            set_old_scores_aside(path)
            self.scores = opened.enter_context(Journal(path / SCORES, {"grader_version": GRADER_VERSION}))
            self._opened = opened.pop_all()

    @property
    def repairs(self) -> list[str]:
        """What was dropped at opening, in words."""
        return [text for text in (self.journal.mended, self.scores.mended) if text]

    def begin_session(self, facts: Mapping[str, Any]) -> None:
        """Note in the journal that a process takes over, and by what engine it will generate."""
        number = 1 + sum(key.startswith(SESSION) for key in self.journal.keys)
        self.journal.append({"key": f"{SESSION}{number}", **facts})

    def end_session(self, timing: Mapping[str, Any]) -> None:
        """Note in the journal what the session that ends has done, and how long it took."""
        number = sum(key.startswith(TIMING) for key in self.journal.keys)
        self.journal.append({"key": f"{TIMING}{number + 1}", **timing})

    @property
    def sample_keys(self) -> set[str]:
        """Keys of the samples that are there."""
        return {key for key in self.journal.keys if not Keyed(key).is_note}

    def sync_if_due(self) -> None:
        """Make what was written safe from a power cut, every few seconds."""
        self.journal.sync_if_due()
        self.scores.sync_if_due()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


def lock(path: Path) -> FileLock:
    """Be the folder's only writer; the lock goes when this process does.

    Raises:
        JournalError: another process is.
    """
    held = FileLock(path / LOCK)
    try:
        held.acquire(timeout=0)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, Timeout):
            raise JournalError(
                f"{path} is in use by another mless process. Wait for it, or choose another --output."
            ) from None
        raise JournalError(
            f"{path} cannot be locked: {error}. Choose an --output on a file system that can be written and has locks."
        ) from None
    return held


def read_identity(path: Path) -> dict[str, Any]:
    """The first line of the folder's journal.

    Raises:
        JournalError: there is none.
    """
    return read_header(path / JOURNAL)


def known_identity(path: Path) -> dict[str, Any]:
    """The journal's first line if samples follow it, else empty: a run without a sample may become any other run."""
    if not is_stored(path / JOURNAL) or not has_samples(path / JOURNAL):
        return {}
    return read_identity(path)


def read_sessions(path: Path, notes: Sequence[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Who wrote the journal, in order; of its `notes`, where they have been read."""
    found = read_notes(path / JOURNAL) if notes is None else notes
    return [record for record in found if record["key"].startswith(SESSION)]


def read_config(path: Path, notes: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The run config as the last session used it, all defaults spelled out.

    Raises:
        JournalError: no session has begun yet.
    """
    sessions = read_sessions(path, notes)
    if not sessions:
        raise JournalError(f"{path} holds no sample yet. Continue it with the command that began it.")
    fit(Session, sessions[-1], path / JOURNAL, "Restore it from a copy.")
    return dict(sessions[-1]["config"])


def find_timing(notes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """How long the last session that generated anything took, of a journal's notes; empty if none got to its end."""
    records = [record for record in notes if record["key"].startswith(TIMING)]
    generated = [record for record in records if record["samples"]] or records
    return {name: value for name, value in generated[-1].items() if name != "key"} if generated else {}


def read_samples(path: Path, notes: list[dict[str, Any]] | None = None) -> Iterator[Sample]:
    """Every sample of the folder's journal, in the order in which they finished; `notes` takes the other records.

    Raises:
        RunError: the file is missing or damaged, or a sample is there twice.
    """
    seen = set()
    for sample in read_records(path / JOURNAL, Sample, "Restore the file from a copy.", notes):
        if sample.key in seen:
            raise doubled(path, sample)
        seen.add(sample.key)
        yield sample


def doubled(path: Path, sample: Sample) -> RunError:
    """The error for a journal that has a sample twice."""
    return RunError(
        f"{path}: sample {sample.sample_index} of problem {sample.problem_id}, {sample.task}, occurs more than once. "
        f"Delete what is doubled from {JOURNAL}, or restore it from a copy."
    )


def read_scores(path: Path, name: str = SCORES) -> dict[str, Score]:
    """The score of every sample, by the sample's key.

    Raises:
        RunError: the file is missing or damaged, or a score says what no grader says.
    """
    return {score.key: score for score in stream_scores(path, name)}


def stream_scores(path: Path, name: str = SCORES) -> Iterator[Score]:
    """Every score, in the order in which they were made.

    Raises:
        RunError: the file is missing or damaged, or a score says what no grader says.
    """
    return read_records(path / name, Score, "Run `mless regrade` on the folder.")


def scores_version(path: Path) -> int | None:
    """The grader's version of the folder's scores; None where there are none."""
    if not is_stored(path / SCORES):
        return None
    version: int | None = read_header(path / SCORES).get("grader_version")
    return version


def count_expected_samples(prompts: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> int:
    """How many samples a finished run of these prompts has."""
    return sum(_count_expected(row, config) for row in prompts)


def _count_expected(prompt: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """The same of one prompt; the baseline may be run more than once."""
    runs = config.get("replicates", 1) if prompt["condition"] == BASELINE else 1
    return int(runs * config["samples_per_problem"])


def refuse_missing(
    path: Path, prompts: Sequence[Mapping[str, Any]], config: Mapping[str, Any], there: Sequence[int]
) -> None:
    """Refuse a run in which a prompt has fewer samples than a finished run has.

    Raises:
        JournalError: naming the problems that lack some.
    """
    short = [row for row, count in zip(prompts, there, strict=True) if count < _count_expected(row, config)]
    if short:
        named = "; ".join(f"problem {row['doc']['id']}, {row['task']}" for row in short[:3])
        more = f" and {len(short) - 3} more" if len(short) > 3 else ""
        raise JournalError(
            f"{path}: samples are missing: expected {count_expected_samples(prompts, config)}, got {sum(there)}. They "
            f"lack for {named}{more}. Continue the run by the command that began it, or restore {JOURNAL} from a copy."
        )


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Every prompt with its document.

    Raises:
        JournalError: the file is missing, or is not the one that the journal's first line speaks of.
    """
    begun = read_identity(path)
    try:
        with open_stored(path / PROMPTS) as stream:
            rows = [parse(line) for line in stream]
        whole = all(hash_text(row["prompt"]) == row["prompt_sha256"] for row in rows)
        if whole and hash_prompts(rows) == begun["prompts_sha256"]:
            for number, row in enumerate(rows, start=1):
                fit(Prompt, row, f"{path / PROMPTS}, line {number}", "Restore it from a copy.")
            return rows
    except (OSError, ValueError, KeyError, TypeError, RecursionError, JournalError):
        pass
    raise JournalError(
        f"{path / PROMPTS} is missing or damaged: it does not hold the prompts of the journal beside it. Restore it "
        "from a copy, or run the same config into a new --output and copy it from there."
    )


def next_free_folder(path: Path, identity: Mapping[str, Any]) -> Path:
    """The first of `NAME-2`, `NAME-3`, ... that does not exist, or in which this very run was begun."""
    number = 2
    while (found := path.with_name(f"{path.name}-{number}")).exists():
        begun = read_identity(found) if is_stored(found / JOURNAL) else {}
        if begun and not differences(begun, json.loads(json.dumps(_as_begun(found, identity)))):
            break  # another run may be loading its model in a folder that has no sample yet
        number += 1
    return found


def changes(path: Path, identity: Mapping[str, Any]) -> list[str]:
    """What differs between the run in the folder and the one that is wanted; empty if it can be continued."""
    known = known_identity(path)
    return differences(known, json.loads(json.dumps(_as_begun(path, identity)))) if known else []


def _as_begun(path: Path, identity: Mapping[str, Any]) -> Mapping[str, Any]:
    """The wanted identity, less the contrasts if the begun run registered none: continuing it registers none either."""
    known = known_identity(path).get("config")
    if known is None or "family" in known:
        return identity
    config = {k: v for k, v in identity["config"].items() if k in known or k not in ("primary", "family")}
    return {**identity, "config": config}


def _make(path: Path) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if not is_stored(path / JOURNAL) and any(p.name not in (LOCK, PROMPTS, f"{PROMPTS}.part") for p in path.iterdir()):
        raise JournalError(
            f"{path} already holds files, and none is a run's {JOURNAL}. Choose another --output; nothing was touched."
        )


def set_old_scores_aside(path: Path) -> None:
    """Scores of another grader version are kept under another name, and every sample is graded again."""
    version = scores_version(path)
    if version not in (None, GRADER_VERSION):
        (path / SCORES).replace(path / f"scores-grader-{version}.jsonl")


def pack(path: Path) -> None:
    """Compress a folder's JSON lines, to a tenth or less of their size.

    Every command reads a packed run as it is. What writes to it (continuing, regrading) unpacks it first.

    Raises:
        JournalError: another process has the folder, there is no run, or it cannot be written.
    """
    if not is_stored(path / JOURNAL):
        raise JournalError(f"{path} holds no run: expected {JOURNAL} in it. Check the path.")
    with clear_messages(path), lock(path):
        for file in sorted(path.glob("*.jsonl")):
            packed = _refuse_both(file)
            with write_atomic(packed) as part, file.open("rb") as source:
                with lzma.open(part, "wb", preset=9) as target:
                    shutil.copyfileobj(source, target)
                _sync(part)
            file.unlink()


def unpack(path: Path) -> None:
    """Undo `pack`; the caller holds the folder's lock.

    Raises:
        JournalError: a packed file is damaged, or lies beside its unpacked form.
    """
    for packed in sorted(path.glob(f"*.jsonl{PACKED}")):
        file = packed.with_suffix("")
        if file.exists():
            _refuse_both(file)
        with write_atomic(file) as part, open_stored(file) as source, part.open("wb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())
        packed.unlink()


def _refuse_both(file: Path) -> Path:
    """The name of a file's packed form, which must not be there: one of the two is older, and nobody knows which."""
    packed = file.with_name(file.name + PACKED)
    if packed.exists():
        raise JournalError(
            f"{file} and {packed.name} are both there, and only one can be the run's. Every command reads the first; "
            "delete the one that is not wanted."
        )
    return packed


def _sync(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def write_whole(path: Path, text: str) -> None:
    """Write a file that is either absent or whole."""
    with write_atomic(path) as part, part.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def write_atomic(path: Path) -> Iterator[Path]:
    """Where to write a file that, once this ends well, lies at `path`; otherwise nothing is left."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


class clear_messages:
    """Turn the operating system's errors into ours."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError):
            raise JournalError(
                f"{self._path} cannot be written: {error.strerror}. Choose an --output that can."
            ) from None
