"""The samples of a run as a frame, one row per sample: with their texts for people, without for tables of a million."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from zlib import crc32

import numpy as np
import numpy.typing as npt

from harness.constants import FRAME_BATCH, LOOP_COUNT, LOOP_LENGTH
from harness.errors import RunError
from harness.experiment.expand_conditions import read_conditions
from harness.grading import GRADERS, Verdict
from harness.runs.folder import JOURNAL, SCORES, PromptPlaces, read_identity, read_prompts, read_receipt, refuse_missing
from harness.runs.journal import read_records
from harness.runs.records import SAMPLE_COLUMNS, Sample, Score

if TYPE_CHECKING:
    import pandas

Columns = dict[str, tuple[Any, Callable[[Any], Any]]]
"""Of each column its type, and what it says of a record. None is not a number."""
_FACTS: Columns = {
    "sample_index": (np.int32, attrgetter("sample_index")),
    "replicate": (np.int32, attrgetter("replicate")),
    "completion_tokens": (np.float64, attrgetter("completion_tokens")),
    # a log of a task without completions has none
    "characters": (np.int32, lambda sample: len(sample.completion or "")),
    "completion_checksum": (np.int64, lambda sample: crc32((sample.completion or "").encode("utf-8", "surrogatepass"))),
    "looping": (np.bool_, lambda sample: loops(sample.completion or "")),
}
_JUDGED: Columns = {
    "key": (object, attrgetter("key")),
    "verdict": (object, attrgetter("verdict")),
    "boxes_after_first": (np.float64, attrgetter("boxes_after_first")),
    **{name: (np.float32, attrgetter(name)) for name in GRADERS},
}
_TEXTS: Columns = {
    "completion": (object, lambda sample: sample.completion or ""),
    **{name: (object, attrgetter(name)) for name in ("finish_reason", "seed", "prompt_token_sha256", "prompt_tokens")},
}
_REASONS: Columns = {name: (object, attrgetter(name)) for name in ("reason", "audit_reason")}
"""What a frame with texts has besides, of a sample and of its score."""
_VERDICTS = get_args(Verdict)


def load_run(path: str | Path, *, replicates: bool = False, reference_conditions: bool = False) -> pandas.DataFrame:
    """A run as a tidy frame, one row per sample; needs neither torch nor lm-eval.

    By default it holds the samples that the tables compare: the config's conditions, each of them once. So
    `frame.groupby("condition")["correct"].mean()` gives the accuracies of `mless table`. `analysis.compare` makes
    the A/A columns of a frame with both replicates.

    Columns: model, condition, layout, problem_id, sample_index, replicate, draw (where there are several draws of
    examples), subject, level, verdict, correct, answer,
    target, completion, finish_reason, seed, prompt_sha256, prompt_token_sha256, prompt_tokens, completion_tokens, then
    the audit's: math_verify, exact_match_boxed, authors_rule, authors_rule_strict, boxes_after_first, reason,
    audit_reason. What a backend or grader does not tell is missing.

    Args:
        path: The run's folder.
        replicates: Whether to include second runs (A/A), those with `replicate` above 0.
        reference_conditions: Whether to include the conditions under other instructions (in `condition` as
            `mless-w01`, ...) and the positive control (`answer-at-once` or `no-examples`).

    Raises:
        RunError: there is no finished run there, a file of it is missing or damaged, or samples are missing or
            doubled.
    """
    folder = Path(path)
    receipt = read_receipt(folder)
    frame = read_frame(folder, receipt, read_prompts(folder), texts=True)
    if not replicates:
        frame = frame[frame["replicate"] == 0]
    if not reference_conditions:
        hidden = [name for name, condition in read_conditions(receipt["config"]).items() if condition.kind]
        frame = frame[~frame["condition"].isin(hidden)]
    return frame.reset_index(drop=True).assign(condition=lambda kept: kept["condition"].cat.remove_unused_categories())


def read_frame(
    folder: Path | None,
    receipt: Mapping[str, Any],
    prompts: Sequence[Mapping[str, Any]],
    *,
    texts: bool = False,
    read: Iterable[Iterable[Any]] = (),
) -> pandas.DataFrame:
    """The samples of a run with their verdicts, in the order of the prompts: layout, condition, problem, replicate.

    Args:
        folder: A run folder; None for samples of logs, which no run promises.
        receipt: `folder.read_receipt` of it, or as much of a receipt as there is yet: its config, the model's name.
        prompts: `folder.read_prompts` of it.
        texts: Whether to hold all that is known of each sample, the columns of `load_run`. Otherwise: model,
            condition, layout, problem_id, sample_index, replicate, subject, level, verdict, correct, answer, target,
            completion_tokens, characters, looping, completion_checksum, the graders' of `harness.grading`,
            boxes_after_first. Words are then categorical, and a completion is measured and let go.
        read: The folder's samples and scores, where they have been read.

    Raises:
        RunError: a file is missing or damaged, a sample or a score is missing or doubled, or a score says what no
            grader says.
    """
    import pandas

    if folder is None or read:
        recorded, graded = read
    else:
        recorded, graded = read_records(folder / JOURNAL, Sample), read_records(folder / SCORES, Score)
    answers: dict[str | None, int] = {}
    number: Columns = {"answer": (np.int32, lambda score: answers.setdefault(score.answer, len(answers)))}
    scores = _gather(graded, _JUDGED | number | (_REASONS if texts else {}))
    rows = {key: row for row, key in enumerate(scores.pop("key"))}
    matched: Columns = {
        "place": (np.int32, PromptPlaces(prompts).find),
        "score": (np.int32, lambda sample: rows.get(sample.key, -1)),
    }
    samples = _gather(recorded, matched | _FACTS | (_TEXTS if texts else {}))
    place, score = samples.pop("place"), samples.pop("score")
    if not len(place):
        raise RunError(f"{folder} holds no sample. The command that began it continues it.")
    for wrong, what in (
        (score < 0, "has no score. Run `mless regrade` on the folder"),
        (pandas.Series(score).duplicated().to_numpy(), "is there twice"),
    ):
        if wrong.any():
            prompt, index = prompts[place[wrong][0]], samples["sample_index"][wrong][0]
            raise RunError(f"{folder}: sample {index} of problem {prompt['doc']['id']}, {prompt['task']}, {what}.")
    if folder is not None:
        refuse_missing(folder, prompts, read_identity(folder), np.bincount(place, minlength=len(prompts)).tolist())
    label = receipt["config"]["model"]["label"] or receipt["model"]["name"]
    found: dict[str, Any] = {
        **samples,
        **{name: values[score] for name, values in scores.items()},
        "model": _categorical([label], np.zeros(len(place), dtype=int)),
        **{name: _categorical([row[name] for row in prompts], place) for name in ("condition", "layout")},
        **{
            name: _categorical([row["doc"][field] for row in prompts], place)
            for name, field in {"problem_id": "id", "subject": "subject", "level": "level", "target": "answer"}.items()
        },
    }
    if any(row["doc"].get("cluster") for row in prompts):
        found["cluster"] = _categorical([row["doc"].get("cluster") or row["doc"]["id"] for row in prompts], place)
    if any("draw" in row for row in prompts):
        found["draw"] = np.array([row["draw"] for row in prompts], dtype=np.int32)[place]
    found["verdict"] = pandas.Categorical(found["verdict"], categories=_VERDICTS)
    found["correct"] = np.asarray(found["verdict"] == "correct")
    found["answer"] = pandas.Categorical(np.array([*answers], dtype=object)[found["answer"]])
    found |= {name: pandas.arrays.BooleanArray(found[name] == 1, np.isnan(found[name])) for name in GRADERS}
    if texts:
        conditions = read_conditions(receipt["config"])
        descriptions = {name: condition.describe() for name, condition in conditions.items()}
        for name in ("filler", "filler_tokens", "placement", "words"):
            values = [descriptions.get(row["condition"], {}).get(name) for row in prompts]
            found[name] = pandas.array(values, dtype="Int32" if name == "filler_tokens" else "str")[place]
        found["prompt_sha256"] = np.array([row["prompt_sha256"] for row in prompts], dtype=object)[place]
    codes = (found[name].codes for name in ("condition", "layout"))
    order = np.lexsort((found["sample_index"], found["replicate"], place, *codes))
    names = SAMPLE_COLUMNS if texts else [*SAMPLE_COLUMNS, "characters", "looping", "completion_checksum"]
    frame = pandas.DataFrame({name: found[name][order] for name in names if name in found})
    plain = ("model", "problem_id", "subject", "cluster", "target", "verdict", "answer") if texts else ()
    frame = frame.astype({"level": int} | {name: frame[name].cat.categories.dtype for name in plain if name in frame})
    if not texts:
        frame["verdict"] = frame["verdict"].cat.remove_unused_categories()
    for name, kind in {"completion_tokens": np.int64, "boxes_after_first": np.int32}.items():
        if not frame[name].isna().any():
            frame[name] = frame[name].astype(kind)
    return frame.infer_objects()


def _gather(records: Iterable[Any], columns: Columns) -> dict[str, npt.NDArray[Any]]:
    """What the columns say of each record; only a batch of records is held."""
    parts: dict[str, list[npt.NDArray[Any]]] = {name: [np.empty(0, kind)] for name, (kind, _) in columns.items()}
    rest = iter(records)
    while batch := list(islice(rest, FRAME_BATCH)):
        for name, (kind, read) in columns.items():
            parts[name].append(np.fromiter(map(read, batch), kind, len(batch)))
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def _categorical(values: list[Any], place: npt.NDArray[Any]) -> pandas.Categorical[Any]:
    """What each sample's prompt says, in the prompts' order."""
    import pandas

    codes = {value: code for code, value in enumerate(dict.fromkeys(values))}
    numbers = np.array([codes[value] for value in values], dtype=np.int32)
    return pandas.Categorical.from_codes(numbers[place], pandas.Index(list(codes)), ordered=True)


def loops(completion: str) -> bool:
    """Whether a completion ends in a loop: its last `LOOP_LENGTH` characters occur `LOOP_COUNT` times or more.

    Occurrences do not overlap. A block of up to 100 characters is found if it repeats over the last 700, a longer one
    if it stands there four times; a loop that the model left again is not found.
    """
    text = completion.rstrip()
    if len(text) < LOOP_LENGTH * LOOP_COUNT:
        return False
    before = len(text) - LOOP_LENGTH
    # a few characters are looked for much faster than many, and in most texts they do not occur a second time
    return text.rfind(text[-16:], 0, before) >= 0 and text.count(text[before:]) >= LOOP_COUNT
