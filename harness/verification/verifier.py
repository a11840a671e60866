"""The verification as a whole: steps done one after another into one folder, its page, and its check."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import receipts
from harness.datasets import PATH_VARIABLE
from harness.errors import ConfigError, HarnessError, RunError
from harness.gpus import gpus
from harness.run_folder import JOURNAL, pack, write_whole
from harness.verification.sides import say
from harness.verification.steps import Bench, Step, steps

RECORD, PAGE, LOGS = "verify.json", "README.md", "logs"
LIMIT_MB = 10
"""A folder of this size can be committed or sent."""
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
    """Do every step that is not done yet, and write the page. The same call continues what was interrupted.

    Returns:
        The titles of the steps that failed, or whose findings are not as expected.

    Raises:
        ConfigError: the folder holds a verification with other settings, or other files.
    """
    from harness.vllm_adapter import device_type

    device = device_type()
    record = _begin(folder, settings, device)
    bench = _bench(folder.resolve(), settings, device)
    todo = [step for step in steps() if "findings" not in record["steps"].get(step.name, {})]
    for number, step in enumerate(todo):
        left = sum(one.minutes for one in todo[number:])
        place = f"{len(steps()) - len(todo) + number + 1} of {len(steps())}"
        say(f"{place}: {step.title} (about {left:.0f} minutes left on a GPU); {bench.log(step.name)}")
        record["steps"][step.name] = {"title": step.title, **_do(step, bench)}
        write_whole(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    record["files"] = _hash_files(folder)
    record["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
    write_whole(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    write_whole(folder / PAGE, page(record))
    size = sum(path.stat().st_size for path in _kept(folder)) / 1e6
    say(f"{size:.1f} MB in {folder}" + (f", over {LIMIT_MB}" if size > LIMIT_MB else ""))
    return _unmet(record)


def check(folder: Path) -> list[str]:
    """Derive every finding again from the folder's files, and compare; needs no GPU and no model.

    Returns:
        What differs from the folder's record, in words; empty if nothing does.

    Raises:
        RunError: there is no verification.
    """
    record = _read_record(folder)
    wrong = []
    for name, sha256 in record["files"].items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            wrong.append(f"{name} is not the file that was recorded")
    there = {str(path.relative_to(folder)) for path in _kept(folder)}
    if extra := sorted(there - record["files"].keys() - {RECORD, PAGE}):
        wrong.append(f"{extra[0]} was not there when the folder was recorded")
    known = {step.name: step for step in steps()}
    for name, recorded in record["steps"].items():
        if "findings" not in recorded:
            continue
        if (step := known.get(name)) is None:
            wrong.append(f"{name}: this version of mless knows no such step")
            continue
        try:
            found = [asdict(finding) for finding in step.derive(folder / step.name)]
        except (HarnessError, OSError, ValueError, LookupError) as error:
            wrong.append(f"{step.name}: cannot be derived: {error}")
            continue
        for old, new in zip(recorded["findings"], found, strict=False):
            if not _same(old, new):
                wrong.append(f"{step.name}: {old['measure']}: recorded {old['value']}, derived {new['value']}")
        if len(found) != len(recorded["findings"]):
            wrong.append(f"{step.name}: recorded {len(recorded['findings'])} findings, derived {len(found)}")
        say(f"{step.name}: {len(found)} findings derived")
    written = folder / PAGE
    if not written.is_file() or written.read_text(encoding="utf-8") != page(record):
        wrong.append(f"{PAGE} is not what the record says")
    return wrong


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
    wanted = json.loads(json.dumps(asdict(settings)))
    if (folder / RECORD).is_file():
        record = _read_record(folder)
        if record["settings"] != wanted or record["machine"]["device"] != device:
            raise ConfigError(
                f"{folder} holds a verification with other settings: expected {wanted} on {device}, got "
                f"{record['settings']} on {record['machine']['device']}. Choose another --output."
            )
        return record
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} already holds files, and none is {RECORD}. Choose another --output.")
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "settings": wanted,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "device": device,
            "devices": ", ".join(gpu.name for gpu in gpus()),
            "driver": ", ".join(sorted({gpu.driver for gpu in gpus()})),
            "cores": len(os.sched_getaffinity(0)),
            **{name: number for name, number in receipts.versions().items() if number},
            "git revision": receipts.git_revision(),
        },
        "steps": {},
        "files": {},
    }


def _bench(folder: Path, settings: Settings, device: str | None) -> Bench:
    """What the settings mean on this machine. A model with random weights is written when it is first asked for."""
    model = settings.model
    if settings.random_weights:
        from harness.verification.random_model import SHAPE, write_random_model

        say("writing a model with random weights, about a minute")
        model = str(write_random_model(receipts.cache_folder() / "random-weights" / SHAPE))
    version = receipts.engine_identity("vllm", {})["version"] or "0"
    replays = device == "cuda" and tuple(map(int, version.split("+")[0].split(".")[:2])) >= FIRST_REPLAYING
    bundled = model == "demo" or (settings.random_weights and PATH_VARIABLE not in os.environ)
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
    except HarnessError as error:
        say(f"failed: {error}")
        return {"error": str(error)}
    for finding in findings:
        if finding["holds"] is False:
            say(f"not as expected: {finding['measure']}: {finding['value']}, expected {finding['expected']}")
    return {"seconds": round(time.monotonic() - started, 1), "findings": findings}


def _read_record(folder: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return record
    except (OSError, ValueError) as error:
        raise RunError(f"{folder} holds no verification: {RECORD} cannot be read ({error}). Check the path.") from None


def _kept(folder: Path) -> list[Path]:
    """The files that belong to the verification; logs of processes do not."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return [path for path in files if path.relative_to(folder).parts[0] != LOGS]


def _hash_files(folder: Path) -> dict[str, str]:
    names = {str(path.relative_to(folder)): path for path in _kept(folder)}
    return {n: hashlib.sha256(p.read_bytes()).hexdigest() for n, p in names.items() if n not in (RECORD, PAGE)}


def _unmet(record: Mapping[str, Any]) -> list[str]:
    return [
        one["title"]
        for one in record["steps"].values()
        if "error" in one or any(finding["holds"] is False for finding in one.get("findings", ()))
    ]


def _subject(settings: Mapping[str, Any]) -> str:
    if settings["random_weights"]:
        return "random weights in the shape of Qwen2.5-Math-1.5B"
    return Path(settings["model"]).name if settings["model"] else "Qwen2.5-Math-1.5B"


def _same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether two findings are equal, floats but for their last digits."""
    a, b = old["value"], new["value"]
    if isinstance(a, float) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) and {**old, "value": 0} == {**new, "value": 0}
    return bool(dict(old) == dict(new))


def _row(finding: Mapping[str, Any]) -> str:
    number = str(value := finding["value"])
    if isinstance(value, float):
        number = f"{value:.3g}" if abs(value) < 1 else f"{value:,.1f}"
    elif isinstance(value, int):
        number = f"{value:,}"
    holds = {True: "yes", False: "**no**", None: ""}[finding["holds"]]
    return f"| {finding['measure']} | {number} {finding['unit']} | {finding['expected']} | {holds} |"
