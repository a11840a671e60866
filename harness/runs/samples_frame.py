"""The samples of a run as a frame with one row per sample.

With texts it is for people; without them it is for tables of up to a million samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from zlib import crc32

import numpy as np
import numpy.typing as npt

from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE
from harness.errors import JournalError, RunError, list_first
from harness.experiment.expand_conditions import read_conditions
from harness.grading import GRADERS, Verdict
from harness.grading.answer_forms import has_other_form
from harness.reasoning_markers import find_opened
from harness.runs.journal import read_records
from harness.runs.records import SAMPLE_COLUMNS, Sample, Score, StoredPrompt
from harness.runs.run_files import (
    SCORES,
    PromptIndex,
    read_identity,
    read_prompts,
    read_receipt,
    read_samples,
)
from harness.smollm2_model import label_model

if TYPE_CHECKING:
    import pandas

FRAME_BATCH = 200
"""Records in memory while their texts are measured: few enough to stay in the processor's cache."""
LOOP_LENGTH, LOOP_COUNT = 100, 4
"""A completion loops if its last `LOOP_LENGTH` characters occur `LOOP_COUNT` times in it."""

Columns = dict[str, tuple[Any, Callable[[Any], Any]]]
"""The type of each column, and the function that reads it from a record. None becomes NaN."""


def _fields(dtype: Any, *names: str) -> Columns:
    """Columns that are fields of a record."""
    return {name: (dtype, attrgetter(name)) for name in names}


def _checksum(sample: Sample) -> int:
    return crc32((sample.completion or "").encode("utf-8", "surrogatepass"))


# Python's hash of a text differs between processes. This one never leaves its process.
_KEY: Columns = {"key": (np.int64, lambda record: hash(record.key))}
"""The 64-bit hash of a key.

Two keys of a million have the same hash in one of 40 million runs; as text they would take 240 MB.
"""
# a log of a task without completions has the completion None
_FACTS: Columns = {
    **_fields(np.int32, "sample_index", "replicate"),
    **_fields(np.float64, "completion_tokens"),
    "completion_checksum": (np.int64, _checksum),
    "is_at_limit": (np.bool_, lambda sample: sample.finish_reason == "length"),
    "looping": (np.bool_, lambda sample: loops(sample.completion or "")),
}
_GRADES: Columns = {
    **_fields(object, "verdict", "answer"),
    **_fields(np.float64, "boxes_after_first"),
    **_fields(np.float32, *GRADERS),
}
_TEXTS: Columns = {
    "completion": (object, lambda sample: sample.completion or ""),
    **_fields(object, "finish_reason", "seed", "prompt_token_sha256", "prompt_tokens"),
}
"""Further columns of a sample in a frame with texts."""
_ANSWER_SCORES: Columns = {
    ANSWER_LOGPROB: (np.float64, attrgetter("answer_score.total")),
    ANSWER_SHARE: (np.float64, attrgetter("answer_score.log_share")),
    "answer_tokens": (np.int32, lambda sample: len(sample.answer_score.tokens)),
}
"""Further columns of a sample with the endpoint `answer_logprob`."""
_REASONS = _fields(object, "reason", "audit_reason")
"""Further columns of a score in a frame with texts."""


def load_run(
    path: str | Path, *, replicates: bool = False, reference_conditions: bool = False
) -> pandas.DataFrame:
    """A run as a tidy frame, one row per sample; needs neither torch nor lm-eval.

    By default it holds the samples that the tables compare: the config's conditions, each of them
    once. So `frame.groupby("condition")["correct"].mean()` gives the accuracies of `mless table`.
    `analysis.compare` makes the A/A columns of a frame with both replicates.

    Columns: those of `records.SAMPLE_COLUMNS`, in their order. `draw` is there if there are several
    draws of examples, and `answer_logprob`, `answer_share`
    and `answer_tokens` if that is the endpoint. A value that a backend or grader does not report is
    missing.

    Args:
        path: The run's folder.
        replicates: Whether to include repeat runs (A/A), those with `replicate` above 0.
        reference_conditions: Whether to include the conditions under other instructions (in
            `condition` as `mless-w01`, ...) and the positive control (`answer-at-once` or
            `no-examples`).

    Raises:
        RunError: there is no finished run, a file of it is missing or damaged, or samples are
            missing or doubled.
    """
    folder = Path(path)
    receipt = read_receipt(folder)
    frame = read_frame(folder, receipt, read_prompts(folder), texts=True)
    if not replicates:
        frame = frame[frame["replicate"] == 0]
    if not reference_conditions:
        conditions = read_conditions(receipt["config"])
        hidden_names = [name for name, condition in conditions.items() if condition.kind]
        frame = frame[~frame["condition"].isin(hidden_names)]
    frame = frame.reset_index(drop=True)
    return frame.assign(condition=frame["condition"].cat.remove_unused_categories())


def read_frame(
    folder: Path | None,
    receipt: Mapping[str, Any],
    prompts: Sequence[StoredPrompt],
    *,
    texts: bool = False,
    records: Iterable[Iterable[Any]] | None = None,
) -> pandas.DataFrame:
    """The samples of a run with their verdicts, in the order of the prompts.

    The order is: layout, condition, problem, replicate.

    Args:
        folder: A run folder; None for samples of logs, which may be incomplete.
        receipt: `run_files.read_receipt` of the folder, or the keys of a receipt that exist so
            far: the config, the model's name.
        prompts: `run_files.read_prompts` of the folder.
        texts: Whether to have the columns of `load_run`. Without texts the columns are: model,
            condition, layout, problem_id, sample_index, replicate, subject, level, cluster,
            verdict, correct, answer, target, completion_tokens, looping, other_form,
            next_question, is_at_limit, completion_checksum, question, the graders' of
            `harness.grading`, boxes_after_first. Words are then categorical, and a completion is
            measured and not stored.
        records: The folder's samples and scores, if they have been read.

    Raises:
        RunError: a file is missing or damaged, a sample or a score is missing or doubled, or a
            score has a value that no grader gives.
    """
    import pandas

    if records is None:
        assert folder is not None
        records = read_samples(folder), read_records(folder / SCORES, Score)
    sample_records, score_records = records
    facts = _FACTS | _prompt_columns(prompts)
    if receipt["config"].get("endpoint") == ANSWER_LOGPROB:
        facts |= _ANSWER_SCORES
    samples = _gather(sample_records, _KEY | facts | (_TEXTS if texts else {}))
    scores = _gather(score_records, _KEY | _GRADES | (_REASONS if texts else {}))
    if samples.empty:
        raise RunError(f"{folder} has no sample. Repeat the command that began it.")
    # `left`, so that a sample without a score is found and refused
    frame = samples.merge(scores, on="key", how="left", indicator="scored")
    _refuse_bad_samples(folder, frame, prompts)
    prompt_facts = _prompt_facts(receipt, prompts, texts=texts)
    frame = frame.drop(columns=["key", "scored"]).join(prompt_facts, on="prompt_index")
    frame["verdict"] = pandas.Categorical(frame["verdict"], categories=get_args(Verdict))
    frame["correct"] = frame["verdict"] == "correct"
    # of type object even without any answer, so that runs can be joined
    answers = pandas.Index(frame["answer"].dropna().unique(), dtype=object)
    frame["answer"] = pandas.Categorical(frame["answer"], categories=answers)
    frame = frame.astype({"level": int, **dict.fromkeys(GRADERS, "boolean")})
    order = ["layout", "condition", "prompt_index", "replicate", "sample_index"]
    frame = frame.sort_values(order, ignore_index=True)
    return _choose_columns(frame, texts=texts)


def _prompt_columns(prompts: Sequence[StoredPrompt]) -> Columns:
    """The columns of a sample that depend on its prompt, such as the form of the answer."""
    find_index = PromptIndex(prompts).find
    starts = [find_opened(prompt.prompt, prompt.thinking)[0] for prompt in prompts]

    def cut(sample: Sample) -> str:
        return prompts[find_index(sample)].cut_next_question(sample.completion or "")

    def read_form(sample: Sample) -> bool:
        index = find_index(sample)
        return has_other_form(starts[index] + cut(sample), prompts[index].thinking)

    return {
        "prompt_index": (np.int32, find_index),
        "other_form": (np.bool_, read_form),
        "next_question": (np.bool_, lambda sample: cut(sample) != (sample.completion or "")),
    }


def _choose_columns(frame: pandas.DataFrame, *, texts: bool) -> pandas.DataFrame:
    """The columns that `read_frame` returns, in their order and types."""
    names = [*SAMPLE_COLUMNS]
    if texts:
        words = ["model", "problem_id", "subject", "cluster", "target", "verdict", "answer"]
        words = [name for name in words if name in frame]
        frame = frame.astype({name: frame[name].cat.categories.dtype for name in words})
    else:
        names += ["looping", "other_form", "next_question", "is_at_limit"]
        names += ["completion_checksum", "question"]
        frame["verdict"] = frame["verdict"].cat.remove_unused_categories()
    # whole numbers where none is missing, as numpy's integers have no missing value
    for name, dtype in {"completion_tokens": np.int64, "boxes_after_first": np.int32}.items():
        if not frame[name].isna().any():
            frame[name] = frame[name].astype(dtype)
    return frame[[name for name in names if name in frame]].infer_objects()


def _refuse_bad_samples(
    folder: Path | None, frame: pandas.DataFrame, prompts: Sequence[StoredPrompt]
) -> None:
    """Raise RunError if a sample has no score or is there twice, or a folder lacks samples."""
    for is_bad, problem in (
        (frame["scored"] == "left_only", "has no score. Run `mless regrade` on the folder"),
        (frame["key"].duplicated(), "occurs twice"),
    ):
        if is_bad.any():
            sample = frame[is_bad].iloc[0]
            prompt = prompts[sample["prompt_index"]]
            raise RunError(
                f"{folder or 'logs'}: sample {sample['sample_index']} of problem "
                f"{prompt.doc['id']}, {prompt.task}, {problem}."
            )
    if folder is not None:
        _refuse_missing_samples(folder, frame, prompts)


def _refuse_missing_samples(
    folder: Path, frame: pandas.DataFrame, prompts: Sequence[StoredPrompt]
) -> None:
    """Raise JournalError if a prompt has fewer samples than in a finished run."""
    arms = read_identity(folder).arms
    expected = [arms[prompt.task].replicates * arms[prompt.task].samples for prompt in prompts]
    counts = np.bincount(frame["prompt_index"], minlength=len(prompts))
    short = [prompts[index] for index in np.flatnonzero(counts < expected)]
    if short:
        names = [f"{prompt.doc['id']} ({prompt.task})" for prompt in short]
        raise JournalError(
            f"{folder}: samples are missing: expected {sum(expected)}, got {len(frame)}, too few "
            f"of problem {list_first(names)}. Repeat the command that began the run."
        )


def _gather(records: Iterable[Any], columns: Columns) -> pandas.DataFrame:
    """The columns of all records; only a batch of records is in memory."""
    import pandas

    chunks: dict[str, list[npt.NDArray[Any]]] = {
        name: [np.empty(0, dtype)] for name, (dtype, _) in columns.items()
    }
    remaining = iter(records)
    while batch := list(islice(remaining, FRAME_BATCH)):
        for name, (dtype, read_field) in columns.items():
            chunks[name].append(np.fromiter(map(read_field, batch), dtype, len(batch)))
    # `pop` frees a column's chunks before the next column is made
    arrays = {name: np.concatenate(chunks.pop(name)) for name in columns}
    return pandas.DataFrame(arrays, copy=False)


def _prompt_facts(
    receipt: Mapping[str, Any], prompts: Sequence[StoredPrompt], *, texts: bool
) -> pandas.DataFrame:
    """The columns that are the same for all samples of a prompt: a row for each prompt."""
    import pandas

    docs = [prompt.doc for prompt in prompts]
    label = receipt["config"]["model"]["label"] or label_model(receipt["model"]["name"])
    words = {
        "model": [label] * len(prompts),
        "condition": [prompt.condition for prompt in prompts],
        "layout": [prompt.layout for prompt in prompts],
        "problem_id": [doc["id"] for doc in docs],
        "subject": [doc["subject"] for doc in docs],
        "level": [doc["level"] for doc in docs],
        "target": [doc["answer"] for doc in docs],
    }
    # of one condition, because in a log of another task the question contains the filler
    first_prompts: dict[str, StoredPrompt] = {}
    for prompt in prompts:
        first_prompts.setdefault(prompt.doc["id"], prompt)
    for name in ("cluster", "question"):
        words[name] = [getattr(first_prompts[doc["id"]], name) for doc in docs]
    facts = pandas.DataFrame(
        {
            name: pandas.Categorical(values, categories=list(dict.fromkeys(values)), ordered=True)
            for name, values in words.items()
        }
    )
    if any(prompt.draw for prompt in prompts):
        facts["draw"] = np.array([prompt.draw for prompt in prompts], dtype=np.int32)
    if texts:
        conditions = read_conditions(receipt["config"])
        descriptions = {name: condition.describe() for name, condition in conditions.items()}
        for name in ("filler", "filler_tokens", "placement", "words"):
            values = [descriptions.get(prompt.condition, {}).get(name) for prompt in prompts]
            facts[name] = pandas.array(values, dtype="Int32" if name == "filler_tokens" else "str")
        facts["prompt_sha256"] = [prompt.prompt_sha256 for prompt in prompts]
    return facts


def loops(completion: str) -> bool:
    """Whether the last `LOOP_LENGTH` characters of a completion occur `LOOP_COUNT` times or more.

    Occurrences do not overlap. A block of up to 100 characters is detected if it repeats over the
    last 700 characters, a longer block if it occurs four times. A loop that the model left again is
    not detected.
    """
    text = completion.rstrip()
    if len(text) < LOOP_LENGTH * LOOP_COUNT:
        return False
    start = len(text) - LOOP_LENGTH
    # searching 16 characters is much faster, and in most texts they do not occur a second time
    return text.rfind(text[-16:], 0, start) >= 0 and text.count(text[start:]) >= LOOP_COUNT
