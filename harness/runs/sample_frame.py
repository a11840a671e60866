"""The samples of a run as a frame, one row per sample: with their texts for people, without for tables of a million."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from harness.errors import RunError
from harness.experiment.conditions import as_condition, find_yardsticks
from harness.grading import COLUMNS as GRADERS
from harness.grading import Verdict
from harness.runs.folder import (
    JOURNAL,
    PROMPTS,
    RECEIPT,
    PromptPlaces,
    doubled,
    read_identity,
    read_prompts,
    refuse_missing,
    stream_scores,
)
from harness.runs.journal import read_records
from harness.runs.records import COLUMNS, Receipt, Sample, Score, encodable, fit, printable, refuse_other_format
from harness.runs.repetition import loops
from harness.runs.stored_files import find_stored, is_stored

if TYPE_CHECKING:
    import pandas

BATCH = 1_000
"""Records that are held at once while their texts are measured."""

_TEXTS_OF_SAMPLES = [name for name in Sample.__struct_fields__ if name in COLUMNS]
_TEXTS_OF_SCORES = [name for name in Score.__struct_fields__ if name in COLUMNS]
_VERDICTS = list(get_args(Verdict))
_TRUTHS = {None: -1, False: 0, True: 1}


def read_receipt(folder: Path) -> dict[str, Any]:
    """The run's receipt.

    Raises:
        RunError: there is no finished run, or its receipt is damaged or another file.
    """
    path = folder / RECEIPT
    if not path.is_file():
        if is_stored(folder / JOURNAL):
            raise RunError(
                f"{folder} holds no finished run: expected {RECEIPT} beside its {JOURNAL}. Run the command that began "
                "it again: it does what is missing."
            )
        raise RunError(
            f"{folder} holds no finished run: expected {RECEIPT} in it, or lm-eval's samples_*.jsonl. Check the path; "
            "an interrupted run is continued by the command that began it."
        )
    remedy = "Run the command that made it again, or restore it from a copy."
    try:
        receipt: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is torn or damaged ({error}). {remedy}") from None
    try:
        printable(receipt)  # tables print it whole
    except ValueError as error:
        raise RunError(f"{path}: the whole: {error}. {remedy}") from None
    refuse_other_format(receipt, path)
    fit(Receipt, receipt, path, remedy)
    return receipt


def load_run(path: str | Path, *, replicates: bool = False, yardsticks: bool = False) -> pandas.DataFrame:
    """A run as a tidy frame, one row per sample; needs neither torch nor lm-eval.

    By default it holds the samples that the tables compare: the config's conditions, each of them once. So
    `frame.groupby("condition")["correct"].mean()` gives the accuracies of `mless table`. `analysis.compare` makes
    the A/A columns and, given `experiment.conditions.find_yardsticks`, those of the yardsticks of a frame with both.

    Columns: model, condition, layout, problem_id, sample_index, replicate, subject, level, verdict, correct, answer,
    target, completion, finish_reason, seed, prompt_sha256, prompt_token_sha256, prompt_tokens, completion_tokens, then
    the audit's: math_verify, exact_match, exact_match_boxed, authors_rule, authors_rule_strict, first_box,
    boxes_after_first, reason, audit_reason. What a backend or grader does not tell is missing. Half a surrogate pair,
    which is no text, is spelt out in completions and answers (`\\ud800`).

    Args:
        path: The run's folder.
        replicates: Whether to include the further replicates of the baseline (A/A), those with `replicate` above 0.
        yardsticks: Whether to include what the conditions are held against: harmless rewordings (in `condition` as
            `edit-01`, `edit-02`, ...), other fillers (`filler-01`, ...) and the positive control (`control`).

    Raises:
        RunError: there is no finished run there, a file of it is missing or damaged, or samples are missing or
            doubled.
    """
    folder = Path(path)
    if not (folder / RECEIPT).is_file() and find_stored(folder, "samples_*.jsonl"):
        raise RunError(
            f"{folder} holds lm-eval's logs, and load_run reads a folder of `mless run`. Use "
            f"harness.read_run(Path({str(folder)!r})).read_texts()."
        )
    frame = read_frame(folder, read_receipt(folder), read_prompts(folder), texts=True)
    if not replicates:
        frame = frame[frame["replicate"] == 0]
    if not yardsticks:
        frame = frame[~frame["condition"].isin(find_yardsticks(frame["condition"].unique()))]
    return frame.reset_index(drop=True).assign(condition=lambda kept: kept["condition"].cat.remove_unused_categories())


def read_factors(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a sweep can vary of a run's conditions, by name (`Condition.factors`); of yardsticks nothing is known."""
    conditions = map(as_condition, config["conditions"])
    return {condition.name: condition.factors() for condition in conditions}


def read_frame(
    folder: Path,
    receipt: Mapping[str, Any],
    prompts: Sequence[Mapping[str, Any]],
    *,
    texts: bool = False,
    read: tuple[Iterable[Sample], Iterable[Score]] | None = None,
) -> pandas.DataFrame:
    """The samples of a run with their verdicts, in the order of the prompts: layout, condition, problem, replicate.

    Args:
        folder: A run folder.
        receipt: `read_receipt` of it, or as much of a receipt as there is yet: its config, and the model's name.
        prompts: `folder.read_prompts` of it.
        texts: Whether to hold all that is known of each sample, the columns of `load_run`. Otherwise: model,
            condition, layout, problem_id, sample_index, replicate, subject, level, verdict, correct, answer, target,
            completion_tokens, characters, looping, the graders' of `harness.grading`, boxes_after_first. Words are
            then categorical, and a completion is measured and let go.
        read: The folder's samples and scores, where they have been read.

    Raises:
        RunError: a file is missing or damaged, a sample or a score is missing or doubled, or a score says what no
            grader says.
    """
    import pandas

    rows: dict[str, int] = {}
    answers: dict[str | None, int] = {}
    recorded = read or (
        read_records(folder / JOURNAL, Sample, "Restore the file from a copy."),
        stream_scores(folder),
    )
    scores = _score_texts(recorded[1], rows) if texts else _score_facts(recorded[1], rows, answers)
    joined = match_records(folder, recorded[0], prompts, rows)
    samples = _sample_texts(joined) if texts else _sample_facts(joined)
    place, score = samples.pop("place"), samples.pop("score")
    if not len(place):
        raise RunError(f"{folder} holds no sample. Continue it with the command that began it.")
    refuse_missing(folder, prompts, read_identity(folder), np.bincount(place, minlength=len(prompts)).tolist())
    label = receipt["config"]["model"]["label"] or receipt["model"]["name"]
    columns: dict[str, Any] = {
        **samples,
        **{name: values[score] for name, values in scores.items()},
        "model": _categorical([label], np.zeros(len(place), dtype=int)),
        **{name: _categorical([row[name] for row in prompts], place) for name in ("condition", "layout")},
        **{
            name: _categorical([row["doc"][field] for row in prompts], place)
            for name, field in {"problem_id": "id", "subject": "subject", "level": "level", "target": "answer"}.items()
        },
    }
    if texts:
        factors = read_factors(receipt["config"])
        for name in ("filler", "filler_tokens", "placement", "words"):
            said = [factors.get(row["condition"], {}).get(name) for row in prompts]
            columns[name] = pandas.array(said, dtype="Int32" if name == "filler_tokens" else "str")[place]
        columns["prompt_sha256"] = np.array([row["prompt_sha256"] for row in prompts], dtype=object)[place]
        columns["correct"] = columns["verdict"] == "correct"
    else:
        words = np.array([answer and encodable(answer) for answer in answers], dtype=object)
        columns["answer"] = pandas.Categorical(words[columns["answer"]])
        columns["correct"] = columns["verdict"] == _VERDICTS.index("correct")
        verdict = pandas.Categorical.from_codes(columns["verdict"], pandas.Index(_VERDICTS))
        columns["verdict"] = verdict.remove_unused_categories()
        columns |= {name: pandas.arrays.BooleanArray(columns[name] == 1, columns[name] < 0) for name in GRADERS}
    codes = (columns[name].codes for name in ("condition", "layout"))
    order = np.lexsort((samples["sample_index"].astype(int), samples["replicate"].astype(int), place, *codes))
    names = [*COLUMNS, "characters", "looping"]
    frame = pandas.DataFrame({name: columns[name][order] for name in names if name in columns})
    if texts:
        frame = frame.infer_objects()
    plain = ("model", "problem_id", "subject", "target") if texts else ()
    return frame.astype({"level": int} | {name: frame[name].cat.categories.dtype for name in plain})


def match_records(
    folder: Path, samples: Iterable[Sample], prompts: Sequence[Mapping[str, Any]], rows: Mapping[str, int]
) -> Iterator[tuple[Sample, int, int]]:
    """Every sample with its row in the prompts and in the scores.

    Raises:
        RunError: a sample is there twice, or lacks its prompt or its score.
    """
    places = PromptPlaces(prompts, folder / PROMPTS)
    seen = bytearray(len(rows))
    for sample in samples:
        place, score = places.find(sample), rows.get(sample.key)
        if score is None:
            raise RunError(
                f"{folder}: the score of problem {sample.problem_id}, {sample.task}, is missing. Run `mless regrade` "
                "on the folder."
            )
        if seen[score]:
            raise doubled(folder, sample)
        seen[score] = 1
        yield sample, place, score


def _sample_texts(joined: Iterable[tuple[Sample, int, int]]) -> dict[str, npt.NDArray[Any]]:
    read = attrgetter(*_TEXTS_OF_SAMPLES)
    kinds = {**dict.fromkeys(_TEXTS_OF_SAMPLES, object), "place": np.int32, "score": np.int32}
    columns = _gather(((*read(sample), place, score) for sample, place, score in joined), kinds)
    columns["completion"] = np.array([encodable(text) for text in columns["completion"]], dtype=object)
    return columns


def _sample_facts(joined: Iterable[tuple[Sample, int, int]]) -> dict[str, npt.NDArray[Any]]:
    def facts() -> Iterator[tuple[Any, ...]]:
        for sample, place, score in joined:
            text = sample.completion
            tokens = math.nan if sample.completion_tokens is None else sample.completion_tokens
            yield place, score, sample.sample_index, sample.replicate, tokens, len(text), loops(text)

    names = ("place", "score", "sample_index", "replicate", "completion_tokens", "characters", "looping")
    kinds = dict.fromkeys(names, np.int32) | {"completion_tokens": np.float64, "looping": np.bool_}
    columns = _gather(facts(), kinds)
    if not np.isnan(tokens := columns["completion_tokens"]).any():
        columns["completion_tokens"] = tokens.astype(np.int64)
    return columns


def _score_texts(scores: Iterable[Score], rows: dict[str, int]) -> dict[str, npt.NDArray[Any]]:
    """The scores as columns; `rows` is filled with each one's row, by its key."""
    read = attrgetter(*_TEXTS_OF_SCORES)

    def texts() -> Iterator[tuple[Any, ...]]:
        for row, score in enumerate(scores):
            rows[score.key] = row
            yield read(score)

    columns = _gather(texts(), dict.fromkeys(_TEXTS_OF_SCORES, object))
    columns["answer"] = np.array([answer and encodable(answer) for answer in columns["answer"]], dtype=object)
    return columns


def _score_facts(
    scores: Iterable[Score], rows: dict[str, int], answers: dict[str | None, int]
) -> dict[str, npt.NDArray[Any]]:
    """Numbers for the scores' words, and for true, false and not known; `answers` is filled with each one's number."""
    verdicts = {verdict: code for code, verdict in enumerate(_VERDICTS)}
    judged, truth = attrgetter(*GRADERS), _TRUTHS.__getitem__

    def facts() -> Iterator[tuple[int, ...]]:
        for row, score in enumerate(scores):
            rows[score.key] = row
            answer = answers.setdefault(score.answer, len(answers))
            yield verdicts[score.verdict], answer, score.boxes_after_first, *map(truth, judged(score))

    kinds = {"verdict": np.int8, "answer": np.int32, "boxes_after_first": np.int32, **dict.fromkeys(GRADERS, np.int8)}
    return _gather(facts(), kinds)


def _gather(records: Iterator[tuple[Any, ...]], kinds: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Rows as columns of these types; only a batch of rows is held as objects."""
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [np.empty(0, kind)] for name, kind in kinds.items()}
    while batch := list(islice(records, BATCH)):
        for (name, kind), values in zip(kinds.items(), zip(*batch, strict=True), strict=True):
            parts[name].append(np.fromiter(values, kind, len(values)))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _categorical(values: list[Any], place: npt.NDArray[Any]) -> pandas.Categorical[Any]:
    """What each sample's prompt says, in the prompts' order."""
    import pandas

    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    numbers = np.array([codes[value] for value in values], dtype=np.int32)
    return pandas.Categorical.from_codes(numbers[place], pandas.Index(list(codes)), ordered=True)
