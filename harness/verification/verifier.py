"""Do all steps of a verification into one folder, and check such a folder."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from harness.engines.gpus import gpus
from harness.errors import ConfigError, HarnessError
from harness.execution.scoring import grade_job
from harness.experiment.tokenizer import refuse_missing_folder
from harness.runs import receipts
from harness.runs.folder import (
    JOURNAL,
    RECEIPT,
    PromptPlaces,
    pack,
    read_prompts,
    read_samples,
    read_scores,
    refuse_file,
)
from harness.runs.journal import differences
from harness.runs.stored_files import hash_stored, write_whole
from harness.verification.model_under_test import Bench, open_bench
from harness.verification.processes import read_json, say
from harness.verification.record import (
    FORMAT,
    PAGE,
    RECORD,
    Outcome,
    Record,
    Settings,
    read_record,
    write_page,
    write_record,
)
from harness.verification.steps import STEPS, Step

LIMIT_MB = 10
"""A folder of this size can be committed or sent."""


def verify(folder: Path, settings: Settings) -> list[str]:
    """Do every step that is not done yet, write the page, and check the folder. The same call continues it if stopped.

    Returns:
        What is not as expected, in words.

    Raises:
        ModelError: the model's folder does not exist.
        JournalError: the folder is a file.
        ConfigError: the settings contradict each other, or the folder holds a verification with other settings, of
            another machine or other versions, or other files.
    """
    from harness.engines.vllm import device_type
    from harness.execution.run import termination_as_interrupt

    if settings.random_weights and settings.model is not None:
        raise ConfigError(f"--random-weights takes the place of --model {settings.model}: expected one. Leave one out.")
    if settings.model not in (None, "demo"):
        refuse_missing_folder(str(settings.model))
    refuse_file(folder)
    device = device_type()
    record = _begin(folder, settings, device)
    with termination_as_interrupt():
        bench = open_bench(folder.resolve(), settings, device)
        todo = [step for step in STEPS if record.steps.get(step.name, Outcome()).findings is None]
        for number, step in enumerate(todo):
            left = sum(one.minutes for one in todo[number:])
            say(f"{step.title} (about {left:.0f} minutes left on a GPU); {bench.log(step.name)}")
            record.steps[step.name] = _do(step, bench)
            write_record(folder, record)
    record.files = _hash_files(folder)
    record.finished = _now()
    write_record(folder, record)
    write_whole(folder / PAGE, write_page(record))
    size = sum((folder / name).stat().st_size for name in record.files) / 1e6
    say(f"{size:.1f} MB in {folder}" + (f", over {LIMIT_MB}" if size > LIMIT_MB else ""))
    return check(folder)


def _begin(folder: Path, settings: Settings, device: str | None) -> Record:
    """The record of a verification that is continued, or of a new one."""
    machine = {
        "device": device,
        "devices": ", ".join(gpu.name for gpu in gpus()),
        "driver": ", ".join(sorted({gpu.driver for gpu in gpus()})),
        "cores": len(os.sched_getaffinity(0)),
        **{name: number for name, number in receipts.versions().items() if number},
        "git revision": receipts.git_revision(),
    }
    wanted = Record(
        format=FORMAT, settings=settings, machine=machine, started=_now(), finished=None, steps={}, files={}
    )
    if (folder / RECORD).is_file():
        begun = read_record(folder)
        old, new = (msgspec.to_builtins({"settings": one.settings, "machine": one.machine}) for one in (begun, wanted))
        if changed := differences(old, new):
            raise ConfigError(
                f"{folder} was begun with other settings, on another machine or with other versions. Changed: "
                f"{'; '.join(changed[:4])}. Choose another --output."
            )
        return begun
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} already holds files, and none is {RECORD}. Choose another --output.")
    folder.mkdir(parents=True, exist_ok=True)
    return wanted


def _do(step: Step, bench: Bench) -> Outcome:
    """Measure one step anew and derive its findings, or say why there are none."""
    if step.needs not in (None, bench.device):
        skipped = f"Not done: it needs {step.needs}, and this is {bench.device}."
        return Outcome(title=step.title, skipped=skipped)
    folder = bench.folder / step.name
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    try:
        step.measure(bench, folder)
        for run in folder.glob("*/" + JOURNAL):
            for log in run.parent.glob("samples_*.jsonl"):  # `mless regrade` writes them again
                log.unlink()
            pack(run.parent)
        findings = step.derive(folder)
    except Exception as error:  # the other steps can still be done
        said = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        say(f"failed: {said}")
        return Outcome(title=step.title, error=said)
    for finding in findings:
        if finding.holds is False:
            say(f"not as expected: {finding.measure}: {finding.value}, expected {finding.expected}")
    return Outcome(title=step.title, seconds=round(time.monotonic() - started, 1), findings=findings)


def check(folder: Path) -> list[str]:
    """Derive every finding again from the folder's files, and compare. It needs no GPU and no model.

    It finds what does not fit together: changed files, numbers that are not those of the files, verdicts that are not
    the grader's, missing steps. It cannot tell whether the files were measured at all.

    Returns:
        What differs, is missing or is not as expected, in words; empty if everything fits.

    Raises:
        RunError: there is no verification, or one of another format.
    """
    record = read_record(folder)
    wrong = [*_wrong_files(folder, record), *_wrong_runs(folder)]
    for step in STEPS:
        outcome = record.steps.get(step.name, Outcome(error="not done"))
        try:
            wrong += [f"{step.name}: {text}" for text in _wrong_step(step, folder / step.name, outcome, record)]
        except Exception as error:  # a file of the folder may hold anything
            wrong.append(f"{step.name}: cannot be derived: {type(error).__name__}: {error}")
    written = folder / PAGE
    if not written.is_file() or written.read_text(encoding="utf-8") != write_page(record):
        wrong.append(f"{PAGE} is not what the record says")
    return wrong


def _wrong_files(folder: Path, record: Record) -> Iterator[str]:
    """Name the files that are not as they were recorded."""
    there = _hash_files(folder)
    for name, sha256 in record.files.items():
        if name not in there:
            yield f"{name} is missing"
        elif there[name] != sha256:
            yield f"{name} is not the file that was recorded"
    yield from (f"{name} was not there when the folder was recorded" for name in there if name not in record.files)


def _wrong_runs(folder: Path) -> Iterator[str]:
    """Name the runs whose receipt has hashes of other files, or whose verdicts are not the grader's."""
    for receipt in sorted(folder.glob(f"*/run/{RECEIPT}")):
        run = receipt.parent
        try:
            files = read_json(receipt)["files"]
            for name, sha256 in files.items():
                if hash_stored(run / name) != sha256:
                    yield f"{run.parent.name}: its receipt has the hash of another {name}"
            if changed := _count_changed_verdicts(run):
                yield f"{run.parent.name}: grading again changes {changed} verdicts"
        except Exception as error:
            yield f"{run.parent.name}: its run cannot be read: {type(error).__name__}: {error}"
        say(f"{run.parent.name}: completions graded again")


def _count_changed_verdicts(run: Path) -> int:
    """Samples of a run that get another verdict when their completion is graded again."""
    from harness.grading import GraderPool

    prompts, scores = read_prompts(run), read_scores(run)
    places = PromptPlaces(prompts)
    with GraderPool() as pool:
        for sample in read_samples(run):
            pool.submit(sample.key, grade_job(prompts[places.find(sample)], sample))
        return sum(grade.verdict != scores[str(key)].verdict for key, grade in pool.drain())  # type: ignore[union-attr]


def _wrong_step(step: Step, folder: Path, outcome: Outcome, record: Record) -> Iterator[str]:
    """Say what of one step is missing, differs or is not as expected."""
    if outcome.error:
        yield f"not done: {outcome.error}"
    elif outcome.findings is None:
        if step.needs in (None, record.machine["device"]):
            yield "left out, though this device can do it"
    else:
        found = step.derive(folder)
        if len(found) != len(outcome.findings):
            yield f"recorded {len(outcome.findings)} findings, derived {len(found)}"
        for old, new in zip(outcome.findings, found, strict=False):
            if not _equal(old.value, new.value):
                yield f"{new.measure}: recorded {old.value}, derived {new.value}"
            elif msgspec.structs.replace(old, value=new.value) != new:
                yield f"{new.measure}: recorded {old}, derived {new}"
        for finding in found:
            if finding.holds is False:
                yield f"{finding.measure}: {finding.value}, expected {finding.expected}"


def _equal(old: Any, new: Any) -> bool:
    """Whether two values are equal; floats may differ in their last digits."""
    if isinstance(old, float) and isinstance(new, (int, float)):
        return math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
    return bool(old == new)


def _hash_files(folder: Path) -> dict[str, str]:
    """SHA-256 of the verification's files by name, without logs of processes, the record and the page."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if name not in (RECORD, PAGE) and not name.startswith("logs/") and path.name != ".lock"
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
