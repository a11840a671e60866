"""Find the runs that a user names: folders of mless, folders of lm-eval's logs, and single logs."""

from collections.abc import Sequence
from pathlib import Path

from harness.errors import ConfigError
from harness.runs.logs.harness_logs import INSPECT, LM_EVAL, find_kind
from harness.runs.run_files import JOURNAL, RECEIPT
from harness.runs.stored_files import is_stored

RunPath = Path | dict[str, Path]
"""A run's folder or sample log, or the sample logs of a run by condition."""


def locate(names: Sequence[str]) -> list[RunPath]:
    """The runs that the user names.

    Args:
        names: Run folders, folders with lm-eval's logs, sample logs; a folder of these stands for
            all finished runs in it. `CONDITION=FILE` names a log's condition, and all logs of
            lm-eval that are named so are one run.

    Raises:
        ConfigError: a condition or a log is named twice, or a name is not a file name.
    """
    logs: dict[str, Path] = {}
    runs: list[RunPath] = []
    for name in names:
        condition, equals, file = name.partition("=")
        try:
            if not equals or Path(name).exists():
                runs += _runs_in(Path(name))
                continue
        except OSError as error:
            raise ConfigError(f"{name[:60]}: expected a run's path: {error.strerror}.") from None
        if find_kind(Path(file)) != LM_EVAL:
            runs.append({condition: Path(file)})
            continue
        if condition in logs or Path(file) in logs.values():
            raise ConfigError(f"{name}: its condition or its log is named twice.")
        logs[condition] = Path(file)
    return [*runs, logs] if logs else runs


def locate_one(names: Sequence[str]) -> RunPath:
    """The run that the user names, for a command that takes one run.

    Raises:
        ConfigError: there are several.
    """
    runs = locate(names)
    if len(runs) != 1:
        raise ConfigError(f"Expected one run, got {len(runs)}: {', '.join(map(str, runs))}.")
    return runs[0]


def _runs_in(path: Path) -> list[Path]:
    """The run itself, or the finished runs in a folder of runs and in its subfolders.

    lm-eval makes a folder for each model around its logs.
    """
    if not path.is_dir() or is_stored(path / JOURNAL) or _is_run(path):
        return [path]
    folders: list[Path] = []
    for child in _subfolders(path):
        folders += [child] if _is_run(child) else _subfolders(child)
    # the reader of the folder raises the error
    if runs := list(filter(_is_run, folders)):
        return runs
    logs = [file for file in path.glob("*.*") if find_kind(file) == INSPECT]
    return sorted(logs) or [path]


def has_run_files(folder: Path) -> bool:
    """Whether a folder is one of mless, finished or not."""
    return is_stored(folder / RECEIPT) or is_stored(folder / JOURNAL)


def _is_run(folder: Path) -> bool:
    """Whether a folder has a finished run, or lm-eval's logs that are not the files of a run."""
    if has_run_files(folder):
        return (folder / RECEIPT).is_file()
    return any(folder.glob("samples_*.jsonl"))


def _subfolders(path: Path) -> list[Path]:
    return sorted(filter(Path.is_dir, path.iterdir()))
