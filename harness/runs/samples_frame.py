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

from harness.errors import RunError
from harness.experiment.expand_conditions import read_conditions
from harness.grading import GRADERS, Verdict
from harness.runs.journal import read_records
from harness.runs.records import SAMPLE_COLUMNS, Prompt, Sample, Score
from harness.runs.run_folder import (
    JOURNAL,
    SCORES,
    PromptIndex,
    read_identity,
    read_prompts,
    read_receipt,
    refuse_missing,
)

if TYPE_CHECKING:
    import pandas

FRAME_BATCH = 200
"""Records that are held at once while their texts are measured: few enough to stay in the processor's cache."""
LOOP_LENGTH, LOOP_COUNT = 100, 4
"""A completion loops if its last so many characters occur so many times in it."""

Columns = dict[str, tuple[Any, Callable[[Any], Any]]]
"""Of each column its type, and what it says of a record. None is not a number."""
_KEY: Columns = {"key": (np.int64, lambda record: hash(record.key))}
"""64 bits stand for a key: two of a million coincide in one of 40 million runs, and as text they would take 240 MB."""
_FACTS: Columns = {
    "sample_index": (np.int32, attrgetter("sample_index")),
    "replicate": (np.int32, attrgetter("replicate")),
    "completion_tokens": (np.float64, attrgetter("completion_tokens")),
    # a log of a task without completions has none
    "characters": (np.int32, lambda sample: len(sample.completion or "")),
    "completion_checksum": (
        np.int64,
        lambda sample: crc32((sample.completion or "").encode("utf-8", "surrogatepass")),
    ),
    "looping": (np.bool_, lambda sample: loops(sample.completion or "")),
}
_JUDGED: Columns = {
    "verdict": (object, attrgetter("verdict")),
    "answer": (object, attrgetter("answer")),
    "boxes_after_first": (np.float64, attrgetter("boxes_after_first")),
    **{name: (np.float32, attrgetter(name)) for name in GRADERS},
}
_TEXTS: Columns = {
    "completion": (object, lambda sample: sample.completion or ""),
    **{
        name: (object, attrgetter(name))
        for name in ("finish_reason", "seed", "prompt_token_sha256", "prompt_tokens")
    },
}
_REASONS: Columns = {name: (object, attrgetter(name)) for name in ("reason", "audit_reason")}
"""What a frame with texts has besides, of a sample and of its score."""
_VERDICTS = get_args(Verdict)


def load_run(
    path: str | Path, *, replicates: bool = False, reference_conditions: bool = False
) -> pandas.DataFrame:
    """A run as a tidy frame, one row per sample; needs neither torch nor lm-eval.

    By default it holds the samples that the tables compare: the config's conditions, each of them once. So
    `frame.groupby("condition")["correct"].mean()` gives the accuracies of `mless table`. `analysis.compare` makes
    the A/A columns of a frame with both replicates.

    Columns: those of `records.SAMPLE_COLUMNS`, in their order. `draw` is there if there are several draws of examples,
    and `cluster` if problems have clusters. What a backend or grader does not tell is missing.

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
        hidden = [
            name for name, condition in read_conditions(receipt["config"]).items() if condition.kind
        ]
        frame = frame[~frame["condition"].isin(hidden)]
    return frame.reset_index(drop=True).assign(
        condition=lambda kept: kept["condition"].cat.remove_unused_categories()
    )


def read_frame(
    folder: Path | None,
    receipt: Mapping[str, Any],
    prompts: Sequence[Prompt],
    *,
    texts: bool = False,
    read: Iterable[Iterable[Any]] = (),
) -> pandas.DataFrame:
    """The samples of a run with their verdicts, in the order of the prompts: layout, condition, problem, replicate.

    Args:
        folder: A run folder; None for samples of logs, which no run promises.
        receipt: `run_folder.read_receipt` of it, or as much of a receipt as there is yet: its config, the model's name.
        prompts: `run_folder.read_prompts` of it.
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
        recorded, graded = (
            read_records(folder / JOURNAL, Sample),
            read_records(folder / SCORES, Score),
        )
    place: Columns = {"place": (np.int32, PromptIndex(prompts).find)}
    samples = _gather(recorded, _KEY | place | _FACTS | (_TEXTS if texts else {}))
    scores = _gather(graded, _KEY | _JUDGED | (_REASONS if texts else {}))
    if samples.empty:
        raise RunError(f"{folder} holds no sample. The command that began it continues it.")
    frame = samples.merge(scores, on="key", how="left", indicator="scored")
    for is_wrong, what in (
        (frame["scored"] == "left_only", "has no score. Run `mless regrade` on the folder"),
        (frame["key"].duplicated(), "is there twice"),
    ):
        if is_wrong.any():
            sample = frame[is_wrong].iloc[0]
            prompt, index = prompts[sample["place"]], sample["sample_index"]
            raise RunError(
                f"{folder}: sample {index} of problem {prompt.doc['id']}, {prompt.task}, {what}."
            )
    if folder is not None:
        counts = np.bincount(frame["place"], minlength=len(prompts)).tolist()
        refuse_missing(folder, prompts, read_identity(folder), counts)
    frame = frame.drop(columns=["key", "scored"]).join(
        _prompt_facts(receipt, prompts, texts=texts), on="place"
    )
    frame["verdict"] = pandas.Categorical(frame["verdict"], categories=_VERDICTS)
    frame["correct"] = frame["verdict"] == "correct"
    frame = frame.astype({"answer": "category"} | dict.fromkeys(GRADERS, "boolean"))
    order = ["layout", "condition", "place", "replicate", "sample_index"]
    frame = frame.sort_values(order, ignore_index=True)
    names = (
        SAMPLE_COLUMNS
        if texts
        else [*SAMPLE_COLUMNS, "characters", "looping", "completion_checksum"]
    )
    frame = frame[[name for name in names if name in frame]]
    plain = (
        ("model", "problem_id", "subject", "cluster", "target", "verdict", "answer")
        if texts
        else ()
    )
    frame = frame.astype(
        {"level": int} | {name: frame[name].cat.categories.dtype for name in plain if name in frame}
    )
    if not texts:
        frame["verdict"] = frame["verdict"].cat.remove_unused_categories()
    for name, kind in {"completion_tokens": np.int64, "boxes_after_first": np.int32}.items():
        if not frame[name].isna().any():
            frame[name] = frame[name].astype(kind)
    return frame.infer_objects()


def _gather(records: Iterable[Any], columns: Columns) -> pandas.DataFrame:
    """What the columns say of each record; only a batch of records is held."""
    import pandas

    parts: dict[str, list[npt.NDArray[Any]]] = {
        name: [np.empty(0, kind)] for name, (kind, _) in columns.items()
    }
    rest = iter(records)
    while batch := list(islice(rest, FRAME_BATCH)):
        for name, (kind, read) in columns.items():
            parts[name].append(np.fromiter(map(read, batch), kind, len(batch)))
    return pandas.DataFrame({name: np.concatenate(parts.pop(name)) for name in columns}, copy=False)


def _prompt_facts(
    receipt: Mapping[str, Any], prompts: Sequence[Prompt], *, texts: bool
) -> pandas.DataFrame:
    """What the samples of a prompt have in common: a row for each prompt."""
    import pandas

    docs = [prompt.doc for prompt in prompts]
    words = {
        "model": [receipt["config"]["model"]["label"] or receipt["model"]["name"]] * len(prompts),
        "condition": [prompt.condition for prompt in prompts],
        "layout": [prompt.layout for prompt in prompts],
        "problem_id": [doc["id"] for doc in docs],
        "subject": [doc["subject"] for doc in docs],
        "level": [doc["level"] for doc in docs],
        "target": [doc["answer"] for doc in docs],
    }
    if any(doc.get("cluster") for doc in docs):
        words["cluster"] = [doc.get("cluster") or doc["id"] for doc in docs]
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
