"""The samples of a run as a frame with one row per sample."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas

from harness.constants import ANSWER_LOGPROB, ANSWER_SHARE, JsonObject
from harness.experiment.condition_entries import read_conditions
from harness.experiment.model_settings import label_model
from harness.grading import GRADERS
from harness.runs.records import GradedSample, StoredPrompt
from harness.runs.run_files import RunFiles

SAMPLE_COLUMNS = f"""
model condition layout filler filler_tokens placement words problem_id sample_index replicate draw
subject level cluster verdict correct answer target {ANSWER_LOGPROB} {ANSWER_SHARE} answer_tokens
chance completion finish_reason seed prompt_sha256 prompt_token_sha256 prompt_tokens server_tokens
completion_tokens reason math_verify authors_rule authors_rule_strict audit_reason
""".split()
"""The columns of `load_run`, in their order. docs/samples.md has their types and meanings."""
# fields of `Sample` and `Score` that become columns of the same name
_SAMPLE_FIELDS = """sample_index replicate seed prompt_token_sha256 prompt_tokens server_tokens
finish_reason completion_tokens""".split()
_SCORE_FIELDS = ["verdict", "answer", "reason", "audit_reason", *GRADERS]


def load_run(
    path: str | Path, *, replicates: bool = False, reference_conditions: bool = False
) -> pandas.DataFrame:
    """A run as a tidy frame, one row per sample; needs neither torch nor lm-eval.

    By default it holds the samples that the tables compare: the config's conditions, each of them
    once. So `frame.groupby("condition")["correct"].mean()` gives the accuracies of `mless table`.
    `analysis.compare` makes the A/A columns of a frame with repeat runs.

    Columns: those of SAMPLE_COLUMNS, in their order. `draw` is there if there are several
    draws of examples, and `answer_logprob`, `answer_share`, `answer_tokens` and `chance` if that is
    the endpoint. A value that a backend or grader does not report is missing.

    Args:
        path: The run's folder.
        replicates: Whether to include repeat runs (A/A), those with `replicate` above 0.
        reference_conditions: Whether to include the other texts (in `condition` as `sentence-1`,
            ...) and the positive control (`answer-at-once` or `no-examples`).

    Raises:
        RunError: there is no finished run, a file of it is missing or damaged, or samples are
            missing or doubled.

    Example:
        >>> samples = mless.load_run("results/example")
        >>> samples["problem_id"].nunique()
        80
        >>> samples.groupby("condition")["filler_tokens"].max()[["wo", "mless"]].tolist()
        [0, 55]
    """
    files = RunFiles(Path(path))
    frame = read_frame(files)
    if not replicates:
        frame = frame[frame["replicate"] == 0]
    if not reference_conditions:
        reference_condition_names = [
            name
            for name, condition in read_conditions(files.receipt["config"]).items()
            if condition.kind
        ]
        frame = frame[~frame["condition"].isin(reference_condition_names)]
    frame = frame[[name for name in SAMPLE_COLUMNS if name in frame]].reset_index(drop=True)
    frame["condition"] = frame["condition"].cat.remove_unused_categories()
    # users get plain columns; condition and layout keep the order of tables as categories
    categorical_columns = frame.select_dtypes("category").columns.drop(["condition", "layout"])
    frame = frame.astype({name: frame[name].cat.categories.dtype for name in categorical_columns})
    return frame.infer_objects()


def read_frame(files: RunFiles) -> pandas.DataFrame:
    """The samples of a run with their verdicts, as `make_frame` returns them.

    Raises:
        RunError: a file is missing or damaged, a sample or a score is missing or doubled, or a
            score has a value that no grader gives.
    """
    return make_frame(files.receipt, files.prompts, files.graded_samples_of_prompts)


def make_frame(
    receipt: JsonObject,
    prompts: Sequence[StoredPrompt],
    graded_samples_of_prompts: Iterable[Sequence[GradedSample]],
) -> pandas.DataFrame:
    """Samples with their verdicts, by layout, condition, prompt, replicate and number.

    The columns are those of `load_run` and next_question, question. Texts that many rows share are
    categories, whose order is that of the prompts.

    Args:
        receipt: A run's receipt; for logs the keys that are read.
        prompts: All prompts.
        graded_samples_of_prompts: Those of each prompt.
    """
    frame = _make_sample_columns(prompts, graded_samples_of_prompts)
    frame = frame.join(_make_prompt_columns(receipt, prompts), on="prompt_index")
    frame["correct"] = frame["verdict"] == "correct"
    frame["verdict"] = frame["verdict"].astype("category")
    # Without any answer the categories would have another type than in other runs, with which
    # `join_samples` could not join them.
    answer_categories = pandas.Index(frame["answer"].dropna().unique(), dtype=object)
    frame["answer"] = pandas.Categorical(frame["answer"], categories=answer_categories)
    frame = frame.astype({"level": int} | dict.fromkeys(GRADERS, "boolean"))
    return frame.sort_values(
        "layout condition prompt_index replicate sample_index".split(), ignore_index=True
    ).drop(columns="prompt_index")


def _make_sample_columns(
    prompts: Sequence[StoredPrompt], graded_samples_of_prompts: Iterable[Sequence[GradedSample]]
) -> pandas.DataFrame:
    """The columns that differ between samples of a prompt, and the index of the prompt.

    Most are fields of a sample or of its score; `next_question` says whether the model added one.
    """
    samples = []
    scores = []
    completion_rows = []
    for prompt_index, (prompt, graded_samples) in enumerate(
        zip(prompts, graded_samples_of_prompts, strict=True)
    ):
        for sample, score in graded_samples:
            # a log of a task that only scores given continuations has no completions
            completion = sample.completion or ""
            has_next_question = prompt.cut_next_question(completion) != completion
            completion_rows.append((prompt_index, completion, has_next_question))
            samples.append(sample)
            scores.append(score)
    # as objects, because every selection of rows would copy completions of pandas' type `str`
    frame = pandas.DataFrame(
        completion_rows, columns=["prompt_index", "completion", "next_question"], dtype=object
    ).astype({"prompt_index": int, "next_question": bool})
    for records, field_names in ((samples, _SAMPLE_FIELDS), (scores, _SCORE_FIELDS)):
        for name in field_names:
            frame[name] = [getattr(record, name) for record in records]
    # without any number the column would be of type object
    frame["completion_tokens"] = pandas.to_numeric(frame["completion_tokens"])
    # all samples have an answer score if that is the run's endpoint, else none
    answer_scores = [sample.answer_score for sample in samples if sample.answer_score]
    if answer_scores:
        frame[ANSWER_LOGPROB] = [score.logprob for score in answer_scores]
        frame[ANSWER_SHARE] = [score.log_share for score in answer_scores]
        frame["answer_tokens"] = np.array([len(score.tokens) for score in answer_scores], np.int32)
        # the percentage of right guesses among the gold answer and the others
        frame["chance"] = [100 / (1 + len(score.others)) for score in answer_scores]
    return frame


def _make_prompt_columns(receipt: JsonObject, prompts: Sequence[StoredPrompt]) -> pandas.DataFrame:
    """The columns that are the same for all samples of a prompt: a row for each prompt."""
    model_label = receipt["config"]["model"]["label"] or label_model(receipt["model"]["name"])
    first_prompt_by_id: dict[str, StoredPrompt] = {}
    rows = []
    for prompt in prompts:
        doc = prompt.doc
        # all conditions get the question of the first, because in other tasks' logs it has the
        # filler
        first_prompt = first_prompt_by_id.setdefault(doc["id"], prompt)
        rows.append(
            {
                "model": model_label,
                "condition": prompt.condition,
                "layout": prompt.layout,
                "problem_id": doc["id"],
                "subject": doc["subject"],
                "level": doc["level"],
                "target": doc["answer"],
                "cluster": first_prompt.cluster,
                "question": first_prompt.question,
            }
        )
    prompt_frame = pandas.DataFrame(rows, dtype=object)
    for name, column in prompt_frame.items():
        # in the order in which they first occur, which is that of tables
        prompt_frame[name] = pandas.Categorical(
            column, categories=list(dict.fromkeys(column)), ordered=True
        )
    if any(prompt.draw for prompt in prompts):
        prompt_frame["draw"] = np.array([prompt.draw for prompt in prompts], dtype=np.int32)
    facts_by_condition = {
        name: condition.describe() for name, condition in read_conditions(receipt["config"]).items()
    }
    for name in "filler filler_tokens placement words".split():
        cells = [facts_by_condition.get(prompt.condition, {}).get(name) for prompt in prompts]
        prompt_frame[name] = pandas.array(
            cells, dtype="Int32" if name == "filler_tokens" else "str"
        )
    prompt_frame["prompt_sha256"] = [prompt.prompt_sha256 for prompt in prompts]
    return prompt_frame
