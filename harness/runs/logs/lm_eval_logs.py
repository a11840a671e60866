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
from harness.experiment.plan import hash_json
from harness.experiment.prompts.prompt import is_ours
from harness.runs.journal import describe_differences
from harness.runs.logs.sample_log import SampleLog, read_log
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.samples_frame import make_frame

LogsByCondition = dict[tuple[str, str], tuple[SampleLog, list[AnsweredPrompt]]]
"""By condition and layout, the log and its prompts."""


def read_logs(
    name: str, files: Sequence[tuple[str | None, Path]], *, metric: str | None
) -> JsonObject:
    """Several sample logs as the fields of a `run_reader.Run`.

    Args:
        name: The run's name.
        files: Condition and file; without a condition the documents name it.
        metric: See `read_log`.

    Raises:
        RunError: a log is missing, damaged or no sample log, or its condition is not known.
        ComparisonError: the logs are of several task versions or settings, or have different
            problems under one id.
    """
    logs_with_condition = [(condition, read_log(file, metric=metric)) for condition, file in files]
    logs = [log for _, log in logs_with_condition]
    _refuse_other_settings(logs)
    problems = _merge_problems(logs)
    logs_by_condition = _group_logs(name, logs_with_condition)
    about = _describe_logs(name, logs, logs_by_condition, len(problems))
    order = [BASELINE, *NAMED_CONDITIONS, *(condition for condition, _ in logs_by_condition)]
    # a log may have lost its results file, which names the model
    results = next((log.results for log in logs if log.results.model), logs[0].results)
    prompts: list[AnsweredPrompt] = []
    # tables have this order: the study's conditions first, the others as their files come
    for key in sorted(logs_by_condition, key=lambda key: (key[1], order.index(key[0]))):
        prompts += logs_by_condition[key][1]
    return {
        "name": name,
        "about": about,
        "problems": {"problem": problems},
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
    versions = {log.results.task_version for log in logs} - {None}
    metrics = dict.fromkeys(log.metric for log in logs if log.metric)
    filters = dict.fromkeys(name for log in logs for name in log.other_filters)
    hashes = [prompt.prompt_sha256 for log in logs for prompt in log.prompts]
    first_results = logs[0].results
    created = first_results.date and datetime.fromtimestamp(first_results.date, UTC).isoformat(
        timespec="seconds"
    )
    return {
        "source": "lm-eval",
        "run": name,
        "model": first_results.label,
        "problems": problem_count,
        "task_version": versions.pop() if len(versions) == 1 else None,
        "metric": ", ".join(metrics),
        "other_filters": ", ".join(filters),
        "prompts_sha256": hash_json(hashes),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first_results.config.model,
        "reference_conditions": _reference_conditions(logs_by_condition),
        "seed": first_results.config.random_seed,
        "created": created,
        "versions": {"lm-eval": first_results.lm_eval_version},
        "git_revision": first_results.git_hash,
        "logs": {", ".join(key): str(log.path) for key, (log, _) in logs_by_condition.items()},
    }


def _reference_conditions(logs_by_condition: LogsByCondition) -> dict[str, JsonObject]:
    """The `Condition.reference_fields` of the reference conditions among the logs', by name."""
    references = {}
    for _, (prompt, *_) in logs_by_condition.values():
        doc = prompt.doc
        # under another name that the user gave it is an ordinary condition
        if is_ours(doc) and doc.get("kind") and prompt.condition == doc["condition"]:
            references[prompt.condition] = {key: doc[key] for key in REFERENCE_FIELDS}
    return references


def _group_logs(name: str, logs: Sequence[tuple[str | None, SampleLog]]) -> LogsByCondition:
    """The prompts of all logs, under the conditions that the user or the documents name.

    Raises:
        RunError: a condition is not known, or has two logs.
        ComparisonError: prompts of a problem differ in more than their documents.
    """
    logs_by_condition: LogsByCondition = {}
    first_prompts: dict[tuple[str, str], AnsweredPrompt] = {}
    for named_condition, log in logs:
        for prompt in log.prompts:
            prompt.condition = condition = named_condition or prompt.condition
            if not condition:
                raise RunError(
                    f"{log.path} names no condition: name that of each log, as wo=FILE mless=FILE."
                )
            stored_log, prompts = logs_by_condition.setdefault(
                (condition, prompt.layout), (log, [])
            )
            if stored_log is not log:
                raise RunError(
                    f"{name} holds two logs of condition {condition!r}: {stored_log.path} and "
                    f"{log.path}."
                )
            prompts.append(prompt)
            if prompt.surroundings is None:
                continue
            first_prompt = first_prompts.setdefault((prompt.layout, prompt.problem_id), prompt)
            if prompt.surroundings != first_prompt.surroundings:
                raise ComparisonError(
                    f"{prompt.task}: the prompt of problem {prompt.problem_id} has other text "
                    f"around its document's than in {first_prompt.task}. lm_eval --cache_requests "
                    "sends prompts of earlier commands; run it without."
                )
    return logs_by_condition


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if two logs were made with different settings, as far as is known."""
    logs = [log for log in logs if log.settings]
    for log in logs[1:]:
        first_log = logs[0]
        old, new = dict(first_log.settings), dict(log.settings)
        # all tasks of mless have the same version; each of the other tasks has its own
        are_ours = is_ours(log.prompts[0].doc) and is_ours(first_log.prompts[0].doc)
        if are_ours or log.results.task == first_log.results.task:
            old["task_version"] = first_log.results.task_version
            new["task_version"] = log.results.task_version
        if difference := describe_differences(old, new):
            raise ComparisonError(
                f"{log.path} was made with other settings than {first_log.path}: {difference}."
            )


def _merge_problems(logs: Sequence[SampleLog]) -> dict[str, str]:
    """The hash of each problem. A document without an id has its line's number as its id.

    Raises:
        ComparisonError: two logs have different problems under one id.
    """
    problems: dict[str, str] = {}
    for log in logs:
        changed = [
            name
            for name, sha256 in log.problems.items()
            if problems.setdefault(name, sha256) != sha256
        ]
        if changed:
            raise ComparisonError(
                f"{log.path} has different problems with the same ids: {list_first(changed)}."
            )
    return problems


def _read_samples(label: str, prompts: Sequence[AnsweredPrompt]) -> pandas.DataFrame:
    """One row per graded sample, with the columns of `samples_frame.make_frame`.

    Raises:
        RunError: a sample has no verdict.
    """
    graded_samples = []
    for prompt in prompts:
        if not prompt.verdicts:
            raise RunError(
                f"{prompt.task}: the log has no verdict. Use --metric to name a metric that is 0 "
                "or 1."
            )
        graded_samples.append(
            [(sample, score) for sample, score in prompt.graded_samples if score.verdict]
        )
    receipt = {"config": {"model": {"label": label}, "conditions": ()}}
    return make_frame(receipt, prompts, graded_samples)
