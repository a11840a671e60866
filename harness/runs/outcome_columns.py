"""A run's outcomes without its texts: one row a sample, read as columns, so that a million of them fit anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from harness.errors import RunError
from harness.grading import COLUMNS as GRADERS
from harness.grading import Verdict
from harness.runs.folder import JOURNAL, SCORES, doubled, refuse_missing
from harness.runs.journal import open_stored, read_journal

if TYPE_CHECKING:
    import pandas
    import pyarrow

BLOCK = 1 << 21
"""Bytes that are parsed at once; no line may be longer, or the slow reader takes over."""
LOOP_LENGTH, LOOP_COUNT = 100, 4
"""A completion loops if its last so many characters occur so many times in it."""

_SAMPLE = {
    "key": "string",
    "task": "string",
    "problem_id": "string",
    "sample_index": "int32",
    "replicate": "int32",
    "completion": "string",
    "completion_tokens": "int64",
}
_SCORE = {
    "key": "string",
    "verdict": "string",
    "answer": "string",
    **dict.fromkeys(GRADERS, "bool_"),
    "boxes_after_first": "int32",
}


def loops(completion: str) -> bool:
    """Whether a completion ends in a loop: its last `LOOP_LENGTH` characters occur `LOOP_COUNT` times or more.

    Occurrences do not overlap. A block of up to 100 characters is found if it repeats over the last 700, a longer one
    if it stands there four times; a loop that the model left again is not found.
    """
    text = completion.rstrip()
    return len(text) >= LOOP_LENGTH * LOOP_COUNT and text.count(text[-LOOP_LENGTH:]) >= LOOP_COUNT


def read_outcomes(folder: Path, receipt: Mapping[str, Any], prompts: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """The samples of a finished run with their verdicts, in the order of `sample_frame.read_frame`.

    Args:
        folder: A run folder.
        receipt: `sample_frame.read_receipt` of it.
        prompts: `folder.read_prompts` of it.

    Columns: model, condition, layout, problem_id, sample_index, replicate, subject, level, verdict, correct, answer,
    target, completion_tokens, characters, looping, the graders' of `harness.grading`, boxes_after_first. Words are
    categorical.

    Raises:
        RunError: a file is missing or damaged, a sample or a score is missing, or a score says what no grader says.
    """
    import pandas
    import pyarrow
    import pyarrow.compute

    samples = _read_samples(folder / JOURNAL)
    scores = _read(folder / SCORES, _SCORE, _shorten_keys).combine_chunks()
    if not samples.num_rows:
        raise RunError(f"{folder} holds no sample. Continue it with the command that began it.")
    if (again := samples["key"].to_pandas().duplicated()).any():
        where = int(again.argmax())
        names = ("sample_index", "problem_id", "task")
        raise doubled(folder, {name: samples[name][where].as_py() for name in names})
    place = _prompt_places(samples, prompts)
    found = pyarrow.compute.index_in(samples["key"], value_set=scores["key"])
    unscored = found.is_null().to_numpy(zero_copy_only=False)
    if (place < 0).any() or unscored.any():
        where = int(np.argmax((place < 0) | unscored))
        missing = "prompt" if place[where] < 0 else "score"
        raise RunError(
            f"{folder}: the {missing} of problem {samples['problem_id'][where]}, {samples['task'][where]}, is missing. "
            "Run `mless regrade` on the folder, or restore its files."
        )
    refuse_missing(folder, prompts, receipt["config"], np.bincount(place, minlength=len(prompts)).tolist())
    scores = scores.drop_columns("key").take(found)
    if strange := set(scores["verdict"].unique().to_pylist()) - set(get_args(Verdict)):
        raise RunError(
            f"{folder / SCORES}: a verdict is {min(map(repr, strange))}: expected one of "
            f"{', '.join(get_args(Verdict))}. Run `mless regrade` on the folder."
        )
    label = receipt["config"]["model"]["label"] or receipt["model"]["name"]
    numbers = {name: samples[name].to_numpy() for name in ("sample_index", "replicate")}
    columns: dict[str, Any] = {
        "model": pandas.Categorical.from_codes(np.zeros(len(place), dtype=np.int8), pandas.Index([label])),
        **{name: _of_prompts([row[name] for row in prompts], place) for name in ("condition", "layout")},
        "problem_id": _of_prompts([row["doc"]["id"] for row in prompts], place),
        **numbers,
        **{name: _of_prompts([row["doc"][name] for row in prompts], place) for name in ("subject", "level")},
        "verdict": _categories(scores["verdict"]),
        "correct": pyarrow.compute.equal(scores["verdict"], "correct").to_numpy(),
        "answer": _categories(scores["answer"]),
        "target": _of_prompts([row["doc"]["answer"] for row in prompts], place),
        **{name: samples[name].to_numpy() for name in ("completion_tokens", "characters", "looping")},
        **{name: pandas.arrays.BooleanArray(*_bools(scores[name])) for name in GRADERS},
        "boxes_after_first": scores["boxes_after_first"].to_numpy(),
    }
    frame = pandas.DataFrame(columns)
    frame["level"] = frame["level"].astype(int)
    order = np.lexsort(
        (numbers["sample_index"], numbers["replicate"], place, frame["condition"].cat.codes, frame["layout"].cat.codes)
    )
    return frame.take(order).reset_index(drop=True)


def _read_samples(path: Path) -> pyarrow.Table:
    """The journal's samples; of each completion only its length and whether it loops."""
    import pyarrow

    def measure(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        rows = _shorten_keys(batch.filter(batch["task"].is_valid()))  # the header and the sessions have none
        if any(rows[name].null_count for name in ("problem_id", "sample_index", "replicate", "completion")):
            raise RunError(f"{path}: a sample lacks what every sample has. Restore the file from a copy.")
        texts = rows["completion"].to_pylist()
        kept = {name: rows[name] for name in _SAMPLE if name != "completion"}
        kept |= {name: kept[name].dictionary_encode() for name in ("task", "problem_id")}
        measured = {
            "characters": pyarrow.array([len(text) for text in texts], pyarrow.int32()),
            "looping": pyarrow.array([loops(text) for text in texts], pyarrow.bool_()),
        }
        return pyarrow.RecordBatch.from_pydict(kept | measured)

    return _read(path, _SAMPLE, measure).unify_dictionaries().combine_chunks()


def _shorten_keys(batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
    """The records with 96 bits of their keys, which are as different as all 256."""
    import pyarrow.compute

    rows = batch.filter(batch["key"].is_valid())
    return rows.set_column(0, "key", pyarrow.compute.utf8_slice_codeunits(rows["key"], 0, 24))


def _prompt_places(samples: pyarrow.Table, prompts: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.int64]:
    """Each sample's row in the prompts; -1 where there is none."""
    task, problem = (samples[name].combine_chunks() for name in ("task", "problem_id"))
    tasks, problems = ({word: code for code, word in enumerate(c.dictionary.to_pylist())} for c in (task, problem))
    places = np.full((len(tasks), len(problems)), -1)
    for place, row in enumerate(prompts):
        code, number = tasks.get(row["task"]), problems.get(row["doc"]["id"])
        if code is not None and number is not None:
            places[code, number] = place
    found: npt.NDArray[np.int64] = places[task.indices.to_numpy(), problem.indices.to_numpy()]
    return found


def _of_prompts(values: list[Any], place: npt.NDArray[np.int64]) -> pandas.Categorical[Any]:
    """What each sample's prompt says, in the prompts' order."""
    import pandas

    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    numbers = np.array([codes[value] for value in values], dtype=np.int32)
    return pandas.Categorical.from_codes(numbers[place], pandas.Index(list(codes)), ordered=True)


def _categories(column: pyarrow.ChunkedArray) -> pandas.Categorical[Any]:
    import pandas

    encoded = column.combine_chunks().dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy()
    return pandas.Categorical.from_codes(codes, pandas.Index(encoded.dictionary.to_pylist(), dtype=object))


def _bools(column: pyarrow.ChunkedArray) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Values and where they are missing."""
    return (
        column.fill_null(False).to_numpy(),
        column.is_null().to_numpy(),
    )


def _read(
    path: Path, fields: Mapping[str, str], reduce: Callable[[pyarrow.RecordBatch], pyarrow.RecordBatch]
) -> pyarrow.Table:
    """A journal's records as columns, each batch reduced as it comes; the header is a row of nulls.

    A file that is not what the fast reader expects (a torn last line, text that is no UTF-8, a very long line, damage)
    is read line by line, and damage is then named.

    Raises:
        RunError: the file is missing, or a line of it is damaged.
    """
    import pyarrow
    import pyarrow.json

    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in fields.items()])
    try:
        with nullcontext(path) if path.is_file() else open_stored(path) as source:
            batches = pyarrow.json.open_json(
                source,
                read_options=pyarrow.json.ReadOptions(block_size=BLOCK),
                parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            )
            return pyarrow.Table.from_batches([reduce(batch) for batch in batches])
    except (pyarrow.ArrowInvalid, FileNotFoundError):
        pass
    try:
        return pyarrow.Table.from_batches([reduce(batch) for batch in _read_lines(path, schema)])
    except pyarrow.ArrowException as error:
        raise RunError(f"{path}: a record is not as mless writes it ({error}). Restore the file from a copy.") from None


def _read_lines(path: Path, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    for lines in _batched(read_journal(path), 10_000):
        rows = [{name: _encodable(line.get(name)) for name in schema.names} for line in lines]
        yield pyarrow.RecordBatch.from_pylist(rows, schema=schema)


def _batched(values: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of so many values; the last may be shorter."""
    iterator = iter(values)
    while some := list(islice(iterator, size)):
        yield some


def _encodable(value: Any) -> Any:
    """Text that UTF-8 can hold; only its length and its repeats matter."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
