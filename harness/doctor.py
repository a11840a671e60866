"""Is this installation able to run? Each check says what it found and, where it fails, the fix."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import resources
from harness.datasets import MATH500_REPOSITORY, PATH_VARIABLE, load_math500
from harness.errors import HarnessError
from harness.receipts import package_version
from harness.tokenization import explain_hub_error, load_tokenizer, refuse_missing_folder

NEEDED_DISK_GIB = 5
NEEDED_MEMORY_GIB = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome. `fix` is empty when there is nothing to mend; `fatal` when nothing runs without it."""

    subject: str
    found: str
    fix: str = ""
    fatal: bool = True


def diagnose(model: str | None = None) -> list[Finding]:
    """Run every check; none of them raises, loads weights, or leaves anything behind."""
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("lm-eval", _lm_eval),
        ("torch", _torch),
        ("vllm", _vllm),
        ("tokenizer", lambda: _tokenizer(model or str(resources.demo_model()))),
        ("data", _data),
        ("hub", lambda: _hub(model)),
        ("disk", _disk),
        ("memory", _memory),
    ]
    findings = []
    for subject, check in checks:
        try:
            findings.append(check())
        except HarnessError as error:
            findings.append(Finding(subject=subject, found="fails", fix=str(error)))
        except Exception as error:  # a broken package may raise anything at import
            findings.append(Finding(subject=subject, found=f"{type(error).__name__}: {error}", fix=_REINSTALL))
    return findings


_REINSTALL = "Install again from the lock: in a checkout `rm -rf .venv && make .venv`."


def _python() -> Finding:
    found = sys.version.split()[0]
    old = sys.version_info < (3, 11)
    return Finding(subject="python", found=found, fix="mless needs Python 3.11 or newer." if old else "")


def _lm_eval() -> Finding:
    importlib.import_module("lm_eval.api.task")
    found = package_version("lm-eval") or "?"
    sound = found.startswith("0.4.") and int(found.split(".")[2]) >= 13
    return Finding(subject="lm-eval", found=found, fix="" if sound else "pip install 'lm-eval>=0.4.13,<0.5'")


def _torch() -> Finding:
    torch = importlib.import_module("torch")
    where = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU build"
    if torch.cuda.is_available():
        where += f", {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    fix = ""
    if torch.version.cuda and not torch.cuda.is_available():
        fix = "A CUDA build of torch, and no GPU is visible: check the driver, or install mless[cpu] from the CPU lock."
    return Finding(subject="torch", found=f"{torch.__version__} ({where})", fix=fix, fatal=False)


def _vllm() -> Finding:
    named = package_version("vllm")
    if package_version("vllm-cpu") and not (named and "cpu" in named):
        return Finding(
            subject="vllm",
            found=f"vllm-cpu {package_version('vllm-cpu')}, but no distribution named vllm",
            fix="lm-eval asks for the version of `vllm`; in a checkout: pip install ./packaging/vllm-cpu-name",
        )
    if named is None:
        return Finding(
            subject="vllm",
            found="not installed",
            fix="pip install 'mless[gpu]' on a GPU machine; in a checkout on a CPU `make .venv`.",
        )
    importlib.import_module("vllm")
    platform = importlib.import_module("vllm.platforms").current_platform
    number = tuple(int(part) for part in named.split("+")[0].split(".")[:2])
    if number < (0, 24):
        return Finding(subject="vllm", found=named, fix="pip install 'vllm>=0.24'")
    kind = platform.device_type
    if not kind:
        return Finding(
            subject="vllm", found=f"{named}, no platform", fix="vLLM sees no device: install mless[cpu], or the driver."
        )
    return Finding(subject="vllm", found=f"{named} on {kind}")


def _tokenizer(name: str) -> Finding:
    resolved = resources.resolve_model(name)
    refuse_missing_folder(resolved)
    tokenizer = load_tokenizer(resolved)
    chat = "with" if tokenizer.chat_template else "without"
    return Finding(subject="tokenizer", found=f"{Path(resolved).name}: {len(tokenizer)} tokens, {chat} a chat template")


def _data() -> Finding:
    dataset = load_math500()
    return Finding(subject="data", found=f"{len(dataset.problems)} problems from {dataset.source}")


def _hub(model: str | None) -> Finding:
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        return Finding(subject="hub", found="not asked: HF_HUB_OFFLINE is set")
    from huggingface_hub import HfApi

    name = model if model and model.count("/") == 1 and not Path(model).exists() else None
    try:
        if name:
            HfApi().auth_check(name)
        else:
            HfApi().dataset_info(MATH500_REPOSITORY, timeout=10)
    except Exception as error:
        return Finding(
            subject="hub",
            found=f"{name or MATH500_REPOSITORY} is out of reach",
            fix=explain_hub_error(name or MATH500_REPOSITORY, error)
            + f" For the bundled model and problems no hub is needed: {PATH_VARIABLE}=demo.",
            fatal=name is not None,
        )
    return Finding(subject="hub", found=f"{name or MATH500_REPOSITORY} is readable")


def _disk() -> Finding:
    home = Path(os.environ.get("HF_HOME", "~/.cache")).expanduser()
    while not home.exists():
        home = home.parent
    free = shutil.disk_usage(home).free / 2**30
    fix = f"Under {NEEDED_DISK_GIB} GiB: free some, or set HF_HOME elsewhere." if free < NEEDED_DISK_GIB else ""
    return Finding(subject="disk", found=f"{free:.0f} GiB free at {home}", fix=fix, fatal=False)


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    fix = f"Under {NEEDED_MEMORY_GIB} GiB: close programs, or use a smaller model." if free < NEEDED_MEMORY_GIB else ""
    return Finding(subject="memory", found=f"{free:.0f} GiB available", fix=fix, fatal=False)
