"""What a verification keeps: its settings, its machine and its findings, as a file for programs and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from harness.errors import RunError
from harness.runs.records import refuse_other_format
from harness.runs.stored_files import write_whole

RECORD, PAGE = "verify.json", "README.md"
FORMAT = 2
"""Goes up when the record, or a file that a step writes, has another form."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What is verified.

    Attributes:
        model: Model folder or hub name; None for Qwen2.5-Math-1.5B from the hub, `demo` for the bundled model.
        random_weights: Use random weights in the shape of Qwen2.5-Math-1.5B instead.
        limit: Problems of each run at most; None for all.
        overrides: Changes to the run configs of the model, as `KEY=VALUE`.
    """

    model: str | None = None
    random_weights: bool = False
    limit: int | None = None
    overrides: tuple[str, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """One line of the page.

    Attributes:
        measure: What was measured.
        value: The number, or a word.
        unit: The number's unit.
        expected: What would be right, in words; empty where nothing is expected.
        holds: Whether the value is as expected; None where nothing is expected.
    """

    measure: str
    value: int | float | str | None
    unit: str = ""
    expected: str = ""
    holds: bool | None = None


def expect(measure: str, value: int | str, wanted: int | str) -> Finding:
    """A finding that must be one value."""
    return Finding(measure, value, expected=str(wanted), holds=value == wanted)


def expect_under(measure: str, value: float, limit: float, unit: str = "") -> Finding:
    """A finding that must be under a limit."""
    return Finding(measure, value, unit, f"under {limit:g}", value < limit)


class Outcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of one step.

    Attributes:
        title: What the step shows.
        findings: None if the step was not done.
        seconds: How long it took.
        skipped: Why it was left out; empty if it was not.
        error: Why it failed; empty if it did not.
    """

    title: str = ""
    findings: list[Finding] | None = None
    seconds: float = 0.0
    skipped: str = ""
    error: str = ""


class Record(msgspec.Struct, kw_only=True):
    """A verification.

    Attributes:
        settings: What was verified.
        machine: Devices, driver, cores, versions and git revision.
        started, finished: Times; `finished` is None until every step was tried.
        steps: The outcome of each step by its name.
        files: SHA-256 of each file of the folder.
        format: `FORMAT`.
    """

    settings: Settings
    machine: dict[str, Any]
    started: str
    finished: str | None
    steps: dict[str, Outcome]
    files: dict[str, str]
    format: int


def write_record(folder: Path, record: Record) -> None:
    """Write the record into the verification's folder."""
    write_whole(folder / RECORD, msgspec.json.format(msgspec.json.encode(record)).decode() + "\n")


def read_record(folder: Path) -> Record:
    """Read the record of a verification.

    Raises:
        RunError: there is no verification, or one of another format.
    """
    try:
        read = msgspec.json.decode((folder / RECORD).read_bytes())
        refuse_other_format(read, folder / RECORD, FORMAT)
        return msgspec.convert(read, Record)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunError(f"{folder} holds no verification: {RECORD} cannot be read ({error}). Check the path.") from None


def write_page(record: Record) -> str:
    """The record as Markdown."""
    settings, machine = record.settings, record.machine
    name = Path(settings.model or "Qwen2.5-Math-1.5B").name
    if settings.random_weights:
        name = f"random weights in the shape of {name}"
    lines = [
        f"# mless verify: {name} on {machine['devices'] or machine['device']}",
        "",
        f"Written by `mless verify` from {record.started} to {record.finished}. "
        "`mless verify --check FOLDER` derives every number here again, without a GPU.",
        "",
    ]
    if settings.limit:
        lines += [f"**A rehearsal:** {settings.limit} problems at most in each run.", ""]
    lines += ["| machine | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in machine.items() if value]
    for outcome in record.steps.values():
        lines += ["", f"## {outcome.title}", ""]
        if outcome.findings is None:
            lines.append(outcome.skipped or f"Failed: {outcome.error}")
            continue
        lines += ["| measure | value | expected | holds |", "| --- | ---: | --- | --- |"]
        lines += [_row(finding) for finding in outcome.findings]
        lines += ["", f"Took {outcome.seconds:.0f} s."]
    return "\n".join(lines) + "\n"


def _row(finding: Finding) -> str:
    value = str(finding.value)
    if isinstance(finding.value, float):
        value = f"{finding.value:.3g}" if abs(finding.value) < 1 else f"{finding.value:,.1f}"
    elif isinstance(finding.value, int):
        value = f"{finding.value:,}"
    holds = {True: "yes", False: "**no**", None: ""}[finding.holds]
    return f"| {finding.measure} | {value} {finding.unit} | {finding.expected} | {holds} |"
