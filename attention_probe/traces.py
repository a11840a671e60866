"""What the probe keeps: a folder with one safetensors file of curves and measures for every problem and condition.

`header.json` says what all records share, which session began them, and the axes and units of every array. A record's
file is there whole or not at all, so that a killed probe is continued where it stopped; its name is its place in the
order of adding. Reading holds one record in memory however many there are. Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec
import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from attention_probe.measure.measure_definitions import ARRAYS, MEASURES
from harness.errors import ConfigError, JournalError
from harness.layers_and_heads import count_from_one
from harness.runs.journal import (
    changed_settings,
    clear_messages,
    differences,
    write_atomic,
    write_whole,
)
from harness.runs.records import fit

if TYPE_CHECKING:
    from filelock import FileLock

HEADER = "header.json"
FORMAT: Literal[8] = 8
"""Goes up when a folder of traces is written in another way. No reader knows a second one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceEntry:
    """What a record is about.

    Attributes:
        problem_id: Which problem of the source.
        condition: Under which condition.
        subject: The problem's subject; empty if it has none.
        level: The problem's level; 0 if it has none.
        cluster: What the problem counts as one with, such as itself with other examples; empty: it stands alone.
        outcome: What became of the problem between the selection's two conditions, such as `wrong_to_right`.
        control: Whether it was chosen as an unflipped control.
        prompt_sha256: Hash of the prompt's text, as in the run.
        filler_span: Half-open positions of the filler; None without one.
    """

    problem_id: str
    condition: str
    subject: str
    level: int
    cluster: str = ""
    outcome: str | None
    control: bool
    prompt_sha256: str
    filler_span: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace(TraceEntry):
    """One prompt's first layers: see ARRAYS and MEASURES for axes and units of its arrays.

    Attributes:
        tokens: The text of each token, for people.
        measures: [layer, head] arrays by name; each name is in MEASURES.
        activations: First-MLP statistics of the problem's tokens, by name; see `measure_activations`.
        self_check: Largest errors against other ways to compute the same, by name.
    """

    tokens: tuple[str, ...]
    token_ids: NDArray[np.int32]
    roles: NDArray[np.int8]
    original_pos: NDArray[np.int32]
    mean_all: NDArray[np.float32]
    mean_common: NDArray[np.float32]
    activation_histogram: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))
    measures: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    activations: Mapping[str, float] = field(default_factory=dict)
    self_check: Mapping[str, float] = field(default_factory=dict)


FACTS = tuple(one.name for one in fields(Trace) if one.name not in (*ARRAYS, "measures"))


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceHeader:
    """What all traces of one folder share; records of another kind are refused.

    Attributes:
        model: The model's name.
        fingerprint: What identifies the weights that were loaded.
        layers: Indices of the recorded decoder layers, from 0, ascending.
        head_count: Query heads of a layer.
        conditions: In the order in which figures show them; may grow when a folder is continued.
        baseline: The condition that `original_pos` and the common queries refer to.
        layout: How the prompts were built.
        queries: `prompt`, or `completion` where the recorded completion was read too.
        dtype: What the model was run in.
        options: What else decides the numbers: decomposition, activation thresholds, windows.
        flip: The outcome by which the problems were chosen; None if they were chosen otherwise.
    """

    model: str
    fingerprint: Mapping[str, Any]
    layers: tuple[int, ...]
    head_count: int
    conditions: tuple[str, ...]
    baseline: str
    layout: str
    queries: str
    dtype: str
    options: Mapping[str, Any]
    flip: str | None

    @property
    def on_outcome(self) -> bool:
        """Whether the problems were chosen by what became of them."""
        return self.flip is not None

    @property
    def stamps(self) -> tuple[str, ...]:
        """What must be said wherever numbers of these traces are shown."""
        return ("selected on outcome",) if self.on_outcome else ()

    def place(self, axis: Literal["layer", "head"], number: int) -> int:
        """Where a layer or head, counted from 1, stands on its axis.

        Raises:
            ConfigError: it was not recorded.
        """
        known = self.layers if axis == "layer" else range(self.head_count)
        if number - 1 not in known:
            held = count_from_one(known)
            raise ConfigError(
                f"{axis.title()} {number} is not in these traces: counted from 1, they hold {held}."
            )
        return known.index(number - 1)


class _HeaderFile(msgspec.Struct):
    """What `header.json` holds."""

    mless_traces: Literal[8]
    header: TraceHeader
    receipt: dict[str, Any]
    arrays: dict[str, Any]


class AttentionTraces:
    """A folder of traces. Open it with `create` (to add) or `open` (to read); use it as a context manager.

    Attributes:
        path: The folder.
        header: What all its records share.
        receipt: Versions, settings and hashes of the session that began it.
    """

    def __init__(self, path: Path, lock: FileLock | None = None) -> None:
        with _one_message(path / HEADER):
            about = fit(_HeaderFile, json.loads((path / HEADER).read_bytes()), path / HEADER)
        self.header, self.receipt = about.header, about.receipt
        self.path = path
        self._lock = lock
        self._files: dict[tuple[str, str], tuple[Path, TraceEntry]] = {}
        """By problem and condition, in the order of adding."""
        for file in sorted(path.glob("*.safetensors")):
            self._add(file, _read_facts(file))

    @classmethod
    def create(cls, path: Path, header: TraceHeader, *, receipt: Mapping[str, Any]) -> Self:
        """Begin a folder, or continue one with the same header; the conditions of both are joined.

        Raises:
            JournalError: the folder is damaged or something else, another process adds to it, it cannot be written, or
                it was begun with another model, other layers, another definition or selection.
        """
        from harness.runs.run_folder import (
            lock,
            refuse_foreign,
        )  # reading does not need what they import

        with clear_messages(path):
            refuse_foreign(path, HEADER)  # before a lock is put into it
            path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as opened:
            held = lock(path)
            opened.callback(held.release)
            if (path / HEADER).exists():
                begun = cls(path)
                names = tuple(dict.fromkeys([*begun.header.conditions, *header.conditions]))
                old, new = (replace(one, conditions=names) for one in (begun.header, header))
                if changes := differences(msgspec.to_builtins(old), msgspec.to_builtins(new)):
                    raise changed_settings(path / HEADER, changes)
                header, receipt = old, begun.receipt
            quantities = {
                name: quantity._asdict() for name, quantity in (ARRAYS | MEASURES).items()
            }
            about = _HeaderFile(FORMAT, header, dict(receipt), quantities)
            with clear_messages(path):
                write_whole(path / HEADER, json.dumps(msgspec.to_builtins(about), indent=1))
                for left_over in path.glob("*.part"):  # of a killed session
                    left_over.unlink()
            traces = cls(path, held)
            opened.pop_all()  # the lock stays until `close`
        return traces

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a folder to read what is in it now; a probe may be adding to it meanwhile.

        Raises:
            JournalError: there is none, or it is damaged or something else.
        """
        return cls(path)

    def append(self, trace: Trace) -> None:
        """Add one record, whole or not at all; it survives the death of this process from here on.

        Raises:
            JournalError: the folder cannot be written.
        """
        facts = {name: getattr(trace, name) for name in FACTS}
        arrays = {name: getattr(trace, name) for name in ARRAYS} | dict(trace.measures)
        arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
        last = next((int(file.stem) for file, _ in reversed(self._files.values())), 0)
        file = self.path / f"{last + 1:08d}.safetensors"
        with clear_messages(file), write_atomic(file) as part:
            part.write_bytes(safetensors.numpy.save(arrays, metadata={"facts": json.dumps(facts)}))
        self._add(file, facts)

    def has(self, problem_id: str, condition: str) -> bool:
        """Whether the record is there."""
        return (problem_id, condition) in self._files

    def get(self, problem_id: str, condition: str) -> Trace:
        """One record.

        Raises:
            KeyError: there is no such record.
            JournalError: it is damaged.
        """
        file, _ = self._files[problem_id, condition]
        with _one_message(file):
            facts, arrays = _read_facts(file), safetensors.numpy.load_file(file)
            measures = {name: arrays.pop(name) for name in sorted(arrays.keys() - ARRAYS.keys())}
            return Trace(**facts | arrays | {"measures": measures})

    def measures(
        self, names: Sequence[str], condition: str, problem_ids: Sequence[str]
    ) -> NDArray[np.float64]:
        """Measures of all heads, for which every record is read but once: [measure, problem, layer, head].

        Raises:
            ConfigError: one was not recorded for one of the problems.
        """
        found = [self.get(problem_id, condition).measures for problem_id in problem_ids]
        if missing := [name for name in names if any(name not in one for one in found)]:
            raise ConfigError(
                f"{self.path} has no {missing[0]} under {condition}: it has {', '.join(found[0])}. The parts of a "
                "change are recorded by --decompose."
            )
        return np.array([[one[name] for one in found] for name in names], dtype=np.float64)

    def clusters(self, problem_ids: Sequence[str]) -> NDArray[np.int64]:
        """The number of each problem's cluster, from 0 without gaps."""
        names = {entry.problem_id: entry.cluster or entry.problem_id for entry in self.entries()}
        return np.unique([names[one] for one in problem_ids], return_inverse=True)[1]

    def entries(self) -> list[TraceEntry]:
        """What is there, without the arrays, in the order in which it was added."""
        return [entry for _, entry in self._files.values()]

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions of which there is a record, in the header's order."""
        found = {entry.condition for entry in self.entries()}
        return tuple(condition for condition in self.header.conditions if condition in found)

    @property
    def problem_ids(self) -> tuple[str, ...]:
        """Problems of which there is a record, in the order in which they were added."""
        return tuple(dict.fromkeys(entry.problem_id for entry in self.entries()))

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[Trace]:
        return (self.get(*key) for key in self._files)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others add to the folder."""
        if self._lock is not None:
            self._lock.release()

    def _add(self, file: Path, facts: Mapping[str, Any]) -> None:
        entry = TraceEntry(**{one.name: facts[one.name] for one in fields(TraceEntry)})
        self._files[entry.problem_id, entry.condition] = file, entry


def _read_facts(file: Path) -> dict[str, Any]:
    """A record without its arrays."""
    with _one_message(file), safe_open(file, framework="numpy") as opened:
        facts = json.loads(opened.metadata()["facts"])
        return {
            name: tuple(facts[name]) if isinstance(facts[name], list) else facts[name]
            for name in FACTS
        }


@contextmanager
def _one_message(path: Path) -> Iterator[None]:
    """Turn what reading a file may raise into one message that names it."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        advice = (
            " Delete it and run the same `mless probe` again."
            if path.suffix == ".safetensors"
            else ""
        )
        raise JournalError(f"{path} is torn or damaged ({what}).{advice}") from None
