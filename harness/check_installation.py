"""Is this installation able to run? Each check says what it found, and how to mend what is amiss: `mless doctor`.

What cannot be found out (without a hub, a GPU or a tool) is said, and is no failure. What an engine's own error says is
not asked here: it is explained when an engine starts (`engines/start_errors.py`).
"""

from __future__ import annotations

import importlib
import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from harness import smollm2_model
from harness.engines.devices import describe_gpu_processes
from harness.errors import HarnessError, explain_hub_error
from harness.experiment.problems import (
    MATH500_REPOSITORY,
    MATH500_REVISION,
    PATH_VARIABLE,
    open_dataset,
)
from harness.experiment.tokenizer import load_tokenizer
from harness.runs.versions_and_hashes import package_version

HUB_SECONDS = 3.0
"""How long `mless doctor` waits for the hub."""


@dataclass(frozen=True, slots=True)
class Check:
    """The outcome of one check.

    Attributes:
        found: What was found.
        fix: How to mend it; empty when there is nothing to mend.
        fatal: Whether nothing runs without the fix.
        subject: What was checked.
    """

    found: str
    fix: str = ""
    fatal: bool = True
    subject: str = ""

    @property
    def result(self) -> str:
        """In a word."""
        return "ok" if not self.fix else "FAIL" if self.fatal else "note"


def check_installation(model: str | None = None) -> list[Check]:
    """Run every check. None of them raises, loads weights, or leaves anything behind."""
    checks: dict[str, Callable[[], Check]] = {
        "python": lambda: Check(
            platform.python_version()
        ),  # an older one than mless allows cannot import it
        "lm-eval": lambda: _version("lm-eval"),
        "vllm": lambda: _version("vllm", extra="gpu"),
        "device": _device,
        **({"tokenizer": partial(_tokenizer, model)} if model else {}),
        "data": _data,
        "hub": lambda: _hub(model),
    }
    found = []
    for subject, run in checks.items():
        try:
            check = run()
        except HarnessError as error:
            check = Check("fails", str(error))
        except Exception as error:  # a broken package may raise anything at import
            check = Check(
                "fails",
                f"{type(error).__name__}: {error}. Install again: `rm -rf .venv && make .venv`.",
            )
        found.append(replace(check, subject=subject))
    return found


def _version(name: str, extra: str = "") -> Check:
    """Whether a package's version is one that mless's own metadata ask for, those of its `extra` included."""
    found = package_version(name)
    for needed in map(Requirement, requires("mless") or ()):
        if needed.name == name and (
            needed.marker is None or needed.marker.evaluate({"extra": extra})
        ):
            sound = found is not None and needed.specifier.contains(found, prereleases=True)
            return Check(
                found or "not installed", "" if sound else f"pip install '{name}{needed.specifier}'"
            )
    return Check(
        found or "not installed",
        "mless's own metadata ask for no such package: install mless again.",
    )


def _device() -> Check:
    """What torch sees, and who holds its memory."""
    torch = importlib.import_module("torch")
    build = torch.version.cuda or getattr(torch.version, "hip", None)
    with warnings.catch_warnings(action="ignore"):  # of an old driver: then no GPU is available
        available = torch.cuda.is_available()
    if not available:
        fix = (
            f"torch is built for {build} and sees no GPU: check the driver and CUDA_VISIBLE_DEVICES."
            if build
            else ""
        )
        return Check(f"CPU, torch {torch.__version__}", fix, fatal=False)
    found = (
        f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, torch {torch.__version__}"
    )
    return Check(found, describe_gpu_processes(), fatal=False)


def _tokenizer(name: str) -> Check:
    return Check(
        f"{Path(name).name}: {len(load_tokenizer(smollm2_model.resolve_model(name)))} tokens"
    )


def _data() -> Check:
    if os.environ.get(PATH_VARIABLE, "").strip():
        dataset = open_dataset("math500")
        return Check(f"{len(dataset.problems)} problems from {dataset.source}")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    if any(cache.glob(f"*/*/*/{MATH500_REVISION}")):
        return Check(f"MATH-500 in {cache}")
    return Check(f"MATH-500 from the hub, or {PATH_VARIABLE}=FILE.jsonl")


def _hub(model: str | None) -> Check:
    """Whether the hub gives a model, or else MATH-500."""
    from huggingface_hub import HfApi

    is_name = model and model.count("/") == 1 and not model.startswith((".", "/", "~"))
    named = model if is_name and not Path(str(model)).exists() else None
    try:
        if named is None:
            HfApi().dataset_info(MATH500_REPOSITORY, timeout=HUB_SECONDS)
        else:
            HfApi().auth_check(named)
    except Exception as error:
        name = named or MATH500_REPOSITORY
        fix = f"{explain_hub_error(name, error)} The model smollm2 and problems that are made need no hub."
        return Check(f"{name} is out of reach", fix, fatal=named is not None)
    return Check(f"{named or MATH500_REPOSITORY} is readable")
