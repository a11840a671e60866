"""The samples of a run as a frame with one row per sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE
from harness.errors import JournalError, RunError, list_first
from harness.experiment.expand_conditions import read_conditions
from harness.experiment.model_settings import label_model
from harness.grading import GRADERS
from harness.grading.answer_forms import has_other_form
from harness.reasoning_markers import find_opened
from harness.runs.records import SAMPLE_COLUMNS, Sample, Score, StoredPrompt
from harness.runs.run_files import (
    PromptIndex,
    read_identity,
    read_prompts,
    read_receipt,
    read_samples,
    read_scores,
)

if TYPE_CHECKING:
    import pandas

Columns = dict[str, tuple[Any, Callable[[Any], Any]]]
"""The type of each column, and the function that reads it from a record. None becomes NaN."""


def _fields(dtype: Any, *names: str) -> Columns:
    """Columns that are fields of a record."""
    return {name: (dtype, attrgetter(name)) for name in names}


_FACTS: Columns = {
    **_fields(np.int32, "sample_index", "replicate"),
    # a log of a task without completions has the completion None
    "completion": (object, lambda sample: sample.completion or ""),
    **_fields(
        object, "finish_reason", "seed", "prompt_token_sha256", "prompt_tokens", "server_tokens"
    ),
    **_fields(np.float64, "completion_tokens"),
}
_GRADES: Columns = {
    **_fields(object, "verdict", "answer", "reason", "audit_reason"),
    **_fields(np.float64, "boxes_after_first"),
    **_fields(np.float32, *GRADERS),
}
_ANSWER_SCORES: Columns = {
    ANSWER_LOGPROB: (np.float64, attrgetter("answer_score.total")),
    ANSWER_SHARE: (np.float64, attrgetter("answer_score.log_share")),
    "answer_tokens": (np.int32, lambda sample: len(sample.answer_score.tokens)),
}
"""Further columns of a sample with the endpoint `answer_logprob`."""


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
    frame = read_frame(folder, receipt, read_prompts(folder))
    if not replicates:
        frame = frame[frame["replicate"] == 0]
    if not reference_conditions:
        conditions = read_conditions(receipt["config"])
        hidden_names = [name for name, condition in conditions.items() if condition.kind]
        frame = frame[~frame["condition"].isin(hidden_names)]
    frame = frame[[name for name in SAMPLE_COLUMNS if name in frame]].reset_index(drop=True)
    frame["condition"] = frame["condition"].cat.remove_unused_categories()
    words = frame.select_dtypes("category").columns.drop(["condition", "layout"])
    frame = frame.astype({name: frame[name].cat.categories.dtype for name in words})
    return frame.infer_objects()


def read_frame(
    folder: Path | None,
    receipt: Mapping[str, Any],
    prompts: Sequence[StoredPrompt],
    records: tuple[Iterable[Sample], Mapping[str, Score]] | None = None,
) -> pandas.DataFrame:
    """The samples of a run with their verdicts, in the order of the prompts.

    The order is: layout, condition, problem, replicate. The columns are those of `load_run` and
    other_form, next_question, question. Words are categorical.

    Args:
        folder: A run folder; None for samples of logs, which may be incomplete.
        receipt: `run_files.read_receipt` of the folder, or the keys of a receipt that exist so
            far: the config, the model's name.
        prompts: `run_files.read_prompts` of the folder.
        records: The folder's samples, and its scores by key, if they have been read.

    Raises:
        RunError: a file is missing or damaged, a sample or a score is missing or doubled, or a
            score has a value that no grader gives.
    """
    import pandas

    if records is None:
        assert folder is not None
        records = read_samples(folder), read_scores(folder)
    samples, scores = list(records[0]), records[1]
    if not samples:
        raise RunError(f"{folder} has no sample. Repeat the command that began it.")
    _refuse_bad_samples(folder, samples, scores)
    facts = _FACTS | _prompt_columns(prompts)
    if receipt["config"].get("endpoint") == ANSWER_LOGPROB:
        facts |= _ANSWER_SCORES
    columns = {
        **_gather(samples, facts),
        **_gather([scores[sample.key] for sample in samples], _GRADES),
    }
    frame = pandas.DataFrame(columns)
    if folder is not None:
        _refuse_missing_samples(folder, frame, prompts)
    frame = frame.join(_prompt_facts(receipt, prompts), on="prompt_index")
    frame["correct"] = frame["verdict"] == "correct"
    frame["verdict"] = frame["verdict"].astype("category")
    # of type object even without any answer, so that runs can be joined
    answers = pandas.Index(frame["answer"].dropna().unique(), dtype=object)
    frame["answer"] = pandas.Categorical(frame["answer"], categories=answers)
    frame = frame.astype({"level": int, **dict.fromkeys(GRADERS, "boolean")})
    order = ["layout", "condition", "prompt_index", "replicate", "sample_index"]
    frame = frame.sort_values(order, ignore_index=True).drop(columns="prompt_index")
    # whole numbers where none is missing, as numpy's integers have no missing value
    for name, dtype in {"completion_tokens": np.int64, "boxes_after_first": np.int32}.items():
        if not frame[name].isna().any():
            frame[name] = frame[name].astype(dtype)
    return frame


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


def _gather(records: Sequence[Any], columns: Columns) -> dict[str, pandas.Series]:
    """Each column of the records."""
    import pandas

    return {
        name: pandas.Series(map(read_field, records), dtype=dtype)
        for name, (dtype, read_field) in columns.items()
    }


def _refuse_bad_samples(
    folder: Path | None, samples: Sequence[Sample], scores: Mapping[str, Score]
) -> None:
    """Raise RunError if a sample has no score or is there twice."""
    counts = Counter(sample.key for sample in samples)
    for sample in samples:
        if sample.key not in scores:
            problem = "has no score. Run `mless regrade` on the folder"
        elif counts[sample.key] > 1:
            problem = "occurs twice"
        else:
            continue
        raise RunError(
            f"{folder or 'logs'}: sample {sample.sample_index} of problem {sample.problem_id}, "
            f"{sample.task}, {problem}."
        )


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


def _prompt_facts(receipt: Mapping[str, Any], prompts: Sequence[StoredPrompt]) -> pandas.DataFrame:
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
    conditions = read_conditions(receipt["config"])
    descriptions = {name: condition.describe() for name, condition in conditions.items()}
    for name in ("filler", "filler_tokens", "placement", "words"):
        values = [descriptions.get(prompt.condition, {}).get(name) for prompt in prompts]
        facts[name] = pandas.array(values, dtype="Int32" if name == "filler_tokens" else "str")
    facts["prompt_sha256"] = [prompt.prompt_sha256 for prompt in prompts]
    return facts
