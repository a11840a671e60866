"""Resources of the installation and the machine: tasks, configs, the cache folder, cores."""

import os
from pathlib import Path

_PACKAGE_FOLDER = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """A folder such as `tasks`: next to the package in a checkout, inside it in a wheel."""
    packaged_folder = _PACKAGE_FOLDER / name
    return packaged_folder if packaged_folder.is_dir() else _PACKAGE_FOLDER.parent / name


def task_version() -> float:
    """The version of our lm-eval tasks, which rises when a prompt or its grading changes."""
    # the file ends with the version, as in `version: 7.0`
    text = (folder("tasks") / "math500" / "_math500.yaml").read_text(encoding="utf-8")
    return float(text.rpartition("version:")[2])


def cache_folder() -> Path:
    """The folder for files that mless can create again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "mless"


def count_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))
