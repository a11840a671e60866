"""A run as one Parquet file: one row per sample, every column described, the run's receipt in the file's metadata."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from harness.errors import ConfigError
from harness.runs.folder import write_atomic
from harness.runs.sample_frame import load_run, read_receipt

RECEIPT_KEY = b"mless.receipt"
"""Under this key the file's metadata hold run.json."""

COLUMNS: dict[str, tuple[str, str]] = {
    "model": ("string", "the model's label"),
    "condition": ("category", "what stands between instruction and problem"),
    "layout": ("category", "how instruction, filler and problem make a prompt: raw, chat or as_published"),
    "problem_id": ("string", "the problem's id in its dataset"),
    "sample_index": ("int32", "which of the problem's samples, from 0"),
    "replicate": ("int32", "which repetition of the condition, from 0; 1 is the baseline's second run"),
    "subject": ("string", "the problem's subject"),
    "level": ("int32", "the problem's level"),
    "verdict": ("string", "correct, incorrect, no_box, truncated, refused, timeout or crashed"),
    "correct": ("bool", "whether the verdict is correct"),
    "answer": ("string", "what the last closed box holds, empty ones passed over; missing without one"),
    "target": ("string", "the gold answer"),
    "completion": ("string", "what the model wrote"),
    "finish_reason": ("string", "stop or length; missing where the backend does not say"),
    "seed": ("int64", "the sample's seed; missing when greedy"),
    "prompt_sha256": ("string", "hash of the prompt's text"),
    "prompt_token_sha256": ("string", "hash of the prompt's token ids; missing where they were not known"),
    "prompt_tokens": ("int32", "tokens of the prompt"),
    "completion_tokens": ("int32", "tokens of the completion"),
    "reason": ("string", "why a sample was refused"),
    "math_verify": ("bool", "audit: lm-eval's stock call of math_verify on the whole text"),
    "exact_match": ("bool", "audit: lm-eval's minerva exact_match"),
    "exact_match_boxed": ("bool", "audit: the same, of the last box"),
    "authors_rule": ("bool", "audit: the study's own rule, substrings included"),
    "authors_rule_strict": ("bool", "audit: the study's rule without substrings"),
    "first_box": ("bool", "audit: our grader on the first box"),
    "boxes_after_first": ("int32", "further boxes after the first"),
    "audit_reason": ("string", "why an audit grader gave no verdict"),
}
"""Type and meaning of each column; a column's meaning stands in the file, too, as the description of its field."""

_TYPES = {"category": pyarrow.dictionary(pyarrow.int8(), pyarrow.string(), ordered=True), "bool": pyarrow.bool_()}


def export_parquet(run: Path, path: Path) -> int:
    """Write all samples of a finished run, replicates and rewordings included, and return how many there are.

    The columns are those of `COLUMNS`, in the order of `harness.load_run`. The schema's metadata hold the run's
    receipt, as JSON under `RECEIPT_KEY`; `read_receipt_of` reads it.

    Raises:
        RunError: there is no finished run, or a file of it is missing or damaged.
        ConfigError: the file cannot be written.
    """
    receipt = read_receipt(run)
    frame = load_run(run, replicates=True, rewordings=True)
    fields = [
        pyarrow.field(name, _type(kind), metadata={b"description": meaning.encode()})
        for name, (kind, meaning) in COLUMNS.items()
    ]
    metadata = {RECEIPT_KEY: json.dumps(receipt, ensure_ascii=False).encode()}
    schema = pyarrow.schema(fields, metadata=metadata)
    table = pyarrow.Table.from_pandas(frame.reindex(columns=list(COLUMNS)), schema=schema, preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
    try:
        with write_atomic(path) as part:
            pyarrow.parquet.write_table(table, part, compression="zstd")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"{path} cannot be written: {why}. Choose another file.") from None
    return int(table.num_rows)


def read_receipt_of(path: Path) -> dict[str, Any]:
    """The receipt of the run that a Parquet file was made from.

    Raises:
        ConfigError: the file is missing, is not Parquet, or was not written by `export_parquet`.
    """
    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise ConfigError(f"{path} is no Parquet file: {error}. Expected one of `mless export`.") from None
    if RECEIPT_KEY not in metadata:
        raise ConfigError(f"{path} holds no receipt: expected a file of `mless export`. Export the run again.")
    receipt: dict[str, Any] = json.loads(metadata[RECEIPT_KEY])
    return receipt


def _type(kind: str) -> Any:
    return _TYPES[kind] if kind in _TYPES else getattr(pyarrow, kind)()
