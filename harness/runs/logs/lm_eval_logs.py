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
from msgspec.structs import replace

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

FirstPrompts = dict[tuple[str, str], AnsweredPrompt]
"""The first prompt of each layout and problem."""
LogsByCondition = dict[tuple[str, str], tuple[SampleLog, list[AnsweredPrompt]]]
"""By condition and layout, the log and those of its prompts that have both."""


def read_logs(
    run_name: str, conditions_and_files: Sequence[tuple[str, Path]], metric: str | None
) -> JsonObject:
    """Several sample logs as the fields of a `run_reader.Run`.

    Args:
        run_name: The run's name.
        conditions_and_files: Each log with its condition; if that is empty, the documents name it.
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
    logs_by_condition = _group_logs(run_name, logs_with_condition)
    about = _describe_logs(run_name, logs, logs_by_condition, len(problem_hashes))
    # a log may have lost its results file, which names the model
    results = next((log.results for log in logs if log.results.model), logs[0].results)
    # Tables are ordered by layout, then the study's conditions first, then others as given.
    conditions = [BASELINE, *NAMED_CONDITIONS, *(condition for condition, _ in logs_by_condition)]
    prompts = []
    for condition_and_layout in sorted(
        logs_by_condition, key=lambda key: (key[1], conditions.index(key[0]))
    ):
        _, prompts_of_condition = logs_by_condition[condition_and_layout]
        prompts += prompts_of_condition
    return {
        "name": run_name,
        "about": about,
        "problems": {"problem": problem_hashes},
        "model": results.model,
        "model_arguments": results.arguments,
        "metric": about["metric"] or None,
        "read": partial(_read_samples, about["model"], prompts),
        "read_prompts": lambda: prompts,
    }


def _describe_logs(
    run_name: str, logs: Sequence[SampleLog], logs_by_condition: LogsByCondition, problem_count: int
) -> JsonObject:
    """The facts of the logs for a table's receipt: see `run_reader.Run.about`."""
    # `read_logs` has compared the logs' settings, so the first known ones are those of all
    settings = next((log.settings for log in logs if log.settings), {})
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
        "run": run_name,
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
    for (condition, _), (_, prompts) in logs_by_condition.items():
        # the documents of a condition are of the same kind, so any of them will do
        doc = prompts[0].doc
        # if the user gave a log another name, it counts as an ordinary condition
        if is_ours(doc) and doc.get("kind") and condition == doc["condition"]:
            reference_by_condition[condition] = {key: doc[key] for key in REFERENCE_FIELDS}
    return reference_by_condition


def _group_logs(run_name: str, logs: Sequence[tuple[str, SampleLog]]) -> LogsByCondition:
    """The prompts of all logs, under the conditions that the user or the documents name.

    Raises:
        RunError: a condition is not known, or has two logs.
        ComparisonError: as `_refuse_other_surroundings`.
    """
    logs_by_condition: LogsByCondition = {}
    first_prompts: FirstPrompts = {}
    for named_condition, log in logs:
        for logged_prompt in log.prompts:
            prompt = replace(logged_prompt, condition=named_condition or logged_prompt.condition)
            if not prompt.condition:
                raise RunError(
                    f"{log.path} names no condition: name that of each log, as wo=FILE mless=FILE."
                )
            first_log, prompts = logs_by_condition.setdefault(
                (prompt.condition, prompt.layout), (log, [])
            )
            if first_log is not log:
                raise RunError(
                    f"{run_name} holds two logs of condition {prompt.condition!r}: "
                    f"{first_log.path} and {log.path}."
                )
            prompts.append(prompt)
            _refuse_other_surroundings(prompt, first_prompts)
    return logs_by_condition


def _refuse_other_surroundings(prompt: AnsweredPrompt, first_prompts: FirstPrompts) -> None:
    """Refuse a prompt with other text around its document's than the problem's first prompt.

    The difference would count as an effect of the condition. A first prompt is added to
    `first_prompts`.

    Raises:
        ComparisonError: prompts of a problem differ in more than their documents.
    """
    if prompt.surroundings is None:  # unknown, so there is nothing to compare
        return
    first_prompt = first_prompts.setdefault((prompt.layout, prompt.problem_id), prompt)
    if prompt.surroundings != first_prompt.surroundings:
        raise ComparisonError(
            f"{prompt.task}: the prompt of problem {prompt.problem_id} has other text around its "
            f"document's than in {first_prompt.task}. lm_eval --cache_requests sends prompts of "
            "earlier commands; run it without."
        )


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if two logs were made with different settings, as far as is known."""
    logs_with_settings = [log for log in logs if log.settings]
    for log in logs_with_settings[1:]:
        first_log = logs_with_settings[0]
        first_settings, settings = first_log.settings, log.settings
        # Versions are compared within one task. All tasks of mless have the same version.
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
    """The hash of each problem in any of the logs, by its id.

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
