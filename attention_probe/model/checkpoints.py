"""Safetensors checkpoints, in a folder or on the hub: which tensors there are, and reading only those asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from harness import resources
from harness.errors import ModelError
from harness.experiment.tokens import explain_hub_error, refuse_missing_folder

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONVERT = (
    "Convert it: AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) with transformers writes "
    "safetensors."
)


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint's tensors by name; nothing is read before it is asked for, and no file fetched.

    Attributes:
        name: As the user gave it.
        folder: Where its files lie; None on the hub.
        revision: Asked for, on the hub.
        commit: What the revision stands for; None for a folder.
        config_sha256: Of config.json.
        files: The file that holds each tensor.
        bytes_read: Of tensors, as stored, so far.
    """

    name: str
    folder: Path | None
    revision: str | None = None
    commit: str | None = None
    config_sha256: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    bytes_read: int = 0

    def tensor(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """A whole tensor, as another type."""
        with self._file_of(name) as file:
            stored: torch.Tensor = file.get_tensor(name)
            self.bytes_read += stored.nbytes
            return stored.to(dtype, copy=True)

    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's shape, without reading it."""
        with self._file_of(name) as file:
            return tuple(file.get_slice(name).get_shape())

    def rows(self, name: str, rows: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Some rows of a matrix, as another type; neighbouring rows are read together.

        Args:
            name: The matrix.
            rows: Ascending, each once.
            dtype: To convert to.
        """
        with self._file_of(name) as file:
            stored = file.get_slice(name)
            taken = torch.cat([stored[start:end] for start, end in _runs(rows)])
            self.bytes_read += taken.nbytes
            return taken.to(dtype, copy=True)

    def locate(self, file: str) -> Path | None:
        """Where one of the checkpoint's files lies, fetched from the hub if need be; None if there is no such file.

        Raises:
            ModelError: the hub refuses or cannot be reached.
        """
        if self.folder is not None:
            path = self.folder / file
            return path if path.is_file() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(hf_hub_download(self.name, file, revision=self.commit or self.revision))
        except Exception as error:
            unreachable = isinstance(error, LocalEntryNotFoundError)
            # without the hub, a cache that lacks the single file may still have the index
            if isinstance(error, EntryNotFoundError) and (file == SINGLE or not unreachable):
                return None
            raise ModelError(explain_hub_error(self.name, error)) from error

    @contextmanager
    def _file_of(self, name: str) -> Iterator[Any]:
        file = self.files[name]
        path = self.locate(file)
        if path is None:
            raise ModelError(
                f"{self.name} has no {file}, and its index says that tensor {name} is in it. Fetch the missing file, "
                "or the whole model again."
            )
        try:
            # opened anew for each tensor: a file kept open keeps in memory all that was read from it
            with safe_open(path, framework="pt") as opened:
                yield opened
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"Tensor {name} cannot be read from {file} of {self.name}: {error}. The file is torn or is not what "
                "the index says; fetch it again."
            ) from error


def open_checkpoint(name: str, *, revision: str | None = None) -> Checkpoint:
    """Find a model's tensors, by its single file or its index; of a sharded model on the hub no weights are fetched.

    Args:
        name: A folder, a hub name, or `demo` for the bundled model.
        revision: Of a hub name.

    Raises:
        ModelError: there is no such folder or hub name, or it holds no safetensors.
    """
    name = resources.resolve_model(name)
    refuse_missing_folder(name)
    folder = Path(name).expanduser()
    checkpoint = Checkpoint(name=name, folder=folder if folder.is_dir() else None, revision=revision)
    config = checkpoint.locate("config.json")
    if config is None:
        raise ModelError(
            f"{name} has no config.json. Expected a model as save_pretrained writes it: config.json and safetensors."
        )
    checkpoint.config_sha256 = hashlib.sha256(config.read_bytes()).hexdigest()
    if checkpoint.folder is None:
        checkpoint.commit = config.parent.name
    if (single := checkpoint.locate(SINGLE)) is not None:
        try:
            with safe_open(single, framework="pt") as file:
                checkpoint.files = dict.fromkeys(file.keys(), SINGLE)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{single} is not a readable safetensors file: {error}. Fetch it again.") from error
    elif (index := checkpoint.locate(INDEX)) is not None:
        checkpoint.files = _read_index(index)
    else:
        where = sorted(p.name for p in config.parent.iterdir() if p.suffix in {".bin", ".pth", ".pt", ".gguf"})
        found = f"found {', '.join(where)}" if where else "found no weights"
        raise ModelError(
            f"{name} has no safetensors: expected {SINGLE} or {INDEX}, {found}. The probe reads single tensors, and "
            f"only safetensors allows that. {CONVERT}"
        )
    return checkpoint


def _read_index(path: Path) -> dict[str, str]:
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        return {str(tensor): str(file) for tensor, file in files.items()}
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelError(
            f"{path} is not an index of safetensors: expected JSON with a `weight_map` from tensor names to files. "
            "Fetch it again."
        ) from error


def _runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as half-open runs of neighbours."""
    start = end = rows[0]
    for row in rows:
        if row > end:
            yield start, end
            start = row
        end = row + 1
    yield start, end
