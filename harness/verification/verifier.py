"""The verification as a whole: steps done one after another into one folder, its page, and its check."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.engines.gpus import gpus
from harness.errors import ConfigError, DataError, HarnessError, RunError
from harness.experiment.problems import load_math500
from harness.runs import receipts
from harness.runs.folder import JOURNAL, RECEIPT, pack, write_whole
from harness.runs.journal import differences
from harness.verification.findings import changed_verdicts
from harness.verification.measures import Bench
from harness.verification.sides import say
from harness.verification.steps import Step, steps

RECORD, PAGE, LOGS = "verify.json", "README.md", "logs"
LIMIT_MB = 10
"""A folder of this size can be committed or sent."""
FORMAT = 1
FIRST_REPLAYING = (0, 29)
"""The first vLLM that can be made to write given tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is verified.

    Attributes:
        model: Model folder or hub name; None for Qwen2.5-Math-1.5B from the hub, `demo` for the bundled model.
        random_weights: Take that model's exact shape with random weights instead.
        limit: Problems of each run at most; None for all.
        overrides: Changes to the run configs of the model, as `KEY=VALUE`.
    """

    model: str | None = None
    random_weights: bool = False
    limit: int | None = None
    overrides: tuple[str, ...] = ()


def verify(folder: Path, settings: Settings) -> list[str]:
    """Do every step that is not done yet, write the page, and check it all; the same call continues what was stopped.

    Returns:
        What is not as expected, in words.

    Raises:
        ConfigError: the settings contradict each other, or the folder holds a verification with other settings, of
            another machine or other versions, or other files.
    """
    from harness.engines.vllm import device_type
    from harness.execution.run import termination_as_interrupt

    if settings.random_weights and settings.model is not None:
        raise ConfigError(f"--random-weights takes the place of --model {settings.model}: expected one. Leave one out.")
    device = device_type()
    record = _begin(folder, settings, device)
    with termination_as_interrupt():
        bench = _bench(folder.resolve(), settings, device)
        todo = [step for step in steps() if "findings" not in record["steps"].get(step.name, {})]
        for number, step in enumerate(todo):
            left = sum(one.minutes for one in todo[number:])
            place = f"{len(steps()) - len(todo) + number + 1} of {len(steps())}"
            say(f"{place}: {step.title} (about {left:.0f} minutes left on a GPU); {bench.log(step.name)}")
            record["steps"][step.name] = {"title": step.title, **_do(step, bench)}
            _write_record(folder, record)
    record["files"] = _hash_files(folder)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    _write_record(folder, record)
    write_whole(folder / PAGE, page(record))
    size = sum(path.stat().st_size for path in _kept(folder)) / 1e6
    say(f"{size:.1f} MB in {folder}" + (f", over {LIMIT_MB}" if size > LIMIT_MB else ""))
    return check(folder)


def check(folder: Path) -> list[str]:
    """Derive every finding again from the folder's files, and compare; needs no GPU and no model.

    It finds what does not fit together: files that were changed, numbers that are not those of the files, verdicts that
    are not the grader's, steps that are missing. Whether files were measured at all, no check can tell.

    Returns:
        What differs, is missing or is not as expected, in words; empty if nothing.

    Raises:
        RunError: there is no verification, or one of another format.
    """
    record = _read_record(folder)
    wrong = [*_wrong_files(folder, record), *_wrong_runs(folder)]
    for step in steps():
        recorded = record["steps"].get(step.name, {"error": "not done"})
        try:
            wrong += [f"{step.name}: {text}" for text in _wrong_step(step, folder / step.name, recorded, record)]
        except Exception as error:  # a file of the folder may hold anything
            wrong.append(f"{step.name}: cannot be derived: {type(error).__name__}: {error}")
    written = folder / PAGE
    if not written.is_file() or written.read_text(encoding="utf-8") != page(record):
        wrong.append(f"{PAGE} is not what the record says")
    return wrong


def _wrong_files(folder: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """Files that are not as they were recorded."""
    there = _hash_files(folder)
    for name, sha256 in record["files"].items():
        if name not in there:
            yield f"{name} is missing"
        elif there[name] != sha256:
            yield f"{name} is not the file that was recorded"
    yield from (f"{name} was not there when the folder was recorded" for name in sorted(there.keys() - record["files"]))


def _wrong_runs(folder: Path) -> Iterator[str]:
    """Runs whose receipt speaks of other files, or whose verdicts are not the grader's."""
    for receipt in sorted(folder.glob(f"*/run/{RECEIPT}")):
        run = receipt.parent
        try:
            files = json.loads(receipt.read_text(encoding="utf-8"))["files"]
            for name, sha256 in files.items():
                if receipts.hash_stored(run / name) != sha256:
                    yield f"{run.parent.name}: its receipt speaks of another {name}"
            if changed := changed_verdicts(run):
                yield f"{run.parent.name}: grading again changes {changed} verdicts"
        except Exception as error:
            yield f"{run.parent.name}: its run cannot be read: {type(error).__name__}: {error}"
        say(f"{run.parent.name}: completions graded again")


def _wrong_step(step: Step, folder: Path, recorded: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[str]:
    """What of one step is missing, differs, or is not as expected."""
    if "error" in recorded:
        yield f"not done: {recorded['error']}"
    elif "findings" not in recorded:
        if step.needs in (None, record["machine"]["device"]):
            yield "left out, though this device can do it"
    else:
        found = [asdict(finding) for finding in step.derive(folder)]
        if len(found) != len(recorded["findings"]):
            yield f"recorded {len(recorded['findings'])} findings, derived {len(found)}"
        for old, new in zip(recorded["findings"], found, strict=False):
            for name in new:
                if not _same(old.get(name), new[name]):
                    what = new["measure"] if name == "value" else f"{new['measure']}, {name}"
                    yield f"{what}: recorded {old.get(name)}, derived {new[name]}"
        for finding in found:
            if finding["holds"] is False:
                yield f"{finding['measure']}: {finding['value']}, expected {finding['expected']}"


def page(record: Mapping[str, Any]) -> str:
    """The record as Markdown."""
    settings, machine = record["settings"], record["machine"]
    lines = [
        f"# mless verify: {_subject(settings)} on {machine['devices'] or machine['device']}",
        "",
        f"Written by `mless verify` from {record['started']} to {record['finished']}. "
        "`mless verify --check FOLDER` derives every number here again, without a GPU.",
        "",
    ]
    if settings["limit"]:
        lines += [f"**A rehearsal:** {settings['limit']} problems at most in each run.", ""]
    lines += ["| machine | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in machine.items() if value]
    for one in record["steps"].values():
        lines += ["", f"## {one['title']}", ""]
        if "findings" not in one:
            lines.append(one.get("skipped") or f"Failed: {one.get('error', 'not done')}")
            continue
        lines += ["| measure | value | expected | holds |", "| --- | ---: | --- | --- |"]
        lines += [_row(finding) for finding in one["findings"]]
        lines += ["", f"Took {one['seconds']:.0f} s."]
    return "\n".join(lines) + "\n"


def _begin(folder: Path, settings: Settings, device: str | None) -> dict[str, Any]:
    """The record of a verification that goes on, or of a new one."""
    machine = {
        "device": device,
        "devices": ", ".join(gpu.name for gpu in gpus()),
        "driver": ", ".join(sorted({gpu.driver for gpu in gpus()})),
        "cores": len(os.sched_getaffinity(0)),
        **{name: number for name, number in receipts.versions().items() if number},
        "git revision": receipts.git_revision(),
    }
    wanted = json.loads(json.dumps({"settings": asdict(settings), "machine": machine}))
    if (folder / RECORD).is_file():
        record = _read_record(folder)
        if changed := differences({name: record[name] for name in wanted}, wanted):
            raise ConfigError(
                f"{folder} was begun with other settings, on another machine or with other versions. Changed: "
                f"{'; '.join(changed[:4])}. Choose another --output."
            )
        return record
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} already holds files, and none is {RECORD}. Choose another --output.")
    folder.mkdir(parents=True, exist_ok=True)
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return {"format": FORMAT, **wanted, "started": started, "finished": None, "steps": {}, "files": {}}


def _write_record(folder: Path, record: Mapping[str, Any]) -> None:
    write_whole(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def _bench(folder: Path, settings: Settings, device: str | None) -> Bench:
    """What the settings mean on this machine. A model with random weights is written when it is first asked for."""
    model = settings.model
    if settings.random_weights:
        from harness.verification.random_model import SHAPE, write_random_model

        say("writing a model with random weights, about a minute")
        model = str(write_random_model(receipts.cache_folder() / "random-weights" / SHAPE))
    version = receipts.engine_identity("vllm", {}).version or "0"
    replays = device == "cuda" and tuple(map(int, version.split("+")[0].split(".")[:2])) >= FIRST_REPLAYING
    bundled = model == "demo"
    if not bundled:
        try:
            load_math500()
        except DataError as error:
            say(f"the bundled problems take the place of MATH-500. {error}")
            bundled = True
    return Bench(
        folder=folder,
        model=model,
        device=device,
        limit=settings.limit,
        random=settings.random_weights,
        replays=replays,
        data="demo" if bundled else None,
        overrides=settings.overrides,
    )


def _do(step: Step, bench: Bench) -> dict[str, Any]:
    """One step's entry in the record: its findings, or why it has none."""
    if step.needs not in (None, bench.device):
        return {"skipped": f"Not done: it needs {step.needs}, and this is {bench.device}."}
    folder = bench.folder / step.name
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    try:
        step.measure(bench, folder)
        for run in folder.glob("*/" + JOURNAL):
            for log in run.parent.glob("samples_*.jsonl"):  # `mless regrade` writes them again
                log.unlink()
            pack(run.parent)
        findings = [asdict(finding) for finding in step.derive(folder)]
    except Exception as error:  # the other steps can still be done
        said = str(error) if isinstance(error, HarnessError) else f"{type(error).__name__}: {error}"
        say(f"failed: {said}")
        return {"error": said}
    for finding in findings:
        if finding["holds"] is False:
            say(f"not as expected: {finding['measure']}: {finding['value']}, expected {finding['expected']}")
    return {"seconds": round(time.monotonic() - started, 1), "findings": findings}


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise RunError(f"{folder / RECORD} has the format {record['format']}: expected {FORMAT}. Verify again.")
        assert record.keys() >= {"settings", "machine", "started", "finished", "steps", "files"}
        return record
    except (OSError, ValueError, LookupError, TypeError, AssertionError) as error:
        raise RunError(f"{folder} holds no verification: {RECORD} cannot be read ({error}). Check the path.") from None


def _kept(folder: Path) -> list[Path]:
    """The files that belong to the verification; logs of processes do not."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return [path for path in files if path.relative_to(folder).parts[0] != LOGS]


def _hash_files(folder: Path) -> dict[str, str]:
    names = {str(path.relative_to(folder)): path for path in _kept(folder)}
    return {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in names.items() if n not in (RECORD, PAGE)}


def _subject(settings: Mapping[str, Any]) -> str:
    if settings["random_weights"]:
        return "random weights in the shape of Qwen2.5-Math-1.5B"
    return Path(settings["model"]).name if settings["model"] else "Qwen2.5-Math-1.5B"


def _same(old: Any, new: Any) -> bool:
    """Whether two values are equal, floats but for their last digits."""
    if isinstance(old, float) and isinstance(new, (int, float)):
        return math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
    return bool(old == new)


def _row(finding: Mapping[str, Any]) -> str:
    number = str(value := finding["value"])
    if isinstance(value, float):
        number = f"{value:.3g}" if abs(value) < 1 else f"{value:,.1f}"
    elif isinstance(value, int):
        number = f"{value:,}"
    holds = {True: "yes", False: "**no**", None: ""}[finding["holds"]]
    return f"| {finding['measure']} | {number} {finding['unit']} | {finding['expected']} | {holds} |"
