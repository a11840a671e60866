"""Find the runs that a user names: folders of mless, folders of lm-eval's logs, and single logs."""

from collections.abc import Sequence
from pathlib import Path

from harness.errors import ConfigError
from harness.runs.logs.harness_logs import INSPECT, LM_EVAL, find_kind
from harness.runs.run_files import JOURNAL, RECEIPT
from harness.runs.stored_files import is_stored

RunPath = Path | dict[str, Path]
"""A run's folder or sample log, or the sample logs of a run by condition."""


def locate_runs(names: Sequence[str]) -> list[RunPath]:
    """The runs that the user names.

    Args:
        names: Run folders, folders with lm-eval's logs, sample logs; a folder of these stands for
            all finished runs in it. `CONDITION=FILE` names a log's condition, and all logs of
            lm-eval that are named so are one run.

    Raises:
        ConfigError: a condition or a log is named twice, or a name is not a file name.
    """
    log_path_by_condition: dict[str, Path] = {}
    run_paths: list[RunPath] = []
    for name in names:
        condition, separator, file_name = name.partition("=")
        try:
            # a path may contain `=` itself
            if not separator or Path(name).exists():
                run_paths += _find_runs(Path(name))
                continue
        except OSError as error:
            raise ConfigError(f"{name[:60]}: expected a run's path: {error.strerror}.") from None
        log_path = Path(file_name)
        # only logs of lm-eval are joined: any other file is a run of its own
        if find_kind(log_path) != LM_EVAL:
            run_paths.append({condition: log_path})
            continue
        if condition in log_path_by_condition or log_path in log_path_by_condition.values():
            raise ConfigError(f"{name}: its condition or its log is named twice.")
        log_path_by_condition[condition] = log_path
    return [*run_paths, log_path_by_condition] if log_path_by_condition else run_paths


def locate_run(names: Sequence[str]) -> RunPath:
    """The run that the user names, for a command that takes one run.

    Raises:
        ConfigError: there are several.
    """
    run_paths = locate_runs(names)
    if len(run_paths) != 1:
        raise ConfigError(
            f"Expected one run, got {len(run_paths)}: {', '.join(map(str, run_paths))}."
        )
    return run_paths[0]


def _find_runs(path: Path) -> list[Path]:
    """The run itself, or the finished runs in a folder of runs.

    They are its subfolders, or the subfolders of these, because lm-eval makes a folder for each
    model around its logs. Without any, they are the logs of Inspect in the folder.
    """
    if not path.is_dir() or has_run_files(path) or _is_run(path):
        return [path]
    folders = []
    for subfolder in _list_subfolders(path):
        folders += [subfolder] if _is_run(subfolder) else _list_subfolders(subfolder)
    if run_folders := list(filter(_is_run, folders)):
        return run_folders
    inspect_log_paths = [file for file in path.glob("*.*") if find_kind(file) == INSPECT]
    # a folder without any run is returned too, because its reader says what it lacks
    return sorted(inspect_log_paths) or [path]


def has_run_files(folder: Path) -> bool:
    """Whether a folder is one of mless, finished or not."""
    return is_stored(folder / RECEIPT) or is_stored(folder / JOURNAL)


def _is_run(folder: Path) -> bool:
    """Whether a folder has a finished run, or lm-eval's logs that are not the files of a run."""
    if has_run_files(folder):
        return (folder / RECEIPT).is_file()
    return any(folder.glob("samples_*.jsonl"))


def _list_subfolders(path: Path) -> list[Path]:
    """The folders in a folder, in the order of their names."""
    return sorted(filter(Path.is_dir, path.iterdir()))
