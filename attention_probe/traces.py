"""A folder of traces: one safetensors file of curves and measures for every problem and condition.

`header.json` has what all traces share, the receipt of the session that created the folder, and the
axes and units of every array. A trace's file is either complete or absent, so a killed probe can be
continued. The files are numbered in the order in which they were added. Reading holds one trace in
memory at a time. This module does not need torch.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, Self

import msgspec
import numpy as np
import safetensors.numpy
from filelock import FileLock
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from attention_probe.measure.field_definitions import ARRAYS, MEASURES
from attention_probe.prompts.token_roles import PromptFacts, TokenizedPrompt
from harness.array_types import Integers
from harness.constants import JsonObject
from harness.errors import ConfigError, JournalError
from harness.layers_and_heads import list_numbers
from harness.runs.journal import changed_settings_error, list_differences
from harness.runs.records import as_record
from harness.runs.run_folder import lock_folder, refuse_unusable_folder
from harness.runs.stored_files import explain_write_errors, open_atomic, write_whole

HEADER_FILE = "header.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace(TokenizedPrompt):
    """What was measured of one prompt; ARRAYS and MEASURES define the arrays, their axes and units.

    Attributes:
        measures: [layer, head] arrays by name; each name is in MEASURES.
        activations: Statistics of the first MLP by name; see `measure_activations`.
    """

    mean_all: NDArray[np.float32]
    mean_common: NDArray[np.float32]
    rows: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.float32))
    norms: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    activation_histogram: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    measures: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    activations: Mapping[str, float] = field(default_factory=dict)


FACT_NAMES = tuple(fact.name for fact in fields(Trace) if fact.name not in (*ARRAYS, "measures"))
"""The fields of a trace that are not arrays."""


@dataclass(frozen=True, kw_only=True)
class TraceHeader:
    """The facts that all traces of one folder share; traces of another kind are refused.

    Attributes:
        model: The model's name.
        fingerprint: What identifies the weights that were loaded.
        layers: Indices of the recorded decoder layers, from 0, ascending.
        head_count: Query heads of a layer.
        conditions: In the order of figures; there may be more after a folder is continued.
        layout: How the prompts were built.
        dtype: Type that the layers were computed in.
        options: Further settings that the numbers depend on, such as stored rows.
        flip: The outcome by which the problems were selected; None if they were not.
    """

    model: str
    fingerprint: JsonObject
    layers: tuple[int, ...]
    head_count: int
    conditions: tuple[str, ...]
    layout: str
    dtype: str
    options: JsonObject
    flip: str | None

    def axis_index(self, axis: Literal["layer", "head"], index: int) -> int:
        """Where the model's layer or head of this index, from 0, stands on its axis.

        Raises:
            ConfigError: it was not recorded.
        """
        recorded_indices = self.layers if axis == "layer" else range(self.head_count)
        if index not in recorded_indices:
            raise ConfigError(
                f"{axis.title()} {index + 1} is not in these traces: counted from 1, they hold "
                f"{list_numbers(recorded_indices)}."
            )
        return recorded_indices.index(index)


class _HeaderContent(msgspec.Struct):
    """The content of `header.json`.

    Attributes:
        mless_traces: Incremented when the format of the folder changes. Only this format can be
            read.
        header: What all traces share.
        receipt: Of the session that created the folder.
        arrays: The axes, unit and definition of each array.
    """

    mless_traces: Literal[15]
    header: TraceHeader
    receipt: JsonObject
    arrays: JsonObject


class AttentionTraces:
    """A folder of traces, as a context manager, to read its present traces; `create` also adds.

    While it is open, a probe may add further traces to the folder.

    Attributes:
        path: The folder.
        header: The facts that all its traces share.
        receipt: Versions, settings and hashes of the session that created it.

    Raises:
        JournalError: the folder does not exist, or is damaged or something else.
    """

    def __init__(self, path: Path, folder_lock: FileLock | None = None) -> None:
        header_path = path / HEADER_FILE
        if not header_path.is_file():
            raise JournalError(f"{path} is not a folder of traces, as `mless probe` writes it.")
        with _explain_read_errors(header_path):
            header_content = as_record(
                _HeaderContent, json.loads(header_path.read_bytes()), header_path
            )
        self.header = header_content.header
        self.receipt = header_content.receipt
        self.path = path
        self._lock = folder_lock
        """Held until the end of `with` if traces may be added; None for reading."""
        self._path_and_entry_by_key: dict[tuple[str, str], tuple[Path, PromptFacts]] = {}
        """The file and the facts of each trace by problem and condition, as they were added."""
        # the names are numbers with leading zeros, so traces are sorted in the order of adding
        for trace_path in sorted(path.glob("*.safetensors")):
            self._add_entry(trace_path, _read_facts(trace_path))

    @classmethod
    def create(cls, path: Path, header: TraceHeader, receipt: JsonObject) -> Self:
        """Create a folder, or continue one with the same header; their conditions are joined.

        Raises:
            JournalError: the folder is damaged or something else, another process adds to it, it
                cannot be written, or it holds another model, other layers, another definition or
                another selection.
        """
        with explain_write_errors(path):
            # another folder is refused before a lock file is put into it
            refuse_unusable_folder(path, HEADER_FILE)
            path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as exit_stack:
            folder_lock = lock_folder(path)
            # releases the lock if an error occurs below
            exit_stack.callback(folder_lock.release)
            if (path / HEADER_FILE).exists():
                existing_traces = cls(path)
                header = existing_traces.join_header(header)
                receipt = existing_traces.receipt
            array_definitions = {
                name: quantity._asdict() for name, quantity in (ARRAYS | MEASURES).items()
            }
            content = msgspec.to_builtins(_HeaderContent(15, header, receipt, array_definitions))
            with explain_write_errors(path):
                write_whole(path / HEADER_FILE, json.dumps(content, indent=1))
                # a killed session leaves unfinished files, which nobody reads
                for unfinished_file in path.glob("*.part"):
                    unfinished_file.unlink()
            traces = cls(path, folder_lock)
            # no error has occurred, so the lock is kept until the end of `with`
            exit_stack.pop_all()
        return traces

    def append(self, trace: Trace) -> None:
        """Add a trace. Its file is complete or absent, and outlives the death of this process.

        Raises:
            JournalError: the folder cannot be written.
        """
        facts = {name: getattr(trace, name) for name in FACT_NAMES}
        arrays = {name: getattr(trace, name) for name in ARRAYS} | dict(trace.measures)
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        # The entries are in the order of their numbers. A damaged file may have been deleted, so
        # the last number may exceed the number of files.
        last_number = next(
            (int(path.stem) for path, _ in reversed(self._path_and_entry_by_key.values())), 0
        )
        trace_path = self.path / f"{last_number + 1:08d}.safetensors"
        with explain_write_errors(trace_path), open_atomic(trace_path) as file:
            file.write(safetensors.numpy.save(arrays, metadata={"facts": json.dumps(facts)}))
        self._add_entry(trace_path, facts)

    def join_header(self, header: TraceHeader) -> TraceHeader:
        """The folder's header with the conditions of both.

        Raises:
            JournalError: they differ in something else.
        """
        conditions = tuple(dict.fromkeys((*self.header.conditions, *header.conditions)))
        joined_header = replace(self.header, conditions=conditions)
        differences = list_differences(
            msgspec.to_builtins(joined_header),
            msgspec.to_builtins(replace(header, conditions=conditions)),
        )
        if differences:
            raise changed_settings_error(self.path / HEADER_FILE, differences)
        return joined_header

    def has(self, problem_id: str, condition: str) -> bool:
        """Whether the folder holds this trace."""
        return (problem_id, condition) in self._path_and_entry_by_key

    def get(self, problem_id: str, condition: str) -> Trace:
        """The trace of a problem under a condition.

        Raises:
            KeyError: there is no such trace.
            JournalError: it is damaged.
        """
        path, _ = self._path_and_entry_by_key[problem_id, condition]
        with _explain_read_errors(path):
            facts = _read_facts(path)
            arrays = safetensors.numpy.load_file(path)
            measures = {name: arrays.pop(name) for name in sorted(arrays.keys() - ARRAYS.keys())}
            return Trace(**facts | arrays | {"measures": measures})

    def clusters(self, problem_ids: Sequence[str]) -> Integers:
        """The number of each problem's cluster, from 0 without gaps."""
        cluster_by_problem = {
            entry.problem_id: entry.cluster or entry.problem_id for entry in self.entries()
        }
        problem_clusters = [cluster_by_problem[problem_id] for problem_id in problem_ids]
        _, cluster_numbers = np.unique(problem_clusters, return_inverse=True)
        return cluster_numbers

    def entries(self) -> list[PromptFacts]:
        """The facts of all traces, in the order in which they were added."""
        return [entry for _, entry in self._path_and_entry_by_key.values()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions with at least one trace, in the header's order."""
        stored_conditions = {entry.condition for entry in self.entries()}
        return tuple(
            condition for condition in self.header.conditions if condition in stored_conditions
        )

    @property
    def problem_ids(self) -> tuple[str, ...]:
        """Problems with at least one trace, in the order in which they were added."""
        return tuple(dict.fromkeys(entry.problem_id for entry in self.entries()))

    def __iter__(self) -> Iterator[Trace]:
        return (self.get(*key) for key in self._path_and_entry_by_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the folder for other processes."""
        if self._lock is not None:
            self._lock.release()

    def _add_entry(self, path: Path, facts: JsonObject) -> None:
        """Remember the file and the identifying facts of a trace."""
        entry = msgspec.convert(facts, PromptFacts)
        self._path_and_entry_by_key[entry.problem_id, entry.condition] = path, entry


def _read_facts(path: Path) -> JsonObject:
    """The fields of a trace that are not arrays."""
    with _explain_read_errors(path), safe_open(path, framework="numpy") as trace_file:
        facts: JsonObject = json.loads(trace_file.metadata()["facts"])
        # JSON has no tuples, so these two were stored as lists; without a filler there is no span
        return facts | {
            name: tuple(facts[name]) for name in ("tokens", "filler_span") if facts[name]
        }


@contextmanager
def _explain_read_errors(path: Path) -> Iterator[None]:
    """Turn every error of reading a file into one message that names the file."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        advice = ""
        if path.suffix == ".safetensors":
            advice = " Delete it and run the same `mless probe` again."
        raise JournalError(f"{path} is torn or damaged ({cause}).{advice}") from None
