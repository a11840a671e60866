"""A run on disk as a tidy frame: journal, scores and prompts joined, one row per sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import RunError
from harness.experiment.rewordings import is_edit
from harness.runs.folder import (
    JOURNAL,
    RECEIPT,
    read_config,
    read_identity,
    read_prompts,
    read_samples,
    read_scores,
    refuse_missing,
)
from harness.runs.schemas import ReceiptForm, SampleForm, encodable, fit

if TYPE_CHECKING:
    import pandas


def read_receipt(folder: Path) -> dict[str, Any]:
    """The run's receipt.

    Raises:
        RunError: there is no finished run, or its receipt is damaged or another file.
    """
    path = folder / RECEIPT
    if not path.is_file():
        raise RunError(
            f"{folder} holds no finished run: expected {RECEIPT} in it. Check the path; an interrupted run is "
            "continued by the command that began it."
        )
    remedy = "Run the command that made it again, or restore it from a copy."
    try:
        receipt: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} is torn or damaged ({error}). {remedy}") from None
    fit(ReceiptForm, receipt, path, remedy)
    return receipt


def load_run(path: str | Path, *, replicates: bool = False, rewordings: bool = False) -> pandas.DataFrame:
    """A run as a tidy frame, one row per sample; needs neither torch nor lm-eval.

    By default it holds the samples that the tables compare: the config's conditions, each of them once. So
    `frame.groupby("condition")["correct"].mean()` gives the accuracies of `mless table`. `analysis.compare` makes
    the A/A columns and the prompt null of a frame with both options.

    Columns: model, condition, layout, problem_id, sample_index, replicate, subject, level, verdict, correct, answer,
    target, completion, finish_reason, seed, prompt_sha256, prompt_token_sha256, prompt_tokens, completion_tokens, then
    the audit's: math_verify, exact_match, exact_match_boxed, authors_rule, authors_rule_strict, first_box,
    boxes_after_first, reason, audit_reason. What a backend or grader does not tell is missing. Half a surrogate pair,
    which is no text, is spelt out in completions and answers (`\\ud800`).

    Args:
        path: The run's folder.
        replicates: Whether to include the further replicates of the baseline (A/A), those with `replicate` above 0.
        rewordings: Whether to include the harmless edits of the prompt (the prompt null), which stand in `condition`
            as `edit-01`, `edit-02`, ...

    Raises:
        RunError: there is no finished run there, a file of it is missing or damaged, or samples are missing or
            doubled.
    """
    folder = Path(path)
    config = read_receipt(folder)["config"]
    frame = read_frame(folder)
    counts = frame.groupby(["condition", "layout", "problem_id"], observed=True).size().to_dict()
    prompts = read_prompts(folder)
    there = [counts.get((row["condition"], row["layout"], row["doc"]["id"]), 0) for row in prompts]
    refuse_missing(folder, prompts, config, there)
    if not replicates:
        frame = frame[frame["replicate"] == 0]
    if not rewordings:
        frame = frame[~frame["condition"].map(is_edit).astype(bool)]
    return frame.reset_index(drop=True).assign(condition=lambda kept: kept["condition"].cat.remove_unused_categories())


def read_frame(folder: Path) -> pandas.DataFrame:
    """All samples of a run as `load_run` has them, whether the run counts as finished or not.

    Raises:
        RunError: a file is missing or damaged, or a score is missing.
    """
    import pandas

    config = read_config(folder)
    model = config["model"]["label"] or read_identity(folder)["model"]["name"]
    prompts = {(row["task"], row["doc"]["id"]): row for row in read_prompts(folder)}
    scores = read_scores(folder)
    rows = []
    for sample in read_samples(folder):
        fit(SampleForm, sample, folder / JOURNAL, "Restore the file from a copy.")
        row = prompts.get((sample["task"], sample["problem_id"]))
        score = scores.get(sample["key"])
        if row is None or score is None:
            missing = "prompt" if row is None else "score"
            raise RunError(
                f"{folder}: the {missing} of problem {sample['problem_id']}, {sample['task']}, is missing. Run "
                "`mless regrade` on the folder, or restore its files."
            )
        doc = row["doc"]
        rows.append(
            {
                "model": model,
                "condition": row["condition"],
                "layout": row["layout"],
                "problem_id": doc["id"],
                "sample_index": sample["sample_index"],
                "replicate": sample["replicate"],
                "subject": doc["subject"],
                "level": doc["level"],
                "verdict": score["verdict"],
                "correct": score["verdict"] == "correct",
                "answer": None if score["answer"] is None else encodable(score["answer"]),
                "target": doc["answer"],
                "completion": encodable(sample["completion"]),
                "finish_reason": sample["finish_reason"],
                "seed": sample["seed"],
                "prompt_sha256": row["prompt_sha256"],
                "prompt_token_sha256": sample["prompt_token_sha256"],
                "prompt_tokens": sample["prompt_tokens"],
                "completion_tokens": sample["completion_tokens"],
                **{name: value for name, value in score.items() if name not in ("key", "verdict", "answer")},
            }
        )
    # the journal is in the order of finishing; a frame is in the order of the prompts
    place = {key: number for number, key in enumerate(prompts)}
    frame = pandas.DataFrame(rows)
    for column in ("condition", "layout"):
        order = list(dict.fromkeys(row[column] for row in prompts.values()))
        frame[column] = pandas.Categorical(frame[column], categories=order, ordered=True)
    tasks = dict(((row["condition"], row["layout"]), row["task"]) for row in prompts.values())
    frame["_place"] = [
        place[tasks[condition, layout], problem]
        for condition, layout, problem in zip(frame["condition"], frame["layout"], frame["problem_id"], strict=True)
    ]
    ordered = frame.sort_values(["layout", "condition", "_place", "replicate", "sample_index"], ignore_index=True)
    return ordered.drop(columns="_place")
