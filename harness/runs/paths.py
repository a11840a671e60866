"""Where runs lie that are named on a command line: every command takes the same kinds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import ConfigError
from harness.runs.folder import JOURNAL, RECEIPT
from harness.runs.journal import find_stored, is_stored

RunPath = Path | dict[str, Path]
"""A run's folder or sample log, or the sample logs of one run by condition."""


def locate(runs: Sequence[str]) -> list[RunPath]:
    """The runs that are named.

    Args:
        runs: Run folders, folders that lm-eval wrote logs into, sample logs; a folder of these stands for all finished
            runs in it. `CONDITION=FILE` names a log's condition, and all that are named so are one run.

    Raises:
        ConfigError: a condition is named twice, or a name is no file name.
    """
    named: dict[str, Path] = {}
    found: list[RunPath] = []
    for run in runs:
        condition, equals, file = run.partition("=")
        try:
            if not equals or Path(run).exists():
                found += _runs_in(Path(run))
                continue
        except OSError as error:
            raise ConfigError(f"{run[:60]}: expected a run's path: {error.strerror}.") from None
        if condition in named:
            raise ConfigError(f"{run}: the condition {condition!r} has a log already, {named[condition]}.")
        named[condition] = Path(file)
    return [*found, named] if named else found


def locate_one(runs: Sequence[str]) -> RunPath:
    """The run that is named, for a command that takes one.

    Raises:
        ConfigError: there are several.
    """
    found = locate(runs)
    if len(found) != 1:
        raise ConfigError(f"Expected one run, got {len(found)}: {', '.join(map(str, found))}.")
    return found[0]


def _runs_in(path: Path) -> list[Path]:
    """The run itself, or the finished runs in a folder of runs. lm-eval makes one folder per model around its logs."""
    if not path.is_dir() or is_stored(path / JOURNAL) or _is_run(path):
        return [path]
    once: dict[Path, Path] = {}  # a link beside what it leads to is no second run
    for folder in _folders(path):
        inside = [folder] if _is_run(folder) else _folders(folder)
        for run in inside:
            if _is_run(run) and (run == folder or not (run / RECEIPT).exists()):
                once.setdefault(run.resolve(), run)
    return list(once.values()) or [path]  # whose reader says what was expected


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a finished run, or lm-eval's logs."""
    logged = find_stored(folder, "samples_*.jsonl")
    return (folder / RECEIPT).is_file() or (not is_stored(folder / JOURNAL) and bool(logged))


def _folders(path: Path) -> list[Path]:
    """What is in a folder, links last."""
    return sorted((child for child in path.iterdir() if child.is_dir()), key=lambda child: (child.is_symlink(), child))
