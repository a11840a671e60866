"""Making lm-eval's bare `--tasks math500_mless` work: thin YAML files in its own task folder, and their removal.

lm-eval 0.4.13 finds tasks outside its own folder by `--include_path` only. A link is a file of two lines that
includes ours by absolute path, in a folder of its own, with a mark by which it is known again.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from harness import resources
from harness.errors import ConfigError, MissingDependencyError

MARK = "# Written by `mless tasks --link`; removed by `mless tasks --unlink`."
LINK_FOLDER = "mless_links"


def include_path() -> Path:
    """What to give to lm-eval's `--include_path`."""
    return resources.folder("tasks")


def task_files() -> list[Path]:
    """The YAML files of all tasks and groups, templates left out."""
    return sorted(path for path in include_path().rglob("*.yaml") if not path.name.startswith("_"))


def link() -> list[Path]:
    """Write one link a task and return them. Linking again renews the links.

    Raises:
        MissingDependencyError: lm-eval is not installed.
        ConfigError: its task folder is not writable, or our folder there holds files that are not ours.
    """
    folder = _link_folder()
    if folder.exists():
        unlink()
    try:
        folder.mkdir()
        links = []
        for target in task_files():
            path = folder / target.name
            # the name must stand in the file itself: lm-eval's index does not follow includes
            name = next(
                line
                for line in target.read_text(encoding="utf-8").splitlines()
                if line.startswith(("task: ", "group:"))
            )
            path.write_text(f"{MARK}\ninclude: {target.resolve()}\n{name}\n", encoding="utf-8")
            links.append(path)
    except OSError as error:
        raise ConfigError(
            f"Cannot write to lm-eval's task folder {folder.parent} ({error.strerror}). "
            f"Use `lm_eval --include_path {include_path()}` instead."
        ) from None
    return links


def unlink() -> list[Path]:
    """Remove the links and return what was removed; files that are not ours are left and refused.

    Raises:
        MissingDependencyError: lm-eval is not installed.
        ConfigError: the folder holds files that are not ours.
    """
    folder = _link_folder()
    if not folder.is_dir():
        return []
    files = [path for path in folder.iterdir() if path.name != "__pycache__"]
    foreign = [p for p in files if p.is_dir() or not p.read_text(encoding="utf-8", errors="replace").startswith(MARK)]
    if foreign:
        raise ConfigError(
            f"{folder} holds files that `mless tasks --link` did not write: {', '.join(p.name for p in foreign)}. "
            "Move them away; nothing was removed."
        )
    shutil.rmtree(folder)
    return sorted(files)


def _link_folder() -> Path:
    found = importlib.util.find_spec("lm_eval")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError(
            "lm-eval is not installed. Install mless with its dependencies: pip install mless."
        )
    return Path(found.submodule_search_locations[0]) / "tasks" / LINK_FOLDER
