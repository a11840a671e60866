"""One reader for all who read runs: tables, plots, report, flips and probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.experiment.conditions import contrast_name, find_yardsticks
from harness.experiment.config import fixed_arguments
from harness.experiment.plan import hash_json
from harness.experiment.prompt import document_prompt, hash_problem
from harness.runs.folder import (
    GRADE_ANEW,
    JOURNAL,
    PROMPTS,
    RECEIPT,
    SCORES,
    read_identity,
    read_prompts,
    read_samples,
    refuse_missing,
    stream_scores,
)
from harness.runs.lm_eval_logs.run_of_logs import read_logs
from harness.runs.lm_eval_logs.sample_log import find_logs
from harness.runs.records import Sample, Score
from harness.runs.run import Run
from harness.runs.run_prompts import RunPrompt
from harness.runs.sample_frame import match_records, read_frame, read_receipt
from harness.runs.stored_files import hash_stored, is_stored


def read_run(path: Path | str | Mapping[str, Path], *, metric: str | None = None) -> Run:
    """Read a run.

    Args:
        path: A run folder of ours; what `lm_eval --log_samples` wrote for our tasks, a folder or one file; or for any
            task a mapping of condition to sample log.
        metric: What in logs of other tasks says right or wrong; see `lm_eval_logs.read_log`.

    Raises:
        ConfigError: a metric for a run folder of ours.
        RunError: there is no finished run there, or a file of it is missing, damaged or no sample log.
        ComparisonError: the logs are of several task versions or settings, or ask other problems under one id.
    """
    if isinstance(path, Mapping):
        name = " ".join(f"{condition}={file}" for condition, file in path.items())
        return read_logs(name, [(condition, Path(file)) for condition, file in path.items()], metric=metric)
    path = Path(path)
    files = find_logs(path) if path.is_dir() else [path] if path.exists() or path.suffix == ".jsonl" else []
    if any(is_stored(path / name) for name in (RECEIPT, JOURNAL)) or not files:
        run = _read_folder(path)  # whose refusal says what was expected
        if metric not in (None, run.metric):
            raise ConfigError(
                f"{path} is a run of mless, whose verdicts are its own grader's: expected no --metric, which reads "
                f"logs of other tasks, got {metric!r}. Leave it out; `mless table --audit` shows the other graders."
            )
        return run
    return read_logs(str(path), [(None, file) for file in files], metric=metric)


def _read_folder(path: Path) -> Run:
    receipt, prompts = read_receipt(path), read_prompts(path)
    arguments = receipt["config"]["model"]["arguments"]
    identity, engine = read_identity(path), receipt["engine"]
    sampling = next(iter(identity.arms.values())).sampling  # a config has one for all its conditions
    facts = {
        "source": "run",
        "run": receipt["run"],
        "model": receipt["config"]["model"]["label"] or receipt["model"]["name"],
        "model_sha256": hash_json(receipt["model"]),
        "dataset": receipt["dataset"]["sha256"],
        "dataset_name": receipt["dataset"]["name"],
        "problems": receipt["problems"],
        "prompt_version": receipt["prompt_version"],
        "task_version": receipt["task_version"],
        "grader_version": receipt["grader_version"],
        "prompts_sha256": receipt["prompts_sha256"],
        "journal_sha256": hash_stored(path / JOURNAL),
        "scores_sha256": hash_stored(path / SCORES, GRADE_ANEW),
        "sampling": sampling.lm_eval(),
        "settings": _run_settings(receipt),
        "greedy": sampling.greedy,
        "backend": receipt["engine"]["name"],
        "engine": " ".join(filter(None, [engine["name"], engine["version"], "on", engine["device"] or "unknown"])),
        "contrasts": [contrast_name(*pair) for pair in identity.contrasts],
        "primary": identity.primary and contrast_name(*identity.primary),
        "study": identity.config.get("study"),
        "yardsticks": find_yardsticks(dict.fromkeys(row["condition"] for row in prompts)),
        "seed": receipt["seed"],
        "created": receipt["created"],
        "versions": receipt["versions"],
        "git_revision": receipt["git_revision"],
    }
    docs = {row["doc"]["id"]: row["doc"] for row in prompts}
    problems = {name: hash_problem(doc, doc["answer"]) for name, doc in docs.items()}
    return Run(
        name=str(path),
        facts=facts,
        problems=problems,
        model=next((arguments[name] for name in ("pretrained", "model", "tokenizer") if arguments.get(name)), None),
        receipt=receipt,
        metric="verdict",
        read_frame=lambda: read_frame(path, receipt, prompts),
        read_texts=lambda: read_frame(path, receipt, prompts, texts=True),
        read_prompts=lambda: _asked(path, prompts),
    )


def _asked(path: Path, prompts: Sequence[Mapping[str, Any]]) -> list[RunPrompt]:
    """The prompts with what came back the first time; further replicates measure noise.

    Raises:
        RunError: a sample or a score is missing.
    """
    scores = list(stream_scores(path))
    rows = {score.key: place for place, score in enumerate(scores)}
    answered: list[list[tuple[Sample, Score]]] = [[] for _ in prompts]
    for sample, place, score in match_records(path, read_samples(path), prompts, rows):
        answered[place].append((sample, scores[score]))
    refuse_missing(path, prompts, read_identity(path), [len(samples) for samples in answered])
    found: list[RunPrompt] = []
    for number, (row, samples) in enumerate(zip(prompts, answered, strict=True), start=1):
        repeats = sorted((one for one in samples if not one[0].replicate), key=lambda one: one[0].sample_index)
        doc = row["doc"]
        if row.get("sample_index"):  # a prompt of a later sample only: it is shown with the first one's
            first = found[-1]
            found[-1] = replace(
                first,
                completions=(*first.completions, *(sample.completion for sample, _ in repeats)),
                verdicts=(*first.verdicts, *(score.verdict for _, score in repeats)),
                answers=(*first.answers, *(score.answer for _, score in repeats)),
            )
            continue
        prompt = document_prompt(doc)
        found.append(
            RunPrompt(
                where=f"{path / PROMPTS}, line {number}",
                problem_id=doc["id"],
                subject=doc["subject"],
                level=doc["level"],
                condition=row["condition"],
                layout=row["layout"],
                text=row["prompt"],
                sha256=row["prompt_sha256"],
                token_sha256=row["prompt_token_sha256"],
                segments=prompt.segments,
                system_size=prompt.system_size,
                doc=doc,
                completions=tuple(sample.completion for sample, _ in repeats),
                verdicts=tuple(score.verdict for _, score in repeats),
                answers=tuple(score.answer for _, score in repeats),
                target=doc["answer"],
            )
        )
    return found


def _run_settings(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that could change a sample and have no fact of their own."""
    model = receipt["config"]["model"]
    return {
        "backend": model["backend"],
        "model_args": {k: str(v) for k, v in fixed_arguments(model["arguments"]).items()},
        "instruction": receipt["config"].get("instruction"),
        "seed": receipt["seed"],
        "limit": receipt.get("limit"),
    }
