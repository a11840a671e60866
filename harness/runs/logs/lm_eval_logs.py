"""Logs of lm-eval (`--log_samples`) as one run, in which each log is a condition.

All logs must have the same settings. Logs of our tasks carry condition and segments in their
documents. Logs of other tasks do not: there the user names the condition of each file, unless
`mless tasks --wrap` wrote the task. In that case lm-eval's results file names it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pandas

from harness.constants import BASELINE, JsonObject
from harness.errors import ComparisonError, RunError, list_first
from harness.experiment.conditions import NAMED_CONDITIONS, REFERENCE_FIELDS
from harness.experiment.model_settings import label_model
from harness.experiment.plan import hash_json
from harness.experiment.prompts.prompt import is_ours
from harness.runs.journal import list_shared_differences
from harness.runs.logs.sample_log import SampleLog, read_log
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.samples_frame import make_frame

LogsByCondition = dict[tuple[str, str], tuple[SampleLog, list[AnsweredPrompt]]]
"""By condition and layout, the log and its prompts."""


def read_logs(
    name: str, conditions_and_files: Sequence[tuple[str | None, Path]], *, metric: str | None
) -> JsonObject:
    """Several sample logs as the fields of a `run_reader.Run`.

    Args:
        name: The run's name.
        conditions_and_files: Each log with its condition; without one the documents name it.
        metric: See `read_log`.

    Raises:
        RunError: a log is missing, damaged or not a sample log, or its condition is unknown.
        ComparisonError: the logs are of several task versions or settings, or have different
            problems under one id.
    """
    logs_with_condition = [
        (condition, read_log(file, metric=metric)) for condition, file in conditions_and_files
    ]
    logs = [log for _, log in logs_with_condition]
    _refuse_other_settings(logs)
    problem_hashes = _merge_problems(logs)
    logs_by_condition = _group_logs(name, logs_with_condition)
    about = _describe_logs(name, logs, logs_by_condition, len(problem_hashes))
    conditions = [BASELINE, *NAMED_CONDITIONS, *(condition for condition, _ in logs_by_condition)]
    # a log may have lost its results file, which names the model
    results = next((log.results for log in logs if log.results.model), logs[0].results)
    prompts: list[AnsweredPrompt] = []
    # Tables are ordered by layout, then the study's conditions first, then others as given.
    for key in sorted(logs_by_condition, key=lambda key: (key[1], conditions.index(key[0]))):
        prompts += logs_by_condition[key][1]
    return {
        "name": name,
        "about": about,
        "problems": {"problem": problem_hashes},
        "model": results.model,
        "model_arguments": results.arguments,
        "metric": about["metric"] or None,
        "read": partial(_read_samples, about["model"], prompts),
        "read_prompts": lambda: prompts,
    }


def _describe_logs(
    name: str, logs: Sequence[SampleLog], logs_by_condition: LogsByCondition, problem_count: int
) -> JsonObject:
    """The facts of the logs for a table's receipt: see `run_reader.Run.about`."""
    settings = dict(next((log.settings for log in logs if log.settings), {}))
    sampling = settings.pop("generation_kwargs", None)
    task_versions = {log.results.task_version for log in logs} - {None}
    metric_names = dict.fromkeys(log.metric for log in logs if log.metric)
    filter_names = dict.fromkeys(filter_name for log in logs for filter_name in log.other_filters)
    first_results = logs[0].results
    creation_time = None
    if first_results.date:
        creation_time = datetime.fromtimestamp(first_results.date, UTC).isoformat(
            timespec="seconds"
        )
    return {
        "source": "lm-eval",
        "run": name,
        "model": label_model(str(first_results.model_name or first_results.model or "model")),
        "problems": problem_count,
        "task_version": task_versions.pop() if len(task_versions) == 1 else None,
        "metric": ", ".join(metric_names),
        "other_filters": ", ".join(filter_names),
        "prompts_sha256": hash_json(
            [prompt.prompt_sha256 for log in logs for prompt in log.prompts]
        ),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first_results.config.model,
        "reference_conditions": _reference_conditions(logs_by_condition),
        "seed": first_results.config.random_seed,
        "created": creation_time,
        "versions": {"lm-eval": first_results.lm_eval_version},
        "git_revision": first_results.git_hash,
        "logs": {", ".join(key): str(log.path) for key, (log, _) in logs_by_condition.items()},
    }


def _reference_conditions(logs_by_condition: LogsByCondition) -> dict[str, JsonObject]:
    """The `Condition.reference_fields` of the reference conditions among the logs', by name.

    Those are conditions whose documents have a kind: other texts, or the positive control.
    """
    reference_by_condition = {}
    for _, (prompt, *_) in logs_by_condition.values():
        doc = prompt.doc
        # if the user gave a log another name, it counts as an ordinary condition
        if is_ours(doc) and doc.get("kind") and prompt.condition == doc["condition"]:
            reference_by_condition[prompt.condition] = {key: doc[key] for key in REFERENCE_FIELDS}
    return reference_by_condition


def _group_logs(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> LogsByCondition:
    """The prompts of all logs, under the conditions that the user or the documents name.

    Each prompt is given its condition. The surroundings of a problem's prompts (the text besides
    the document's) must be the same under all conditions, or they would count as an effect.

    Raises:
        RunError: a condition is not known, or has two logs.
        ComparisonError: prompts of a problem differ in more than their documents.
    """
    logs_by_condition: LogsByCondition = {}
    first_prompt_by_layout_and_id: dict[tuple[str, str], AnsweredPrompt] = {}
    for named_condition, log in logs:
        for prompt in log.prompts:
            condition = named_condition or prompt.condition
            prompt.condition = condition
            if not condition:
                raise RunError(
                    f"{log.path} names no condition: name that of each log, as wo=FILE mless=FILE."
                )
            first_log, prompts = logs_by_condition.setdefault((condition, prompt.layout), (log, []))
            if first_log is not log:
                raise RunError(
                    f"{name} holds two logs of condition {condition!r}: {first_log.path} and "
                    f"{log.path}."
                )
            prompts.append(prompt)
            if prompt.surroundings is None:  # unknown, so there is nothing to compare
                continue
            first_prompt = first_prompt_by_layout_and_id.setdefault(
                (prompt.layout, prompt.problem_id), prompt
            )
            if prompt.surroundings != first_prompt.surroundings:
                raise ComparisonError(
                    f"{prompt.task}: the prompt of problem {prompt.problem_id} has other text "
                    f"around its document's than in {first_prompt.task}. lm_eval --cache_requests "
                    "sends prompts of earlier commands; run it without."
                )
    return logs_by_condition


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if two logs were made with different settings, as far as is known."""
    logs_with_settings = [log for log in logs if log.settings]
    for log in logs_with_settings[1:]:
        first_log = logs_with_settings[0]
        first_settings, settings = dict(first_log.settings), dict(log.settings)
        # each task has its own version, but all tasks of mless have the same
        are_ours = is_ours(log.prompts[0].doc) and is_ours(first_log.prompts[0].doc)
        if are_ours or log.results.task == first_log.results.task:
            first_settings["task_version"] = first_log.results.task_version
            settings["task_version"] = log.results.task_version
        if differences := list_shared_differences(first_settings, settings):
            raise ComparisonError(
                f"{log.path} was made with other settings than {first_log.path}: "
                f"{'; '.join(differences)}."
            )


def _merge_problems(logs: Sequence[SampleLog]) -> dict[str, str]:
    """The hash of each problem. A document without an id has its line's number as its id.

    Raises:
        ComparisonError: two logs have different problems under one id.
    """
    problem_hashes: dict[str, str] = {}
    for log in logs:
        changed_ids = [
            problem_id
            for problem_id, sha256 in log.problem_hashes.items()
            if problem_hashes.get(problem_id, sha256) != sha256
        ]
        if changed_ids:
            raise ComparisonError(
                f"{log.path} has different problems with the same ids: {list_first(changed_ids)}."
            )
        problem_hashes |= log.problem_hashes
    return problem_hashes


def _read_samples(model_label: str, prompts: Sequence[AnsweredPrompt]) -> pandas.DataFrame:
    """One row per graded sample, with the columns of `samples_frame.make_frame`.

    Raises:
        RunError: a sample has no verdict.
    """
    graded_samples_of_prompts = []
    for prompt in prompts:
        if not prompt.verdicts:
            raise RunError(
                f"{prompt.task}: the log has no verdict. Use --metric to name a metric that is 0 "
                "or 1."
            )
        graded_samples_of_prompts.append(
            [(sample, score) for sample, score in prompt.graded_samples if score.verdict]
        )
    receipt = {"config": {"model": {"label": model_label}, "conditions": ()}}
    return make_frame(receipt, prompts, graded_samples_of_prompts)
