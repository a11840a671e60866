"""Logs of lm-eval (`--log_samples`) as one run, in which each log is a condition.

All logs must have the same settings. Logs of our tasks carry condition and segments in their
documents. Logs of other tasks do not: there the user names the condition of each file, unless
`mless tasks --wrap` wrote the task. In that case lm-eval's results file names it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path

import pandas
from msgspec import structs

from harness.constants import JsonObject
from harness.errors import ComparisonError, RunError, list_first
from harness.experiment.conditions import NAMED_CONDITIONS, REFERENCE_FIELDS
from harness.experiment.model_settings import label_model
from harness.experiment.plan import hash_json
from harness.experiment.prompts.prompt import is_ours
from harness.runs.journal import list_shared_differences
from harness.runs.logs.sample_log import SampleLog, read_log
from harness.runs.prompt_sources import AnsweredPrompt
from harness.runs.samples_frame import make_frame


def read_run_fields(
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
    logs = [
        _name_condition(read_log(file, metric=metric), condition)
        for condition, file in conditions_and_files
    ]
    _refuse_other_settings(logs)
    hash_by_problem_id = _merge_problem_hashes(logs)
    path_by_name = _index_paths(run_name, logs)
    prompts = list(chain.from_iterable(log.prompts for log in logs))
    _refuse_other_surroundings(prompts)
    about = _describe_logs(run_name, logs, prompts) | {"logs": path_by_name}
    # a log may have lost its results file, which names the model
    results = next((log.results for log in logs if log.results.model), logs[0].results)
    # Tables are ordered by layout, then the study's conditions first, then others as given.
    conditions = [*NAMED_CONDITIONS, *dict.fromkeys(prompt.condition for prompt in prompts)]
    ordered_prompts = sorted(
        prompts, key=lambda prompt: (prompt.layout, conditions.index(prompt.condition))
    )
    return {
        "name": run_name,
        "about": about,
        # the key is `run_reader.HASH_KEY`
        "problems": {"problem": hash_by_problem_id},
        "model": results.model,
        "model_arguments": results.model_arguments,
        "metric": about["metric"] or None,
        "read": partial(_make_samples, about["model"], ordered_prompts),
        "read_prompts": lambda: ordered_prompts,
    }


def _describe_logs(
    run_name: str, logs: Sequence[SampleLog], prompts: Sequence[AnsweredPrompt]
) -> JsonObject:
    """The facts of the logs for a table's receipt: see `run_reader.Run.about`."""
    # `read_run_fields` has compared the logs' settings, so the first known ones are those of all
    known_settings = next((log.settings for log in logs if log.settings), {})
    sampling = known_settings.get("generation_kwargs")
    settings = {key: value for key, value in known_settings.items() if key != "generation_kwargs"}
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
        "problems": len({prompt.problem_id for prompt in prompts}),
        "task_version": task_versions.pop() if len(task_versions) == 1 else None,
        "metric": ", ".join(metric_names),
        "other_filters": ", ".join(filter_names),
        "prompts_sha256": hash_json([prompt.prompt_sha256 for prompt in prompts]),
        "sampling": sampling,
        "settings": settings,
        "greedy": None if sampling is None else not sampling.get("do_sample", False),
        "backend": first_results.config.model,
        "reference_conditions": _describe_reference_conditions(prompts),
        "seed": first_results.config.random_seed,
        "created": creation_time,
        "versions": {"lm-eval": first_results.lm_eval_version},
        "git_revision": first_results.git_hash,
    }


def _describe_reference_conditions(prompts: Sequence[AnsweredPrompt]) -> dict[str, JsonObject]:
    """The `Condition.reference_fields` of the reference conditions among the prompts', by name.

    Those are conditions whose documents have a kind: other texts, or the positive control.
    """
    reference_fields_by_condition = {}
    for prompt in prompts:
        doc = prompt.doc
        # if the user gave a log another name, it counts as an ordinary condition
        if is_ours(doc) and doc.get("kind") and prompt.condition == doc["condition"]:
            reference_fields_by_condition[prompt.condition] = {
                key: doc[key] for key in REFERENCE_FIELDS
            }
    return reference_fields_by_condition


def _name_condition(log: SampleLog, condition: str) -> SampleLog:
    """A log whose prompts have the condition that the user names.

    If the user names none, the prompts keep the conditions that the log names.

    Raises:
        RunError: a condition is not known.
    """
    prompts = [
        structs.replace(prompt, condition=condition or prompt.condition) for prompt in log.prompts
    ]
    if not all(prompt.condition for prompt in prompts):
        raise RunError(
            f"{log.path} names no condition: name that of each log, as wo=FILE mless=FILE."
        )
    return replace(log, prompts=prompts)


def _index_paths(run_name: str, logs: Sequence[SampleLog]) -> dict[str, str]:
    """The file that has the prompts of each condition and layout, by `CONDITION, LAYOUT`.

    Raises:
        RunError: two files have prompts of the same condition and layout.
    """
    path_by_name: dict[str, str] = {}
    for log in logs:
        log_path = str(log.path)
        for prompt in log.prompts:
            name = f"{prompt.condition}, {prompt.layout}"
            path = path_by_name.setdefault(name, log_path)
            if path != log_path:
                raise RunError(
                    f"{run_name} holds two logs of condition {prompt.condition!r}: {path} and "
                    f"{log_path}."
                )
    return path_by_name


def _refuse_other_surroundings(prompts: Iterable[AnsweredPrompt]) -> None:
    """Refuse prompts of a problem with different texts around their documents' texts.

    The difference would count as an effect of the condition. Every prompt is compared with the
    first of its problem in the same layout, since another layout adds other text.

    Raises:
        ComparisonError: prompts of a problem differ in more than their documents.
    """
    first_prompt_by_layout_and_id: dict[tuple[str, str], AnsweredPrompt] = {}
    for prompt in prompts:
        # they are unknown, so there is nothing to compare
        if prompt.surroundings is None:
            continue
        first_prompt = first_prompt_by_layout_and_id.setdefault(
            (prompt.layout, prompt.problem_id), prompt
        )
        if prompt.surroundings != first_prompt.surroundings:
            raise ComparisonError(
                f"{prompt.task}: the prompt of problem {prompt.problem_id} has other text around "
                f"its document's than in {first_prompt.task}. lm_eval --cache_requests sends "
                "prompts of earlier commands; run it without."
            )


def _refuse_other_settings(logs: Sequence[SampleLog]) -> None:
    """Raise ComparisonError if two logs were made with different settings, as far as is known."""
    logs_with_settings = [log for log in logs if log.settings]
    for log in logs_with_settings[1:]:
        first_log = logs_with_settings[0]
        first_settings = first_log.settings
        settings = log.settings
        # Versions are compared within one task. All tasks of mless have the same version.
        are_ours = is_ours(log.prompts[0].doc) and is_ours(first_log.prompts[0].doc)
        if are_ours or log.results.task == first_log.results.task:
            first_settings = first_settings | {"task_version": first_log.results.task_version}
            settings = settings | {"task_version": log.results.task_version}
        if differences := list_shared_differences(first_settings, settings):
            raise ComparisonError(
                f"{log.path} was made with other settings than {first_log.path}: "
                f"{'; '.join(differences)}."
            )


def _merge_problem_hashes(logs: Sequence[SampleLog]) -> dict[str, str]:
    """The hash of each problem in any of the logs, by its id.

    Raises:
        ComparisonError: two logs have different problems under one id.
    """
    hash_by_problem_id: dict[str, str] = {}
    for log in logs:
        changed_ids = []
        for prompt in log.prompts:
            first_hash = hash_by_problem_id.setdefault(prompt.problem_id, prompt.problem_sha256)
            if prompt.problem_sha256 != first_hash:
                changed_ids.append(prompt.problem_id)
        if changed_ids:
            raise ComparisonError(
                f"{log.path} has different problems with the same ids: {list_first(changed_ids)}."
            )
    return hash_by_problem_id


def _make_samples(model_label: str, prompts: Sequence[AnsweredPrompt]) -> pandas.DataFrame:
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
    # what `make_frame` reads of a receipt, which logs do not have
    receipt = {"config": {"model": {"label": model_label}, "conditions": ()}}
    return make_frame(receipt, prompts, graded_samples_of_prompts)
