"""Is this installation able to run? `mless doctor` prints what each check found and how to fix it.

What cannot be checked (without a GPU or a tool) is reported, and is not a failure. Errors
that an engine reports itself are not checked here: they are explained when an engine starts
(`engines/start_errors.py`).
"""

import os
import platform
import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import requires, version

from packaging.requirements import Requirement

from harness.errors import HarnessError, print_message, quote_error
from harness.experiment.problems import PATH_VARIABLE, open_dataset
from harness.runs.versions_and_hashes import package_version

TESTED_PACKAGES = ("lm-eval", "transformers", "vllm")
"""Packages whose internals are used, so that other versions than the tested ones may fail."""


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        state: The version, device or source that is present, or the failure.
        fix: What to do; empty if nothing is wrong.
        is_fatal: Whether nothing runs without the fix.
    """

    state: str
    fix: str = ""
    is_fatal: bool = True

    @property
    def result(self) -> str:
        """`ok`, `note` or `FAIL`."""
        if not self.fix:
            return "ok"
        return "FAIL" if self.is_fatal else "note"


def check_installation() -> dict[str, Check]:
    """Run all checks, by subject. None of them raises, loads weights or leaves files behind."""
    run_check_by_subject: dict[str, Callable[[], Check]] = {
        # never a failure, because a Python that is too old for mless cannot import this module
        "python": lambda: Check(platform.python_version()),
        **{name: partial(check_version, name) for name in TESTED_PACKAGES},
        "device": _check_device,
        "data": _check_data,
    }
    return {subject: _run_check(run_check) for subject, run_check in run_check_by_subject.items()}


def _run_check(run_check: Callable[[], Check]) -> Check:
    """The outcome of a check. An error is an outcome too, and says what to do."""
    try:
        return run_check()
    except HarnessError as error:
        return Check("fails", str(error))
    except Exception as error:  # a broken package may raise anything at import
        if remedy := explain_missing(error):
            # not fatal: comparisons need none of these packages, and some backends need no vLLM
            return Check("not installed", remedy, is_fatal=False)
        return Check("fails", f"{quote_error(error)}. Install again: `rm -rf .venv && make .venv`.")


def check_version(package_name: str) -> Check:
    """Whether the version of a package fits the metadata of mless.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    installed_version = version(package_name)
    specifier = next(
        requirement.specifier
        for requirement in _read_requirements()
        if requirement.name == package_name
    )
    if specifier.contains(installed_version, prereleases=True):
        return Check(installed_version)
    return Check(installed_version, f"pip install '{package_name}{specifier}'")


def remark_on_versions() -> None:
    """Print a line for each package of a version that was not tested."""
    # `package_version` is None if a package is not installed
    for package_name in filter(package_version, TESTED_PACKAGES):
        check = check_version(package_name)
        if check.fix:
            print_message(f"{package_name} {check.state} was not tested with mless: {check.fix}")


def explain_missing(error: Exception) -> str:
    """What to install if a module is missing that mless needs; empty for any other error.

    The optional parts of mless, such as `mless[vllm]`, need further packages. All missing packages
    of the part that needs the module are named: the smallest part, because a part may contain
    another. They are named with their versions, because mless may have been installed from a
    clone, a wheel or an index.
    """
    package_name = str(getattr(error, "name", "")).partition(".")[0].replace("_", "-")
    requirements = _read_requirements()
    requirement_markers = [requirement.marker for requirement in requirements]
    package_markers = [
        requirement.marker for requirement in requirements if requirement.name == package_name
    ]
    if not package_markers:
        return ""
    # all packages of a part have the same marker, such as `extra == "vllm"`
    smallest_part_marker = min(package_markers, key=requirement_markers.count)
    missing_requirements = [
        str(requirement).partition(";")[0]
        for requirement in requirements
        if requirement.marker == smallest_part_marker and package_version(requirement.name) is None
    ]
    return f"Type `pip install {shlex.join(missing_requirements)}`."


def _read_requirements() -> list[Requirement]:
    """What mless's own metadata ask for; a package that is in several parts is named in each."""
    return list(map(Requirement, requires("mless") or ()))


def _check_device() -> Check:
    """The devices that torch sees."""
    import torch

    # without torch's warning of an old driver, because the advice below names the driver too
    with warnings.catch_warnings(action="ignore"):
        has_gpu = torch.cuda.is_available()
    if has_gpu:
        return Check(
            f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, "
            f"torch {torch.__version__}"
        )
    fix = ""
    if gpu_library_version := torch.version.cuda or torch.version.hip:
        fix = (
            f"torch is built for {gpu_library_version} and sees no GPU: check the driver and "
            "CUDA_VISIBLE_DEVICES."
        )
    return Check(f"CPU, torch {torch.__version__}", fix, is_fatal=False)


def _check_data() -> Check:
    """Whether the file that replaces MATH-500 can be read, if the user has named one."""
    if os.environ.get(PATH_VARIABLE, "").strip():
        dataset = open_dataset("math500")
        return Check(f"{len(dataset.problems)} problems from {dataset.source}")
    return Check(f"MATH-500 from the hub, or {PATH_VARIABLE}=FILE.jsonl")
