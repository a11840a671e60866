"""A run as one Parquet file: one row per sample, every column described, the run's receipt in the file's metadata.

A file whose name ends in .csv becomes CSV, which has no place for descriptions and receipt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.csv
import pyarrow.parquet

from harness.errors import ConfigError
from harness.runs.folder import refuse_own_file
from harness.runs.records import COLUMNS
from harness.runs.run import Run
from harness.runs.stored_files import write_atomic

RECEIPT_KEY = b"mless.receipt"
"""Under this key the file's metadata hold run.json."""

_TYPES = {"category": pyarrow.dictionary(pyarrow.int8(), pyarrow.string(), ordered=True), "bool": pyarrow.bool_()}


def export_samples(run: Run, path: Path) -> int:
    """Write all samples of a run, replicates and rewordings included, and return how many there are.

    The columns are those of `records.COLUMNS`, each described by its field's metadata. The schema's metadata hold the
    run's receipt, as JSON under `RECEIPT_KEY`; `read_receipt_of` reads it.

    Raises:
        RunError: a file of the run is missing or damaged.
        ConfigError: the file cannot be written.
    """
    refuse_own_file(path)
    frame = run.read_texts()
    fields = [
        pyarrow.field(name, _type(kind), metadata={b"description": meaning.encode()})
        for name, (kind, meaning) in COLUMNS.items()
    ]
    metadata = {RECEIPT_KEY: json.dumps(run.receipt, ensure_ascii=False).encode()}
    schema = pyarrow.schema(fields, metadata=metadata)
    table = pyarrow.Table.from_pandas(frame.reindex(columns=list(COLUMNS)), schema=schema, preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata})
    try:
        with write_atomic(path) as part:
            if path.suffix.lower() == ".csv":
                pyarrow.csv.write_csv(table, part)
            else:
                pyarrow.parquet.write_table(table, part, compression="zstd")
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"{path} cannot be written: {why}. Choose another file.") from None
    return int(table.num_rows)


def read_receipt_of(path: Path) -> dict[str, Any]:
    """The receipt of the run that a Parquet file was made from.

    Raises:
        ConfigError: the file is missing, is not Parquet, or was not written by `export_samples`.
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
